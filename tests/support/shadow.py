"""A copy in memory of what a device should hold, and writes whose outcome is unknown.

A write that was answered with an error, or not at all, may or may not have happened, page by page; everything else has
exactly one right value. `check` knows the difference.
"""

import random

PAGE_BYTES = 4096


class Shadow:
    """What the device should hold: bytes per page, and for some pages more than one possibility."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._pages: dict[int, list[bytes]] = {}

    def write(self, offset: int, data: bytes) -> None:
        """A write of whole pages that succeeded."""
        for page, content in _pages(offset, data):
            self._pages[page] = [content]

    def maybe_write(self, offset: int, data: bytes) -> None:
        """A write of whole pages that failed or was not answered: each page has its old or its new content."""
        for page, content in _pages(offset, data):
            self._pages[page] = [*self._possible(page), content]

    def zero(self, offset: int, length: int) -> None:
        """A trim or a write of zeros, of whole pages, that succeeded."""
        self.write(offset, bytes(length))

    def check(self, offset: int, data: bytes) -> None:
        """Asserts that `data`, read at `offset` (whole pages), is what it may be; what is seen is then the truth."""
        for page, content in _pages(offset, data):
            assert content in self._possible(page), (
                f"page {page}: read {_describe(content)}, expected {' or '.join(map(_describe, self._possible(page)))}"
            )
            self._pages[page] = [content]

    def expected(self, offset: int, length: int) -> bytes:
        """The bytes there, where no page has more than one possible content."""
        first, count = offset // PAGE_BYTES, length // PAGE_BYTES
        return b"".join(self._possible(page)[0] for page in range(first, first + count))

    def written_pages(self) -> list[int]:
        """Numbers of the pages that were ever written."""
        return sorted(self._pages)

    def _possible(self, page: int) -> list[bytes]:
        return self._pages.get(page, [bytes(PAGE_BYTES)])


def stamped_pages(rng: random.Random, count: int) -> bytes:
    """Random pages, each unlike every other."""
    return rng.randbytes(count * PAGE_BYTES)


def _pages(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    assert offset % PAGE_BYTES == 0
    assert len(data) % PAGE_BYTES == 0
    first = offset // PAGE_BYTES
    return [(first + n, data[n * PAGE_BYTES : (n + 1) * PAGE_BYTES]) for n in range(len(data) // PAGE_BYTES)]


def _describe(content: bytes) -> str:
    return "zeros" if content == bytes(PAGE_BYTES) else content[:8].hex()
