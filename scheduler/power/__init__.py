"""Node power: which nodes sleep, the state of each node, and the drivers that switch nodes."""
