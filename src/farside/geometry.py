"""Sizes that all parts agree on. The engine has them as NE_PAGE_BYTES and NE_CLUSTER_BYTES; a test compares them."""

PAGE_BYTES = 4096
CLUSTER_BYTES = 2 << 20
"""What is placed: so much of a device stands together, in one extent of a slab."""
