"""Mapping of the device to slabs: activity, placement, the slab table, recalls."""
