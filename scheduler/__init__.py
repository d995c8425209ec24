"""The GPU-cluster manager: state, order, placement, the scheduling cycle, and the simulator."""
