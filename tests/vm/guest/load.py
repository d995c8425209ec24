"""Drives a witness (witness.py) that may have a third of the memory it needs, and hears from it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tests.vm.guest.witness
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S, group

WITNESS = tests.vm.guest.witness.__file__
PAGES_A_MIB = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """What a witness saw since it last told."""

    accesses: int
    wrong: int
    stall_s: float  # the longest single access
    failed: int = 0  # of `mourn`: pages that could not be read


class Load:
    """A running witness in a cgroup of its own."""

    def __init__(self, folder: Path, *, pages: int, limit: str, name: str, locked: bool = False) -> None:
        self._output = folder / f"{name}.out"
        cgroup = group(name, "memory.max", limit)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-IS", WITNESS, str(pages), *(["locked"] if locked else [])],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        (cgroup / "cgroup.procs").write_text(str(self.process.pid))

    def wait_filled(self, limit_s: float = LIMIT_S) -> None:
        """Until it has written all its pages; most of them are out then."""
        until(self.is_filled, what="the witness's pages", deadline_s=limit_s, every_s=0.2)

    def is_filled(self) -> bool:
        """It has written all its pages."""
        return self._lines() >= 1

    def tell(self, limit_s: float = LIMIT_S) -> Testimony:
        """Has it read every page, and returns what it saw since it was last asked."""
        return self._ask("tell", limit_s)

    def so_far(self, limit_s: float = LIMIT_S) -> Testimony:
        """What it saw since it was last asked, without another look at all pages."""
        return self._ask("so far", limit_s)

    def rest(self, limit_s: float = LIMIT_S) -> Testimony:
        """The same; it touches nothing until it is asked again."""
        return self._ask("rest", limit_s)

    def mourn(self, limit_s: float = LIMIT_S) -> Testimony:
        """Has it read every page where some are lost, and returns how many; it touches nothing afterwards."""
        return self._ask("mourn", limit_s)

    def is_alive(self) -> bool:
        """It has not ended."""
        return self.process.poll() is None

    def end(self) -> None:
        """Ends it, whatever it does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _ask(self, word: str, limit_s: float) -> Testimony:
        before = self._lines()
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()
        until(lambda: self._lines() > before or not self.is_alive(), what="its word", deadline_s=limit_s, every_s=0.1)
        assert self.is_alive(), f"the witness ended: {self._output.read_text()[-500:]}"
        return Testimony(**json.loads(self._output.read_text().splitlines()[-1]))

    def _lines(self) -> int:
        return self._output.read_text().count("\n")


@contextmanager
def load(
    folder: Path, *, limit_mib: int = 12, times: int = 3, name: str = "witness", locked: bool = False
) -> Iterator[Load]:
    """A witness whose pages are all written, and which goes on reading and writing them; `locked` to `mourn`."""
    pages = times * limit_mib * PAGES_A_MIB
    one = Load(folder, pages=pages, limit=str(limit_mib << 20), name=name, locked=locked)
    try:
        one.wait_filled()
        yield one
    finally:
        one.end()
