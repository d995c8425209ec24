"""Power of a node that is on and idle: what is turned down, and turned up again when anything comes."""
