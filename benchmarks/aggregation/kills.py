"""``python -m benchmarks.aggregation.kills``: an Aggregator is killed at random moments while a job trains by it.

One member by shared memory, one by TCP. What is measured is the time from the kill to the results of that step at all
members; each result is compared with one process's, bit for bit. The exit code is 1 above a bar, or after a wrong bit.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.aggregation.service import service, source, training
from tests.aggregation.test_kills import kill_at_moments
from tests.support.ports import free_port

MOMENTS = 20
MEDIAN_BAR_S, WORST_BAR_S = 2.0, 5.0
RULES = ("mean", "sgd", "adam")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregation.kills", description=__doc__)
    parser.add_argument("--moments", type=int, default=MOMENTS, help="kills for each rule; default: %(default)s")
    parser.add_argument("--stop", action="store_true", help="stop the server (SIGSTOP) instead of killing it")
    parser.add_argument("--seed", type=int, default=1, help="of the moments; default: %(default)s")
    options = parser.parse_args(arguments)
    number = signal.SIGSTOP if options.stop else signal.SIGKILL
    is_good = True
    for rule in RULES:
        took_s = _measure(rule, number, options.moments, random.Random(options.seed).randrange(1 << 30))
        median_s, worst_s = statistics.median(took_s), max(took_s)
        is_good = is_good and median_s <= MEDIAN_BAR_S and worst_s <= WORST_BAR_S
        print(f"{rule:5} {len(took_s)} kills, all results equal; next step: ", end="")
        print(f"median {median_s:.3f} s, worst {worst_s:.3f} s")
    print(f"bars: median {MEDIAN_BAR_S:g} s, worst {WORST_BAR_S:g} s: {'met' if is_good else 'NOT met'}")
    return 0 if is_good else 1


def _measure(rule: str, number: signal.Signals, moments: int, seed: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        with service(folder, tcp_port=free_port()) as one:
            sources = [source(folder, [one.unix], 0), source(folder, [one.tcp], 1)]
            with training(sources, rule) as job:
                return kill_at_moments(job, lambda: one.kill_server(number), moments=moments, seed=seed)


if __name__ == "__main__":
    sys.exit(main())
