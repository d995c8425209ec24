"""Power drivers, a file each, behind one protocol."""
