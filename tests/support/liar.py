"""Root of a donor's machine: changes, moves, swaps and puts back pages in the memory that the donor lends."""

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PAGE_BYTES = 4096
KEPT_MAX = 4096
EVERY_S = 0.002


class Liar:
    """Spoils the slabs of one donor process at random until it is ended.

    Attributes:
        spoilt: Pages written over so far, whether or not the borrower has anything there.
    """

    def __init__(self, pid: Callable[[], int], seed: int) -> None:
        """``pid``: of the donor now."""
        self.spoilt = 0
        self._pid = pid
        self._rng = random.Random(seed)
        self._kept: dict[tuple[int, int], bytes] = {}  # what pages once were, by slab and place
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Begin to lie."""
        self._thread.start()

    def end(self) -> None:
        """Stop, and wait until it has."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_S):
            # The donor may be ending, or give a slab back to its machine, while we look.
            with suppress(OSError, ValueError):
                self._spoil_some()

    def _spoil_some(self) -> None:
        with lent_memory(self._pid(), self._rng) as (slab, memory):
            pages = self._rng.sample(range(len(memory) // PAGE_BYTES), 16)
            for at, other in zip(pages[::2], pages[1::2], strict=True):
                self._spoil(slab, memory, at, other)

    def _spoil(self, slab: int, memory: mmap.mmap, at: int, other: int) -> None:
        here, there = page(memory, at), page(memory, other)
        if not any(here[:64]):
            return
        old = self._kept.get((slab, at), there)
        flipped = self._rng.randrange(PAGE_BYTES)
        lie = self._rng.choice(
            [
                here[:flipped] + bytes([here[flipped] ^ 1 << self._rng.randrange(8)]) + here[flipped + 1 :],
                there,
                old,
                old[: PAGE_BYTES // 2] + here[PAGE_BYTES // 2 :],
            ]
        )
        if len(self._kept) < KEPT_MAX:
            self._kept.setdefault((slab, at), here)
        memory[at * PAGE_BYTES : (at + 1) * PAGE_BYTES] = lie
        self.spoilt += 1


def page(memory: mmap.mmap, at: int) -> bytes:
    """One page of it."""
    return memory[at * PAGE_BYTES : (at + 1) * PAGE_BYTES]


@contextmanager
def lent_memory(pid: int, rng: random.Random) -> Iterator[tuple[int, mmap.mmap]]:
    """One of the process's slabs, by number and as memory. Raises OSError where it has none."""
    slabs = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(fd).startswith("/memfd:farside-slab")]
    if not slabs:
        raise OSError("it lends nothing")
    opened = os.open(rng.choice(slabs), os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(opened)
        with mmap.mmap(opened, status.st_size) as memory:
            yield status.st_ino, memory
    finally:
        os.close(opened)
