"""Overload: what is still answered in time at 1.5 and 2 times the highest rate that passes."""

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, bars
from benchmarks.serving.deployed import VIOLATED_MAX, machine_note, play, prepared
from farside.cli.demo.serving_load import poisson
from farside.cli.demo.serving_rig import Running

SHARES = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
TIMES = (1.5, 2.0)
SECONDS, QUICK_SECONDS = 30.0, 8.0
KEPT_MIN = 0.9
# A model starves where not even so many of its requests are answered in time.
STARVED_PCT = 5.0


def measure_overload(*, quick: bool) -> Figure:
    """Rates upwards until one fails, then more than the last that passed."""
    folder, mix = prepared(quick=quick)
    seconds = QUICK_SECONDS if quick else SECONDS
    rows: list[tuple[str, ...]] = []
    best, passing, notes = 0.0, 0.0, list[str]()
    judged: list[Row] = []
    with Running(folder, mix, mix.rates(1.0)) as running:
        for share in (*SHARES, *TIMES):
            is_over = len(rows) >= len(SHARES) or (rows and not passing and share in TIMES)
            rates = mix.rates(share * passing if share in TIMES and is_over else share)
            result, machine = play(running, poisson(rates, seconds, int(100 * share)))
            goodput, violated = result.goodput(seconds), result.violated_share()
            served = [result.counts(one)["met"] / max(1, result.counts(one).total()) for one in rates]
            best = max(best, goodput)
            if not is_over and violated <= VIOLATED_MAX:
                passing = share
            rows.append(
                (f"{share:g} x passing" if is_over else f"{share:g}", f"{sum(rates.values()):.1f}", f"{goodput:.1f}",
                 f"{100 * violated:.1f}", f"{100 * min(served):.0f}", f"{goodput / best:.2f}")
            )  # fmt: skip
            notes.append(machine_note(machine))
            if is_over:
                judged.append(at_least(f"in time at {share:g} x passing, of the best", goodput / best, KEPT_MIN))
                judged.append(
                    at_least(f"worst model in time at {share:g} x passing, %", 100 * min(served), STARVED_PCT)
                )
    return Figure(
        key="serving-overload",
        title="Overload",
        source="glet 5.2",
        tables=(
            Table(
                caption=f"{seconds:g} s each; rates are shares of the planned maximum, then times what passed",
                header=("rate", "requests/s", "in time/s", "violated %", "worst model in time %", "of the best"),
                rows=tuple(rows),
            ),
            bars(at_least("passed, of the planned maximum", passing, SHARES[0]), *judged),
        ),
        notes=(f"{passing:g} of the planned maximum passed; {KEPT_MIN:g} of the best is to be kept.", notes[-1]),
    )
