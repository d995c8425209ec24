"""Which region of the device is in which slab: activity, placement, the slab table, recalls."""
