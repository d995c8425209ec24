"""Order policies: which job goes first. One policy in each file; `policy` defines the interface."""
