"""``python -m benchmarks.sim_speed``: how fast the scheduler and its simulator are, into docs/benchmarks-simulator.md.

Parts: ``traces`` a long trace under each policy; ``growth`` synthetic jobs from a thousand to a million; ``shapes``
traces that have made schedulers quadratic; ``cycles`` one cycle over a long queue and many machines; ``peers`` a
published simulator on the same workload. A run of some parts leaves the others in the results file as they were.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import sim_peer
from benchmarks.machine import this_commit, this_machine
from benchmarks.sim_render import render
from benchmarks.sim_result import CycleCase, CycleResult, Measured, SimRun, TraceCase, TraceResult, load, save
from benchmarks.sim_run import ROOT, run_case
from farside.errors import FarsideError

RESULTS = Path(__file__).parent / "results" / "simulator.json"
DOCUMENT = ROOT / "docs" / "benchmarks-simulator.md"
POLICIES = ("fifo", "srsf", "las", "gittins")
LONG_TRACE_JOBS = 45_000
GROWTH = (1_000, 10_000, 100_000, 1_000_000)
GROWTH_GPUS = 128
SHAPES = ("at once", "at once, 0 s", "at once, no two alike")
SHAPE_JOBS = (50_000, 200_000)
QUEUES = (8_000, 4_000, 2_000, 1_000)
NODES = (10_000, 1_000)
PEER_JOBS = (1_000, 4_000, 16_000)
OFTEN_JOBS = 100_000  # up to so many are run as often as was asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    options = _parse(arguments)
    path = Path(options.output or RESULTS)
    try:
        if not options.render:
            for run in _measure(options, path):
                save(run, path)  # after each case: what is measured is not lost when somebody loses patience
            print(f"wrote {path}")
        if options.render or not options.output:
            DOCUMENT.write_text(render(load(path), source="benchmarks/results/simulator.json"))
            print(f"wrote {DOCUMENT}")
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sim_speed", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of: %(default)s")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--trace", metavar="FILE", help="a real trace beside the generated one, all of it in one pool")
    parser.add_argument("--trace-gpus", type=int, default=480, metavar="N", help="of its cluster; default: %(default)s")
    parser.add_argument("--most-jobs", type=int, default=GROWTH[-1], metavar="N", help="leave out longer traces")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="of each shorter run, the least is kept")
    parser.add_argument("--output", metavar="FILE", help="write the JSON here, and no document")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the document from the JSON")
    options = parser.parse_args(arguments)
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"no part called {', '.join(sorted(unknown))}")
    return options


def _measure(options: argparse.Namespace, path: Path) -> Iterator[SimRun]:
    run = replace(load(path), machine=this_machine()) if path.exists() else SimRun(machine=this_machine())
    for part in options.parts.split(","):
        measured = Measured(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(["python", "-m", "benchmarks.sim_speed", "--parts", part, *_public(options)]),
            commit=this_commit(),
            load_before=this_machine().load_before,
            repeats=options.repeats,
        )
        run = replace(run, measured={**run.measured, part: measured})
        for run in PARTS[part](run, options):  # noqa: B020 - each part goes on from where the last one ended
            yield run


def _public(options: argparse.Namespace) -> list[str]:
    # Where somebody keeps a trace is nobody's business.
    trace = ["--trace", Path(options.trace).name] if options.trace else []
    return [*trace, *(["--repeats", str(options.repeats)] if options.repeats > 1 else [])]


def _traces(run: SimRun, options: argparse.Namespace) -> Iterator[SimRun]:
    cases = [TraceCase(policy=policy, jobs=min(LONG_TRACE_JOBS, options.most_jobs)) for policy in _policies(options)]
    if options.trace:
        cases += [
            TraceCase(policy=policy, path=options.trace, gpus=options.trace_gpus) for policy in _policies(options)
        ]
    for one in _traced(cases, options):
        named = replace(one, case=replace(one.case, path=Path(one.case.path).name))
        run = replace(run, traces=_merged(run.traces, named))
        yield run


def _growth(run: SimRun, options: argparse.Namespace) -> Iterator[SimRun]:
    cases = [
        TraceCase(policy=policy, jobs=jobs, gpus=GROWTH_GPUS)
        for jobs in GROWTH
        for policy in _policies(options)
        if jobs <= options.most_jobs
    ]
    for one in _traced(cases, options):
        run = replace(run, growth=_merged(run.growth, one))
        yield run


def _shapes(run: SimRun, options: argparse.Namespace) -> Iterator[SimRun]:
    cases = [
        TraceCase(policy=policy, jobs=jobs, shape=shape)
        for shape in SHAPES
        for policy in _policies(options)
        for jobs in SHAPE_JOBS
        if jobs <= options.most_jobs
    ]
    for one in _traced(cases, options):
        run = replace(run, shapes=_merged(run.shapes, one))
        yield run


def _cycles(run: SimRun, options: argparse.Namespace) -> Iterator[SimRun]:
    for nodes in NODES:
        for queue in QUEUES:
            for policy in _policies(options):
                case = CycleCase(policy=policy, queue=queue, nodes=nodes)
                runs = [run_case(case) for _ in range(options.repeats)]
                figures = min(runs, key=lambda one: one.new_queue_ms + one.median_ms)
                print(
                    f"{nodes} nodes, {queue} wait, {policy}: {figures.median_ms:.1f} ms a cycle,"
                    f" {figures.new_queue_ms:.1f} ms with a new queue",
                    flush=True,
                )
                kept = (one for one in run.cycles if one.case != case)
                run = replace(run, cycles=(*kept, CycleResult(case=case, figures=figures)))
                yield run


def _peers(run: SimRun, options: argparse.Namespace) -> Iterator[SimRun]:
    sizes = [jobs for jobs in PEER_JOBS if jobs <= options.most_jobs]
    with tempfile.TemporaryDirectory(prefix="farside-bench-") as folder:
        for one in sim_peer.measure(sizes, Path(folder)):
            told = one.why_not or f"{one.peer_s:.2f} s, ours {one.ours_s:.2f} s"
            print(f"{one.peer} {one.dispatcher}, {one.jobs} jobs: {told}", flush=True)
            kept = (old for old in run.peers if (old.dispatcher, old.jobs) != (one.dispatcher, one.jobs))
            run = replace(run, peers=(*kept, one))
            yield run


PARTS: Mapping[str, Callable[[SimRun, argparse.Namespace], Iterator[SimRun]]] = {
    "traces": _traces,
    "growth": _growth,
    "shapes": _shapes,
    "cycles": _cycles,
    "peers": _peers,
}


def _policies(options: argparse.Namespace) -> list[str]:
    return str(options.policies).split(",")


def _traced(cases: Sequence[TraceCase], options: argparse.Namespace) -> Iterator[TraceResult]:
    for case in cases:
        repeats = options.repeats if case.jobs <= OFTEN_JOBS else 1
        # What else the machine does can only add to CPU seconds.
        figures = min((run_case(case) for _ in range(repeats)), key=lambda one: one.cpu_s)
        name = f"{Path(case.path).name or case.shape}, {figures.jobs} jobs, {case.policy}"
        print(f"{name}: {figures.cpu_s:.2f} s, {figures.peak_mib:.0f} MiB", flush=True)
        yield TraceResult(case=case, figures=figures)


def _merged(before: Sequence[TraceResult], new: TraceResult) -> tuple[TraceResult, ...]:
    return (*(one for one in before if one.case != new.case), new)


if __name__ == "__main__":
    sys.exit(main())
