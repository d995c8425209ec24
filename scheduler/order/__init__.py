"""Who goes first: one policy a file, all with the shape that `policy` states."""
