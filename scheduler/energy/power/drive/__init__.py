"""What touches machines: BMCs, hooks, the knobs of a node, and the loop that uses them."""
