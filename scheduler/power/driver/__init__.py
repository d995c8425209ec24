"""Power drivers: one file each, with one interface."""
