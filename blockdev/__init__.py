"""The borrower: one slab block device over donors' memory."""
