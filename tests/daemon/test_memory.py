"""What a donor makes of its samples: the smoothed use has its tests in test_headroom.py."""

from pathlib import Path

import pytest

from farside.config import DaemonConfig
from farside.daemon.memory import MemoryWatch
from farside.memory_sense import MemoryReading

MIB = 1 << 20
GIB = 1 << 30


def huge_slabs(*, slab_bytes: int, page_bytes: int, pages: int) -> int:
    reading = MemoryReading(
        total_bytes=64 * GIB,
        available_bytes=32 * GIB,
        psi_full_pct=None,
        huge_page_bytes=page_bytes,
        huge_pages_free=pages,
    )
    return MemoryWatch(DaemonConfig(key_file=Path("key"), slab_bytes=slab_bytes), reading).huge_slabs_free()


@pytest.mark.parametrize(
    ("page_bytes", "pages", "slabs"),
    [(2 * MIB, 100, 3), (2 * MIB, 31, 0), (0, 0, 0), (GIB, 8, 0)],
)
def test_slabs_stand_on_huge_pages_that_are_no_larger_than_they(page_bytes: int, pages: int, slabs: int) -> None:
    assert huge_slabs(slab_bytes=64 * MIB, page_bytes=page_bytes, pages=pages) == slabs
