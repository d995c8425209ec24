"""Overload: what is still answered in time at 1.5 and 2 times the highest rate that passes.

Front and client take cores, too, and more of them at higher rates. As it ships, a deployment leaves them 10 % of the
cores; what they take beyond that, executors lose. So the same is measured where they are left 40 %: what is lost then
is lost by the rules.
"""

import psutil

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, bars
from benchmarks.serving.deployed import VIOLATED_MAX, machine_note, play, prepared
from farside.agent.serving.partition.cpu import CAPACITY_PCT
from farside.cli.demo.serving_load import poisson
from farside.cli.demo.serving_rig import Running

SHARES = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
TIMES = (1.5, 2.0)
SECONDS, QUICK_SECONDS = 30.0, 8.0
KEPT_MIN = 0.9
CAPACITIES_PCT = (CAPACITY_PCT, 60)
# A model starves where not even so many of its requests are answered in time.
STARVED_PCT = 5.0


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
                        "worst model in time %", "of the best", "cores of front and client"),
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
    best, passing, machine = 0.0, 0.0, ""
    with Running(folder, mix, mix.rates(1.0), extra=(f"capacity_pct = {capacity_pct}",)) as running:
        for share in (*SHARES, *TIMES):
            is_over = len(rows) >= len(SHARES)
            if is_over and not passing:
                break
            rates = mix.rates(share * passing if is_over else share)
            before_s = _cpu_s(running)
            result, found = play(running, poisson(rates, seconds, int(100 * share)))
            beside = (_cpu_s(running) - before_s) / seconds
            goodput, violated = result.goodput(seconds), result.violated_share()
            served = [result.counts(one)["met"] / max(1, result.counts(one).total()) for one in rates]
            best, machine = max(best, goodput), machine_note(found)
            if not is_over and violated <= VIOLATED_MAX:
                passing = share
            rows.append(
                (f"{capacity_pct}", f"{share:g} x passing" if is_over else f"{share:g}", f"{sum(rates.values()):.1f}",
                 f"{goodput:.1f}", f"{100 * violated:.1f}", f"{100 * min(served):.0f}", f"{goodput / best:.2f}",
                 f"{beside:.2f}")
            )  # fmt: skip
            if is_over:
                what = f"at {share:g} x passing, models with {capacity_pct} % of the cores"
                judged.append(at_least(f"in time {what}, of the best", goodput / best, KEPT_MIN))
                judged.append(at_least(f"worst model in time {what}, %", 100 * min(served), STARVED_PCT))
    judged.append(at_least(f"passed, of the planned maximum with {capacity_pct} %", passing, SHARES[0]))
    notes.append(f"With {capacity_pct} % {passing:g} of the planned maximum passed. {machine}")
    return rows


def _cpu_s(running: Running) -> float:
    """CPU seconds of the front and of this program, which is the client."""
    own = psutil.Process().cpu_times()
    return running.cpu_s() + own.user + own.system
