"""The promise: at 0.8 of what a plan of measured latencies serves, at most one request in a hundred violates."""

import statistics
from collections.abc import Sequence

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_most, bars
from benchmarks.serving.deployed import VIOLATED_MAX, WHO_GOES_FIRST, outcomes, play, prepared
from benchmarks.serving.machine_noise import TRIED_HEADER, TURNS, Tried, noisy_note, spread
from farside.cli.demo.serving_load import OUTCOMES, Result, poisson
from farside.cli.demo.serving_rig import Mix, Running

SHARE, SECONDS, QUICK_SECONDS = 0.8, 120.0, 20.0
ALL = "all"


def measure_promise(*, quick: bool) -> Figure:
    """Turns, each with a deployment and requests of its own."""
    folder, mix = prepared(quick=quick)
    seconds = QUICK_SECONDS if quick else SECONDS
    rates = mix.rates(SHARE)
    turns: list[Tried[Result]] = []
    for seed in range(1, TURNS + 1):
        with Running(folder, mix, rates) as running:
            turns.append(play(running, poisson(rates, seconds, seed)))
    return promise_figure(mix, turns, seconds)


def promise_figure(mix: Mix, turns: Sequence[Tried[Result]], seconds: float) -> Figure:
    """The figure, of turns of so many seconds at SHARE of a mix."""
    results = [turn.result for turn in turns]
    rates = mix.rates(SHARE)
    violated_pct = [100 * one.violated_share() for one in results]
    return Figure(
        key="serving-promise",
        title="What a plan promises",
        source="glet 5.2",
        tables=(
            Table(
                caption=f"Medians of {len(turns)} turns of {seconds:g} s of Poisson requests at {SHARE:g} of the "
                "planned maximum",
                header=("model", "SLO ms", "requests/s", "violated %", "least", "most", "p99 ms", "p99 least",
                        "p99 most"),
                rows=(
                    *(_row(model, f"{mix.slo_ms[model]:g}", rates[model], results, model) for model in sorted(rates)),
                    _row(ALL, "-", sum(rates.values()), results),
                ),
            ),
            Table(
                caption="Turns",
                header=("turn", *OUTCOMES, "violated %", *TRIED_HEADER),
                rows=tuple(
                    (f"{at}", *outcomes(turn.result), f"{100 * turn.result.violated_share():.2f}", *turn.cells())
                    for at, turn in enumerate(turns, 1)
                ),
            ),
            bars(at_most("violated, %", statistics.median(violated_pct), 100 * VIOLATED_MAX)),
        ),
        notes=(
            f"The client was {1000 * max(one.behind_s for one in results):.0f} ms behind at worst.",
            noisy_note(turns),
            WHO_GOES_FIRST,
        ),
    )  # fmt: skip


def _row(name: str, slo_ms: str, rate: float, results: Sequence[Result], model: str = "") -> Row:
    violated_pct = [100 * one.violated_share(model) for one in results]
    p99_ms = [one.latency_ms(0.99, model) for one in results]
    return name, slo_ms, f"{rate:.1f}", *spread(violated_pct, ".2f"), *spread(p99_ms, ".1f")
