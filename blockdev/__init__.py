"""Borrower: serves a block device whose pages are in donors' memory."""
