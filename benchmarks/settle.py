"""When a server may be measured: its pages are where they are to be, and nothing is left over from the last load."""

import time
from pathlib import Path

from benchmarks.load import BenchmarkError, fill
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
