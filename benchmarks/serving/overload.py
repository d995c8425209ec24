"""Overload: what is still answered in time at 1.5 and 2 times the highest rate that passes.

Front and client take cores, too, and more of them at higher rates. As it ships, a deployment leaves them 10 % of the
cores; what they take beyond that, executors lose. So the same is measured where they are left 40 %: what is lost then
is lost by the rules.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, bars
from benchmarks.serving.deployed import VIOLATED_MAX, WHO_GOES_FIRST, prepared
from benchmarks.serving.machine_noise import TRIED_HEADER, Tried, noisy_note, tried
from farside.agent.serving.partition.cpu import CAPACITY_PCT
from farside.cli.demo.serving_load import OpenLoop, Result, poisson
from farside.cli.demo.serving_rig import Running

SHARES = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
TIMES = (1.5, 2.0)
SECONDS, QUICK_SECONDS = 30.0, 8.0
KEPT_MIN = 0.9
CAPACITIES_PCT = (CAPACITY_PCT, 60)
# A model starves where not even so many of its requests are answered in time.
STARVED_PCT = 5.0


class _Run(NamedTuple):
    """What became of requests, and CPU seconds of front and client."""

    result: Result
    beside_s: float


def measure_overload(*, quick: bool) -> Figure:
    """Rates upwards until one fails, then more than the last that passed, with each capacity."""
    rows: list[Row] = []
    judged: list[Row] = []
    notes: list[str] = []
    for capacity_pct in CAPACITIES_PCT:
        rows += _rates(capacity_pct, judged, notes, quick=quick)
    seconds = QUICK_SECONDS if quick else SECONDS
    return Figure(
        key="serving-overload",
        title="Overload",
        source="glet 5.2",
        tables=(
            Table(
                caption=f"{seconds:g} s each; rates are shares of the planned maximum, then times what passed",
                header=("models' part of cores %", "rate", "requests/s", "in time/s", "violated %",
                        "worst model in time %", "of the best", "cores of front and client", *TRIED_HEADER),
                rows=tuple(rows),
            ),
            bars(*judged),
        ),
        notes=tuple(notes),
    )  # fmt: skip


def _rates(capacity_pct: int, judged: list[Row], notes: list[str], *, quick: bool) -> list[Row]:
    folder, mix = prepared(quick=quick, capacity_pct=capacity_pct)
    seconds = QUICK_SECONDS if quick else SECONDS
    rows: list[Row] = []
    best, passing = 0.0, 0.0
    runs: list[Tried[_Run]] = []
    with Running(folder, mix, mix.rates(1.0), extra=(f"capacity_pct = {capacity_pct}",)) as running:
        for share in (*SHARES, *TIMES):
            is_over = len(rows) >= len(SHARES)
            if is_over and not passing:
                break
            rates = mix.rates(share * passing if is_over else share)
            runs.append(_played(running, poisson(rates, seconds, int(100 * share))))
            result, beside_s = runs[-1].result
            goodput, violated = result.goodput(seconds), result.violated_share()
            served = [result.counts(one)["met"] / max(1, result.counts(one).total()) for one in rates]
            best = max(best, goodput)
            if not is_over and violated <= VIOLATED_MAX:
                passing = share
            rows.append(
                (f"{capacity_pct}", f"{share:g} x passing" if is_over else f"{share:g}", f"{sum(rates.values()):.1f}",
                 f"{goodput:.1f}", f"{100 * violated:.1f}", f"{100 * min(served):.0f}", f"{goodput / best:.2f}",
                 f"{beside_s / seconds:.2f}", *runs[-1].cells())
            )  # fmt: skip
            if is_over:
                what = f"at {share:g} x passing, models with {capacity_pct} % of the cores"
                judged.append(at_least(f"in time {what}, of the best", goodput / best, KEPT_MIN))
                judged.append(at_least(f"worst model in time {what}, %", 100 * min(served), STARVED_PCT))
    judged.append(at_least(f"passed, of the planned maximum with {capacity_pct} %", passing, SHARES[0]))
    passed = f"With {capacity_pct} % {passing:g} of the planned maximum passed."
    notes.append(f"{passed} {noisy_note(runs)} {WHO_GOES_FIRST}")
    return rows


def _played(running: Running, times: Sequence[tuple[float, str]]) -> Tried[_Run]:
    """Requests at these times, sent again where the machine was not ours."""
    client = OpenLoop("127.0.0.1", running.http, running.targets())

    async def run() -> _Run:
        before_s = _cpu_s(running)
        result = await client.run(times)
        return _Run(result, _cpu_s(running) - before_s)

    return asyncio.run(tried(run))


def _cpu_s(running: Running) -> float:
    """CPU seconds of the front and of this program, which is the client."""
    own = psutil.Process().cpu_times()
    return running.cpu_s() + own.user + own.system
