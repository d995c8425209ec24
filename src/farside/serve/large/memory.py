"""Memory files that go between the front and the process beside it."""

import os
from collections.abc import Iterable

# Bytes by where they begin in a file.
Parts = Iterable[tuple[int, bytes | bytearray | memoryview]]


def write_parts(file: int, parts: Parts) -> None:
    """Writes all of each part into a file."""
    for at, part in parts:
        left = memoryview(part)
        while left:
            done = os.pwrite(file, left, at)
            left, at = left[done:], at + done
