"""The promise: at 0.8 of what a plan of measured latencies serves, at most one request in a hundred violates."""

from benchmarks.figure import Figure, Table
from benchmarks.serving.bars import at_most, bars
from benchmarks.serving.deployed import VIOLATED_MAX, machine_note, outcomes, play, prepared
from farside.cli.demo.serving_load import OUTCOMES, poisson
from farside.cli.demo.serving_rig import Running

SHARE, SECONDS, QUICK_SECONDS = 0.8, 120.0, 20.0


def measure_promise(*, quick: bool) -> Figure:
    """One run."""
    folder, mix = prepared(quick=quick)
    seconds = QUICK_SECONDS if quick else SECONDS
    rates = mix.rates(SHARE)
    with Running(folder, mix, rates) as running:
        result, machine = play(running, poisson(rates, seconds, 1))
    rows = tuple(
        (
            model, f"{mix.slo_ms[model]:g}", f"{rates[model]:.1f}", *outcomes(result, model),
            f"{100 * result.violated_share(model):.2f}", f"{result.latency_ms(0.99, model):.1f}",
        )
        for model in sorted(rates)
    )  # fmt: skip
    return Figure(
        key="serving-promise",
        title="What a plan promises",
        source="glet 5.2",
        tables=(
            Table(
                caption=f"{seconds:g} s of Poisson requests at {SHARE:g} of the planned maximum",
                header=("model", "SLO ms", "requests/s", *OUTCOMES, "violated %", "p99 ms"),
                rows=rows,
            ),
            bars(at_most("violated, %", 100 * result.violated_share(), 100 * VIOLATED_MAX)),
        ),
        notes=(
            f"{100 * result.violated_share():.2f} % violated in all; {100 * VIOLATED_MAX:g} % is the most.",
            f"The client was {1000 * result.behind_s:.0f} ms behind at worst.",
            machine_note(machine),
        ),
    )
