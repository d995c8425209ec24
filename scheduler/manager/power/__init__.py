"""Node power in the manager: which nodes are needed, and who switches them."""
