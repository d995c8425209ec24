"""`farside executor` as processes, for tests."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farside import admin
from farside.errors import PeerError
from tests.aggregation.service import write_key
from tests.support.ports import free_port
from tests.support.waiting import until


class Executor:
    """One `farside executor`; who gives turns is a process that its parent forks."""

    def __init__(self, folder: Path, *words: object, name: str = "x") -> None:
        self.socket, self._admin = folder / f"{name}.sock", folder / f"{name}.admin"
        argv = [sys.executable, "-m", "farside", "executor", "--socket", self.socket, "--admin-socket", self._admin]
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([*map(str, argv), *map(str, words)], stderr=log)

    def status(self) -> dict[str, Any]:
        """What it says of itself; empty while nobody answers."""
        try:
            told: dict[str, Any] = admin.call(self._admin, "status", timeout_s=5)
        except PeerError:
            return {}
        return told

    def join(self, group: dict[str, Any] | None) -> None:
        """As an agent says: it is in this group of several nodes now, or in none."""
        admin.call(self._admin, "group", timeout_s=10, group=group)

    def trace(self) -> list[list[Any]]:
        """Turns that are over: job, position, phase, asked, granted and done in nanoseconds, whether with a lease."""
        rows: list[list[Any]] = []
        while True:
            more = admin.call(self._admin, "trace", first=len(rows))["rows"]
            if not more:
                return rows
            rows += more

    def wait_ready(self) -> dict[str, Any]:
        """Its status, once there is one."""
        return until(self.status, what="an executor's status")

    def kill(self) -> None:
        """Kills the process that gives turns."""
        os.kill(int(self.wait_ready()["pid"]), signal.SIGKILL)

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()


@contextlib.contextmanager
def executor(folder: Path, *words: object, name: str = "x") -> Iterator[Executor]:
    """A running one."""
    made = Executor(folder, *words, name=name)
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.terminate()
        try:
            made.process.wait(timeout=60)
        finally:
            made.process.kill()
            made.process.wait()


def overlapping(rows: list[list[Any]], phases: tuple[str, ...]) -> list[tuple[list[Any], list[Any]]]:
    """Pairs of turns with leases, of these phases, that were under way at the same time."""
    turns = sorted((row for row in rows if row[2] in phases and row[6]), key=lambda row: int(row[4]))
    return [(one, other) for one, other in itertools.pairwise(turns) if other[4] < one[5]]


def two_nodes(folder: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The words of the two executors of a group."""
    key, where = write_key(folder), f"127.0.0.1:{free_port()}"
    first = ("--node", "one", "--nodes", "one,two", "--group-listen", where, "--key-file", key)
    return first, ("--node", "two", "--synchronizer", where, "--key-file", key)
