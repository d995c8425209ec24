"""Sizes that all parts share. The engine has them under the same names with NE_ before; a test compares them."""

PAGE_BYTES = 4096
GRANULE_BYTES = 2 << 20
"""What is placed: so much of a device stands together, in one extent of a slab."""
SLABS_MAX = 65536
"""Slabs that one device can have at once."""


def granules_of(size_bytes: int) -> int:
    """Granules that have room for so much. Sizes of swap are compared so: by a page or two they always differ."""
    return -(-size_bytes // GRANULE_BYTES)
