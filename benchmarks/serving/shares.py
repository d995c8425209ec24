"""Whether a part of a device gets its share: executors that always have work, beside what the kernel says they used.

A share is the part's CPU time by its cgroup's own account, of what a whole device would have had in that time: the
device's cores times its capacity, without what the host took. Parts are measured alone, then in pairs.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.figure import Figure, Table
from benchmarks.serving.bars import at_most, bars
from benchmarks.serving.machine_noise import TRIED_HEADER, Tried, snapshot, tried
from farside.agent.serving.describe import ModelRequest, describe_models
from farside.agent.serving.measure import BusyExecutor
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.cpu import CpuDriver
from farside.agent.serving.partition.policy import Device
from farside.errors import Unavailable
from farside.serve.sample_models import make_models

PARTS = ((20,), (40,), (60,), (80,), (20, 80), (40, 60))
WINDOWS, WINDOW_S = 5, 2.0
BAR_POINTS = 2.0
MODEL, BATCH = "conv", 32
_WEIGHT = 64  # the quota is measured, not what the scheduler gives to whom while others want the cores


class Measured(NamedTuple):
    """One setting: asked and got of each part in percent, and batches a second."""

    asked: tuple[int, ...]
    got: tuple[float, ...]
    batches_per_s: tuple[float, ...]


def measure_shares(*, quick: bool) -> Figure:
    """All settings.

    Raises:
        Unavailable: This machine has no CPU quotas.
    """
    window_s = WINDOW_S / 4 if quick else WINDOW_S
    if problem := CpuDriver().capabilities().problem:
        raise Unavailable(problem)
    with tempfile.TemporaryDirectory(prefix="shares-") as folder:
        (path,) = make_models(Path(folder), (MODEL,))
        found = asyncio.run(_all(path, window_s))
    return _figure(found, window_s)


async def _all(path: Path, window_s: float) -> list[Tried[Measured]]:
    models = await describe_models([ModelRequest(name=MODEL, path=str(path), max_batch=BATCH)])
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return [await _one(models, cores, parts, window_s) for parts in PARTS]


async def _one(
    models: Sequence[ModelFile], cores: tuple[int, ...], parts: tuple[int, ...], window_s: float
) -> Tried[Measured]:
    driver = CpuDriver(weight=_WEIGHT)
    busy = [BusyExecutor() for _ in parts]
    try:
        for executor, part in zip(busy, parts, strict=True):
            await executor.start(driver.open(Device(cores=cores), part), models, 1)
            executor.begin(MODEL, BATCH)
        for executor in busy:
            while not executor.is_warm:
                await executor.came()
        capacity = driver.capacity_pct / 100
        found = await tried(lambda: _windows(busy, parts, len(cores), capacity, window_s))
        print(f"{'+'.join(map(str, parts))}: {found}", flush=True)
        return found
    finally:
        for executor in busy:
            if hasattr(executor, "executor"):
                await executor.executor.close(within_s=0)


async def _windows(
    busy: Sequence[BusyExecutor], parts: tuple[int, ...], cores: int, capacity: float, window_s: float
) -> Measured:
    """Windows one after the other; the median of each part's shares in them."""
    shares: list[list[float]] = [[] for _ in busy]
    began_s = time.monotonic()
    counts = [len(executor.done) for executor in busy]
    for _ in range(WINDOWS):
        before = snapshot()
        used_s = [_used_s(executor) for executor in busy]
        await asyncio.sleep(window_s)
        after = snapshot()
        had_s = (after.at_s - before.at_s) - (after.steal_s - before.steal_s) / cores
        for at, executor in enumerate(busy):
            shares[at].append(100 * (_used_s(executor) - used_s[at]) / (had_s * capacity))
    took_s = time.monotonic() - began_s
    rates = tuple((len(executor.done) - count) / took_s for executor, count in zip(busy, counts, strict=True))
    return Measured(parts, tuple(map(statistics.median, shares)), rates)


def _used_s(executor: BusyExecutor) -> float:
    measured = executor.executor.measured()
    assert measured is not None, "the driver counts"
    return measured.device_s


def _figure(found: Sequence[Tried[Measured]], window_s: float) -> Figure:
    settings = [one.result for one in found]
    alone = {one.asked[0]: one.batches_per_s[0] for one in settings if len(one.asked) == 1}
    rows = []
    for each in found:
        one = each.result
        for at, asked in enumerate(one.asked):
            beside = f"{one.asked[1 - at]} %" if len(one.asked) > 1 else "-"
            slower = f"{alone[asked] / one.batches_per_s[at]:.2f}" if len(one.asked) > 1 else "-"
            met = "yes" if abs(one.got[at] - asked) <= BAR_POINTS else "no"
            rows.append((f"{asked} %", beside, f"{one.got[at]:.1f} %", met, slower, *each.cells()))
    return Figure(
        key="shares",
        title=f"Shares of a device of CPU cores: {MODEL} in batches of {BATCH}, always busy",
        source=f"medians of {WINDOWS} windows of {window_s:g} s",
        tables=(
            Table(
                caption="Asked and got, and batches a second alone by those beside the other part",
                header=("asked", "beside", "got", "within 2 points", "slower beside it", *TRIED_HEADER),
                rows=tuple(rows),
            ),
            bars(
                at_most(
                    "points off at worst",
                    max(abs(got - asked) for one in settings for got, asked in zip(one.got, one.asked, strict=True)),
                    BAR_POINTS,
                )
            ),
        ),
    )
