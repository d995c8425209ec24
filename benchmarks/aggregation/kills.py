"""``python -m benchmarks.aggregation.kills``: an Aggregator is killed at random moments while a job trains by it.

One member by shared memory, one by TCP. What is measured is the time from the kill to the results of that step at all
members; each result is compared with one process's, bit for bit. The exit code is 1 above a bar, or after a wrong bit.
The figures go into the result file, those of ``--stop`` beside the others.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.aggregation.record import RESULTS, Record, keep
from benchmarks.figure import Figure, Table, as_text
from tests.aggregation.service import service, source, training
from tests.aggregation.test_kills import kill_at_moments
from tests.support.ports import free_port

MOMENTS = 20
MEDIAN_BAR_S, WORST_BAR_S = 2.0, 5.0
STOPPED_MEDIAN_BAR_S = 4.0
"""A server that hangs is seen after 2 s."""
RULES = ("mean", "sgd", "adam", "sum")
"""The last as programs on NumPy have it, co-located ones too: they ask for what was summed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregation.kills", description=__doc__)
    parser.add_argument("--moments", type=int, default=MOMENTS, help="kills for each rule; default: %(default)s")
    parser.add_argument("--stop", action="store_true", help="stop the server (SIGSTOP) instead of killing it")
    parser.add_argument("--seed", type=int, default=1, help="of the moments; default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE", default=RESULTS, help="default: %(default)s")
    options = parser.parse_args(arguments)
    number = signal.SIGSTOP if options.stop else signal.SIGKILL
    seed = random.Random(options.seed).randrange(1 << 30)
    took_s = {rule: _measure(rule, number, options.moments, seed) for rule in RULES}
    figure = figure_of(took_s, is_stopped=options.stop)
    print(as_text(figure))
    record = Record()
    record.add(figure.key, figure)
    keep(record, options.output, {}, module="benchmarks.aggregation.kills")
    return 0 if all(row[-1] == "yes" for row in figure.tables[0].rows) else 1


def figure_of(took_s: Mapping[str, Sequence[float]], *, is_stopped: bool) -> Figure:
    """The table, a row a rule: seconds from each kill to the end of the next step."""
    rows, median_bar_s = [], STOPPED_MEDIAN_BAR_S if is_stopped else MEDIAN_BAR_S
    for rule, times_s in took_s.items():
        median_s, worst_s = statistics.median(times_s), max(times_s)
        is_met = median_s <= median_bar_s and worst_s <= WORST_BAR_S
        rows.append((rule, str(len(times_s)), f"{median_s:.3f} s", f"{worst_s:.3f} s", "yes" if is_met else "no"))
    what = "stopped (SIGSTOP)" if is_stopped else "killed (SIGKILL)"
    return Figure(
        key="stops" if is_stopped else "kills",
        title=f"The server is {what} at random moments; every result is one process's, bit for bit",
        source="not in the paper",
        tables=(
            Table(
                caption=f"Time to the end of the next step; bars: median {median_bar_s:g} s, worst {WORST_BAR_S:g} s",
                header=("rule", "times", "median", "worst", "met"),
                rows=tuple(rows),
            ),
        ),
    )


def _measure(rule: str, number: signal.Signals, moments: int, seed: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        with service(folder, tcp_port=free_port()) as one:
            sources = [source(folder, [one.unix], 0), source(folder, [one.tcp], 1)]
            with training(sources, rule, hold=rule == "sum") as job:
                return kill_at_moments(job, lambda: one.kill_server(number), moments=moments, seed=seed)


if __name__ == "__main__":
    sys.exit(main())
