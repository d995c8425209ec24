"""Node sets: integers with one bit for each node. PURE.

Ten thousand nodes are 1,250 bytes: to intersect two sets, to count one or to find its first member takes less than a
microsecond, whatever is in it. -1 has every bit, and stands for "no restriction".
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def lowest(node_set: int) -> int:
    """Number of the lowest bit that is set."""
    return (node_set & -node_set).bit_length() - 1


def bits(node_set: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    while node_set:
        low = node_set & -node_set
        yield low.bit_length() - 1
        node_set ^= low


def node_set_of(members: NDArray[np.bool_]) -> int:
    """Set of the indices where ``members`` is true."""
    return int.from_bytes(np.packbits(members, bitorder="little").tobytes(), "little")


def members_of(node_set: int) -> NDArray[np.intp]:
    """The numbers of the bits that are set, lowest first, at once."""
    raw = node_set.to_bytes((node_set.bit_length() + 7) // 8, "little")
    return np.flatnonzero(np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little"))
