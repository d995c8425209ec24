"""A whole memory plane on one machine, in real processes, for trying, testing and measuring."""
