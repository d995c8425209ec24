"""When a server may be measured: its pages are where they are to be, and nothing is left over from the last load."""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.load import BenchmarkError, fill, run_load
from benchmarks.result import Point, Sample
from benchmarks.server import Server

SETTLE_S = 60.0
QUIET_S = 5.0
SETTLE_PAUSE_S = 1.0  # the activity average moves once a second


def fill_and_settle(server: Server, program: Path) -> None:
    """Writes every page until all are in remote memory.

    Raises:
        BenchmarkError: They are not after `SETTLE_S`.
    """
    deadline_s = time.monotonic() + SETTLE_S
    fill(program, server.socket, export=server.export)
    while not server.is_settled():
        # What was written before its slab was leased stays where it was until it is written again, as in the paper.
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"{server.name}: not all pages are in remote memory after {SETTLE_S:.0f} s")
        time.sleep(SETTLE_PAUSE_S)
        fill(program, server.socket, export=server.export)


def wait_until_quiet(server: Server) -> None:
    """Waits for what a server still has to do: it would be done at the expense of the one that is measured next."""
    deadline_s = time.monotonic() + QUIET_S
    while not server.is_quiet() and time.monotonic() < deadline_s:
        time.sleep(0.02)


def measured(
    program: Path,
    servers: Mapping[str, Server],
    turns: Iterable[tuple[int, Point, str]],
    *,
    seconds: float,
    warmup_s: float,
) -> Iterator[Sample]:
    """A sample for each turn: a repetition, a load, and the name of a server, which is quiet again before the next."""
    for repetition, point, name in turns:
        server = servers[name]
        sample = run_load(
            program, server.socket, point, export=server.export, seconds=seconds, warmup_s=warmup_s,
            seed=repetition + 1, stamp=server.stamp, roles=server.roles, server=name, repetition=repetition,
        )  # fmt: skip
        wait_until_quiet(server)
        yield sample
