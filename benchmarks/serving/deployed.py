"""Models that were measured once for all parts of a run, and loads on them."""

import asyncio
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.serving.machine_noise import Noise, Tried, tried
from farside.agent.serving.partition.cpu import CAPACITY_PCT
from farside.cli.demo.serving_load import OUTCOMES, OpenLoop, Result, Target
from farside.cli.demo.serving_rig import Mix, measure, mix_of

MINUTES, QUICK_MINUTES = 4.0, 1.5
VIOLATED_MAX = 0.01
WHO_GOES_FIRST = "Where they may, the client goes before servers, our front before executors."

_kept: list["tempfile.TemporaryDirectory[str]"] = []


def kept_folder() -> Path:
    """A folder that is there until this program ends."""
    _kept.append(tempfile.TemporaryDirectory(prefix="serving-"))
    return Path(_kept[-1].name)


class Server(Protocol):
    """What requests are sent to: a process that this one started, with all that it has started below it."""

    @property
    def http(self) -> int:
        """Port of its HTTP door, on loopback."""
        ...

    def targets(self) -> Mapping[str, Target]:
        """Its models."""
        ...


@functools.cache
def prepared(*, quick: bool, capacity_pct: int = CAPACITY_PCT) -> tuple[Path, Mix]:
    """Three models in a folder, with a profile that was measured now, and the largest rates that have a plan.

    ``capacity_pct``: so much of the cores is the models'.
    """
    folder = kept_folder()
    tables = measure(folder, minutes=QUICK_MINUTES if quick else MINUTES, capacity_pct=capacity_pct)
    return folder, mix_of(tables)


def play(server: Server, times: Sequence[tuple[float, str]]) -> Tried[Result]:
    """What became of requests at these times, sent again where the machine was not ours."""
    client = OpenLoop("127.0.0.1", server.http, server.targets())
    return asyncio.run(tried(lambda: client.run(times)))


def outcomes(result: Result, model: str = "") -> tuple[str, ...]:
    """A count for each outcome."""
    counts = result.counts(model)
    return tuple(f"{counts[one]:,}" for one in OUTCOMES)


def machine_note(machine: Noise) -> str:
    """What the machine did meanwhile."""
    return (
        f"Of all cores' time the host took {100 * machine.steal:.0f} %, and other programs "
        f"{100 * machine.foreign:.0f} %. {WHO_GOES_FIRST}"
    )
