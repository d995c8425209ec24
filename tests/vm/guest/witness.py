"""A program that needs more memory than it may have, knows what each of its pages must hold, and tells on request.

    python3 witness.py PAGES [locked]

It writes all its pages, says `filled`, and from then on reads and rewrites them in random order. A line on its standard
input has it answer with one line of JSON, for the time since the last answer:

    tell     {"accesses": 812, "wrong": 0, "failed": 0, "stall_s": 0.31}, when it has read every page once more
    so far   the same at once
    rest     the same at once; from then on it touches nothing until the next word
    mourn    the same when it has read every page once more, by a way that says EIO where a touch would be a SIGBUS;
             "failed" are the pages that could not be read. It touches nothing after that either. For one that is
             `locked`: what it needs besides those pages stays in memory

At the end of its input it ends. Every page says which it is and how often it was written, so that one of another place
or time is found out. It imports nothing of ours: it is to be small, and to start quickly under emulation.
"""

import json
import mmap
import os
import random
import select
import struct
import sys
import time

PAGE_BYTES = 4096


class Witness:
    """Pages with known contents."""

    def __init__(self, pages: int, *, locked: bool = False) -> None:
        self._memory = _beside_locked_memory(pages * PAGE_BYTES) if locked else mmap.mmap(-1, pages * PAGE_BYTES)
        self._versions = [0] * pages
        self._accesses = self._wrong = self._failed = 0
        self._stall_s = 0.0
        for page in range(pages):
            self._write(page)

    def touch(self, page: int) -> None:
        """Reads one page and writes it anew."""
        self._check(page)
        self._versions[page] += 1
        self._write(page)

    def touch_any(self) -> None:
        """The same, for one by chance."""
        self.touch(random.randrange(len(self._versions)))

    def check_all(self) -> None:
        """Reads every page."""
        for page in range(len(self._versions)):
            self._check(page)

    def mourn(self) -> None:
        """Reads every page as a debugger does: one that is lost is counted, and kills nobody."""
        start = _address(self._memory)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            for page in range(len(self._versions)):
                began_s = time.monotonic()
                try:
                    found = os.pread(memory.fileno(), PAGE_BYTES, start + page * PAGE_BYTES)
                    self._wrong += found != self._content(page)
                except OSError:
                    self._failed += 1
                self._stall_s = max(self._stall_s, time.monotonic() - began_s)
                self._accesses += 1

    def tell(self) -> str:
        """What it saw since the last time, as JSON."""
        counts = {"accesses": self._accesses, "wrong": self._wrong, "failed": self._failed}
        told = json.dumps({**counts, "stall_s": round(self._stall_s, 3)})
        self._accesses = self._wrong = self._failed = 0
        self._stall_s = 0.0
        return told

    def _check(self, page: int) -> None:
        began_s = time.monotonic()
        is_wrong = self._memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] != self._content(page)
        self._stall_s = max(self._stall_s, time.monotonic() - began_s)
        self._accesses += 1
        self._wrong += is_wrong

    def _write(self, page: int) -> None:
        began_s = time.monotonic()
        self._memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = self._content(page)
        self._stall_s = max(self._stall_s, time.monotonic() - began_s)

    def _content(self, page: int) -> bytes:
        return struct.pack("<QQ", page * 0x9E3779B1, self._versions[page] * len(self._versions) + page) * 256


def _beside_locked_memory(size_bytes: int) -> mmap.mmap:
    """Memory that may be swapped out, while all the rest of this process stays in."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT): it also locks what is mapped next, as far as it is touched.
    if libc.mlockall(1 | 2 | 4):
        raise OSError(ctypes.get_errno(), "mlockall")
    memory = mmap.mmap(-1, size_bytes)
    if libc.munlock(ctypes.c_void_p(_address(memory)), ctypes.c_size_t(size_bytes)):
        raise OSError(ctypes.get_errno(), "munlock")
    return memory


def _address(memory: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def main() -> None:
    """Until the end of standard input."""
    os.nice(10)  # who makes the faults, and who serves the pages, is not to wait for it
    witness = Witness(int(sys.argv[1]), locked="locked" in sys.argv[2:])
    print("filled", flush=True)
    resting = False
    while True:
        if resting or select.select([sys.stdin], [], [], 0)[0]:
            word = sys.stdin.readline().strip()
            if not word:
                return
            if word == "tell":
                witness.check_all()
            elif word == "mourn":
                witness.mourn()
            resting = word in ("rest", "mourn")
            print(witness.tell(), flush=True)
        else:
            witness.touch_any()


if __name__ == "__main__":
    main()
