"""Keeps programs' files in memory, so that what pages is data: on one disk with the swap file, both would be slow.

    python3 -m benchmarks.apps.pin PROGRAM...     # those, and what this Python and the workloads have mapped

Says how much, and ends with its input. The files are charged to this process's cgroup, not to the workloads'.
"""

import ctypes
import mmap
import sqlite3
import subprocess
import sys
from pathlib import Path

from benchmarks.apps import page_rank

MAP_LOCKED = 0x2000  # not in Python 3.11's mmap
USED = (sqlite3, page_rank)  # imported for what it maps


def mapped_files(maps: str) -> set[Path]:
    """Files of a /proc/PID/maps."""
    return {
        Path(line.split(maxsplit=5)[5])
        for line in maps.splitlines()
        if len(line.split(maxsplit=5)) == 6 and "/" in line
    }


def libraries(program: str) -> set[Path]:
    """The program and what it is linked to."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    words = [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
    return {Path(program), *map(Path, words)}


def pin(files: set[Path]) -> list[mmap.mmap]:
    """Maps them, locked."""
    held = []
    for path in sorted(files):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | MAP_LOCKED
                held.append(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ))
    return held


def main() -> None:
    """Until the end of standard input."""
    assert all(USED)
    ctypes.CDLL(None)  # the loader and libc are mapped in any case
    files = mapped_files(Path("/proc/self/maps").read_text())
    held = pin(files.union(*(libraries(program) for program in sys.argv[1:])))
    print(f"pinned {sum(map(len, held)) >> 20} MiB", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
