"""``python -m benchmarks.aggregation``: our aggregation beside gloo and ps-lite, in one run.

Two members, and one Aggregator or server, each a process of its own, on loopback. In each round the systems take turns;
a figure is the median over the rounds, a ratio is one within a round. CPU seconds are those of all of a system's
processes. gloo has no server: each of its two ranks sends half of what a server's member does.

Without any of the parts' options, exchanges and timer jobs are measured. A part that is not measured keeps its figures.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.aggregation import peers
from benchmarks.aggregation.group import Farside, Gloo, Group, PsLite
from benchmarks.aggregation.judge import bars_table, cpu_table, speed_table
from benchmarks.aggregation.measure import Systems, exchanges
from benchmarks.aggregation.moving import move
from benchmarks.aggregation.plan import BARS, GLOO, OURS, PS_LITE, workloads
from benchmarks.aggregation.record import RESULTS, Record, keep
from benchmarks.aggregation.round_trip import measure_round_trip
from benchmarks.aggregation.sharing import share
from benchmarks.aggregation.training import train
from benchmarks.figure import Figure, as_text
from benchmarks.load import BenchmarkError
from benchmarks.process import free_port

ROUNDS, QUICK_ROUNDS = 7, 2
TARGET_S, QUICK_TARGET_S = 0.25, 0.02
PEERS = (GLOO, PS_LITE)
# Shown beside, and judged by nobody: MXNet's engine costs time of its own.
ANOTHER_DAY = (
    "dmlc's ps-lite by a client of its own, on another and quieter day: 211 to 264 us at 4 KB, 246 to 375 us at 64 KB, "
    "0.74 to 1.07 GB/s at 1 MB, 0.38 to 0.58 at 16 MB, 0.13 to 0.17 at 100 MB",
    "byteps's server on that day: 0.45 GB/s at 1 MB, 0.34 at 16 MB, 0.15 at 100 MB",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregation", description=__doc__)
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}; quick: {QUICK_ROUNDS}")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, or none; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small exchanges alone, in seconds")
    parser.add_argument("--exchanges", action="store_true", help="the part: all sizes and BERT-base's tensors")
    parser.add_argument("--timers", action="store_true", help="the part: AlexNet and BERT-base, computed by a timer")
    parser.add_argument("--sharing", action="store_true", help="the part: two jobs on one Aggregator, and an idle one")
    parser.add_argument("--moving", action="store_true", help="the part: all chunks of a job move while it trains")
    parser.add_argument("--output", type=Path, metavar="FILE", default=RESULTS, help="default: %(default)s")
    parser.add_argument("--round-trip", action="store_true", help="the part: the smallest exchange beside its floor")
    options = parser.parse_args(arguments)
    wanted = [name for name in options.peers.split(",") if name and name != "none"]
    if unknown := sorted({*wanted} - {*PEERS}):
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    every = not (options.exchanges or options.timers or options.sharing or options.moving or options.round_trip)
    record = Record()
    begun_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aggregation-")))
        ours = Farside(sys.executable, folder)
        stack.callback(ours.close)
        systems = _started(ours, wanted if every or options.exchanges or options.timers else [], folder, stack)
        if options.exchanges or every:
            record.add("exchanges", _exchanges(systems, rounds, is_quick=options.quick))
        if options.timers or (every and not options.quick):
            record.add("timers", train(systems, rounds))
        if options.sharing:
            record.add("sharing", share(ours, rounds))
        if options.round_trip or (every and not options.quick):
            record.add("round_trip", measure_round_trip(ours, rounds))
        if options.moving:
            record.add("moving", move(folder, rounds))
        failures = dict(systems.failures)
    for figure in record.figures.values():
        print(as_text(figure), end="\n\n")
    for name, why in failures.items():
        print(f"without {name}: {why}")
    print(f"{time.monotonic() - begun_s:.0f} s")
    if not options.quick:
        keep(record, options.output, failures)
    return 0


def _started(ours: Farside, wanted: Sequence[str], folder: Path, stack: ExitStack) -> Systems:
    """Ours under its three names, and the peers that can be had."""
    starts: dict[str, Callable[[], Group]] = {
        GLOO: lambda: Gloo(peers.gloo_python(), folder),
        PS_LITE: lambda: PsLite(peers.pslite_python(), folder, free_port()),
    }
    groups: dict[str, Group] = dict.fromkeys(OURS, ours)
    failures: dict[str, str] = {}
    for name in wanted:
        try:
            groups[name] = starts[name]()
            stack.callback(groups[name].close)
        except BenchmarkError as error:
            failures[name] = str(error)
            print(f"benchmarks: {name} is left out: {error}", file=sys.stderr)
    made = Systems(groups)
    made.failures.update(failures)
    return made


def _exchanges(systems: Systems, rounds: int, *, is_quick: bool) -> Figure:
    exchanged = workloads(is_quick=is_quick)
    names = [*OURS, *PEERS]
    samples = list(exchanges(systems, exchanged, rounds, QUICK_TARGET_S if is_quick else TARGET_S))
    columns = [one.name for one in exchanged]
    return Figure(
        key="exchanges",
        title="Aggregation of one iteration's gradients, two members",
        source=f"{rounds} rounds",
        tables=(
            speed_table(samples, names, columns),
            cpu_table(samples, names, columns),
            bars_table(samples, BARS),
        ),
        notes=ANOTHER_DAY,
    )


if __name__ == "__main__":
    sys.exit(main())
