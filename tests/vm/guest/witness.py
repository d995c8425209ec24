"""A program that needs more memory than it may have, knows what each of its pages must hold, and tells on request.

    python3 witness.py PAGES

It writes all its pages, says `filled`, and from then on reads and rewrites them in random order. A line on its standard
input has it answer with one line of JSON, for the time since the last answer:

    tell     {"accesses": 812, "wrong": 0, "stall_s": 0.31}, when it has read every page once more
    so far   the same at once

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

    def __init__(self, pages: int) -> None:
        self._memory = mmap.mmap(-1, pages * PAGE_BYTES)
        self._versions = [0] * pages
        self._accesses = self._wrong = 0
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

    def tell(self) -> str:
        """What it saw since the last time, as JSON."""
        told = {"accesses": self._accesses, "wrong": self._wrong, "stall_s": round(self._stall_s, 3)}
        self._accesses = self._wrong = 0
        self._stall_s = 0.0
        return json.dumps(told)

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


def main() -> None:
    """Until the end of standard input."""
    os.nice(10)  # who makes the faults, and who serves the pages, is not to wait for it
    witness = Witness(int(sys.argv[1]))
    print("filled", flush=True)
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            word = sys.stdin.readline()
            if not word:
                return
            if word == "tell\n":
                witness.check_all()
            print(witness.tell(), flush=True)
        witness.touch_any()


if __name__ == "__main__":
    main()
