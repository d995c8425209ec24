"""The central manager: state, order, placement, the cycle that applies them, and the simulator that feeds it."""
