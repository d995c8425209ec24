"""``python -m benchmarks``: ours and the peers in one run, into results/*.json and docs/benchmarks.md."""

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import slab_timing
from benchmarks.load import BUILD, BenchmarkError, build_program, run_fio
from benchmarks.machine import this_commit, this_machine
from benchmarks.plan import Plan, alternate, full_plan, quick_plan
from benchmarks.render import render
from benchmarks.result import Point, RecallShare, Run, Sample, SecondOpinion, SlabTiming, load_run, save_run
from benchmarks.server import OPENERS, Server
from benchmarks.settle import fill_and_settle, measured
from benchmarks.target import CLEAR, OURS_TCP, SINGLE_READS, verdicts
from farside.errors import FarsideError

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
REMARKS = Path(__file__).parent / "remarks.md"  # written by people, about the newest committed run
DEVICE_BYTES = 256 << 20


def main(arguments: list[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    options = _parse(arguments)
    try:
        if options.render:
            path = Path(options.render)
            write_document(load_run(path), path)
            return 0
        run = measure(options)
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    path = Path(options.output) if options.output else BUILD / "quick.json" if options.quick else RESULTS / "full.json"
    save_run(run, path)
    print_verdicts(run)
    print(f"wrote {path}")
    if not options.quick and not options.output:
        write_document(run, path)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter loads: about two minutes")
    parser.add_argument("--servers", default=",".join(OPENERS), help="which of: %(default)s")
    parser.add_argument("--no-load", action="store_true", help="only the slab timings")
    parser.add_argument("--no-slabs", action="store_true", help="no slab timings")
    parser.add_argument("--output", help="write the JSON here, and no document")
    parser.add_argument("--render", metavar="JSON", help="measure nothing, write docs/benchmarks.md from this")
    options = parser.parse_args(arguments)
    unknown = set(options.servers.split(",")) - set(OPENERS)
    if unknown:
        parser.error(f"no server called {', '.join(sorted(unknown))}")
    return options


def measure(options: argparse.Namespace) -> Run:
    """The whole run: loads, second opinions, and slab timings."""
    machine = this_machine()
    plan = quick_plan() if options.quick else full_plan()
    skipped: dict[str, str] = {}
    samples: list[Sample] = []
    opinions: list[SecondOpinion] = []
    timings: tuple[SlabTiming, ...] = ()
    recall: RecallShare | None = None
    with tempfile.TemporaryDirectory(prefix="farside-bench-") as folder:
        if not options.no_load:
            samples, opinions = _measure_loads(options.servers.split(","), plan, Path(folder), skipped)
        if not options.no_slabs:
            timings, recall = slab_timing.measure(Path(folder), skipped, quick=options.quick)
    return Run(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        commit=this_commit(),
        machine=machine,
        seconds=plan.seconds,
        repetitions=plan.repetitions,
        device_bytes=DEVICE_BYTES,
        samples=tuple(samples),
        opinions=tuple(opinions),
        timings=timings,
        recall=recall,
        skipped=skipped,
    )


def _measure_loads(
    names: list[str], plan: Plan, folder: Path, skipped: dict[str, str]
) -> tuple[list[Sample], list[SecondOpinion]]:
    program = build_program("nbd_load")
    with ExitStack() as stack:
        servers = _open_all(names, folder, program, stack, skipped)
        turns = list(alternate(list(servers), plan.points, range(plan.repetitions)))
        samples = _samples(program, servers, plan, turns, len(servers))
        if sealed := [name for name in (OURS_TCP, OURS_TCP + CLEAR) if name in servers]:
            repetitions = range(plan.repetitions, plan.repetitions + plan.more)
            turns = list(alternate(sealed, (SINGLE_READS,), repetitions))
            samples += _samples(program, servers, plan, turns, len(sealed))
        opinions = [
            run_fio(server.socket, point, export=server.export, seconds=1.0, server=server.name)
            for point in plan.opinions
            for server in servers.values()
        ]
    return samples, opinions


def _samples(
    program: Path, servers: Mapping[str, Server], plan: Plan, turns: Sequence[tuple[int, Point, str]], beside: int
) -> list[Sample]:
    """A measurement for each turn. ``beside``: turns that are told together."""
    samples: list[Sample] = []
    started_s = time.monotonic()
    for sample in measured(program, servers, turns, seconds=plan.seconds, warmup_s=plan.warmup_s):
        samples.append(sample)
        if len(samples) % beside == 0:
            _tell(len(samples), len(turns), time.monotonic() - started_s, samples[-beside:])
    return samples


def _open_all(
    names: list[str], folder: Path, program: Path, stack: ExitStack, skipped: dict[str, str]
) -> dict[str, Server]:
    servers = {}
    for name in names:
        try:
            server = stack.enter_context(OPENERS[name](folder, DEVICE_BYTES))
            fill_and_settle(server, program)
        except (BenchmarkError, FileNotFoundError) as error:
            skipped[name] = str(error)
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        servers[name] = server
    if not servers:
        raise BenchmarkError("no server could be started")
    return servers


def _tell(done: int, total: int, elapsed_s: float, latest: list[Sample]) -> None:
    figures = "  ".join(f"{s.server} {s.iops / 1e3:.1f}k" for s in sorted(latest, key=lambda s: -s.iops))
    left_s = elapsed_s / done * (total - done)
    print(f"{done}/{total} ({left_s:.0f} s left) {latest[-1].point.name}: {figures}", flush=True)


def print_verdicts(run: Run) -> None:
    """The targets on the screen."""
    words = {True: "reached", False: "SHORT  ", None: "open   "}
    for verdict in verdicts(run):
        print(f"{words[verdict.reached]}  {verdict.target}: {verdict.measured}")


def write_document(run: Run, source: Path) -> None:
    """docs/benchmarks.md from this run."""
    DOCUMENT.parent.mkdir(exist_ok=True)
    root = DOCUMENT.parent.parent
    name = source.resolve().relative_to(root) if source.resolve().is_relative_to(root) else source
    remarks = REMARKS.read_text() if REMARKS.exists() else ""
    DOCUMENT.write_text(render(run, source=str(name), remarks=remarks))
    print(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    sys.exit(main())
