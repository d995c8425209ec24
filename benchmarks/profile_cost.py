"""``python -m benchmarks.profile_cost``: what the profiler costs a job, with and without it in turn, in one run.

Two processes over TCP (`profile_load.c`): a ping-pong of single messages, which does nothing else, and a worker that
computes, sends 32 tensors and gets the model back. Each pair is one run without and one with the library, in an order
that changes; the figure is the median of all pairs' ratios, and the middle half of them is printed beside. "One call"
is a datagram that nobody takes, the cheapest thing that is recorded: its difference is what recording takes. Without
is: neither LD_PRELOAD nor a file; "without a file" is the library where nobody asked, as in a program that cleared it.
What it takes of a training's time is less than such pairs can show: profile_training.py reckons it, with its interval.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.profile_render import HEAD, section
from benchmarks.profile_training import an_iteration, training
from benchmarks.section import keep
from farside.agent.profile.ring_file import FILE_VARIABLE, LIBRARY, RingFile, new_path
from farside.errors import FarsideError

SOURCE = Path(__file__).parent / "profile_load.c"
RESULTS = Path(__file__).parent / "results" / "profile_cost.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "profiler.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load: what the program is told, and in words."""

    words: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a load takes without the library, and how much more with it; a share of 1."""

    case: str
    round_us: float
    wall: float
    wall_low: float
    wall_high: float
    cpu: float
    idle_cpu: float


def cases(scale: float) -> tuple[Case, ...]:
    """All loads, about a second each at a scale of 1."""
    pings, steps = str(int(40_000 * scale)), str(max(1, int(40 * scale)))
    return (
        Case(words="one call, 2 KiB", arguments=("alone", "2048", str(int(400_000 * scale)))),
        Case(words="ping-pong, 2 KiB", arguments=("ping", "2048", pings)),
        Case(words="ping-pong, 64 KiB", arguments=("ping", "65536", str(int(15_000 * scale)))),
        Case(words="training, 10 ms, 4 MiB model", arguments=("train", str(4 << 20), steps, "10000")),
        Case(words="training, 10 ms, 32 MiB model", arguments=("train", str(32 << 20), steps, "10000")),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_cost", description=__doc__)
    parser.add_argument(
        "--pairs", type=int, default=15, help="runs with and without of each load; default: %(default)s"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="rounds of a run, times this; default: %(default)s")
    parser.add_argument("--iterations", type=int, default=7, help="trainings, six at least; default: %(default)s")
    parser.add_argument("--output", metavar="FILE", default=str(RESULTS), help="default: %(default)s")
    options = parser.parse_args(arguments)
    if min(options.pairs, options.iterations) < 6:
        parser.error("--pairs and --iterations: six at least, as fewer have no interval of 95 %")
    machine = this_machine()
    try:
        with tempfile.TemporaryDirectory(prefix="farside-profile-") as folder:
            program = _built(Path(folder))
            costs = [_measured(program, case, options.pairs) for case in cases(options.scale)]
            message_ns = [_a_message_ns(program, options.scale) for _ in range(options.pairs)]
        trained = training(message_ns, [an_iteration() for _ in range(options.iterations)])
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    told = {
        "command": this_command("benchmarks.profile_cost"), "commit": this_commit(), "machine": asdict(machine),
        "training": asdict(trained),
        "costs": [asdict(cost) for cost in costs],
    }  # fmt: skip
    keep(told, Path(options.output), text=section(told), head=HEAD, results=RESULTS, document=DOCUMENT)
    return 0


def _a_message_ns(program: Path, scale: float) -> float:
    """What recording one takes: the cheapest call that is recorded, with the library less without."""
    alone = cases(scale)[0]
    return _run(program, alone, "profiled")[1] - _run(program, alone, "plain")[1]


def _built(folder: Path) -> Path:
    program = folder / "profile_load"
    subprocess.run(("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", str(SOURCE), "-o", str(program)), check=True)
    return program


def _measured(program: Path, case: Case, pairs: int) -> Cost:
    plain, profiled, idle = [], [], []
    for turn in range(pairs + 1):
        order = ("plain", "profiled", "idle")[:: 1 if turn % 2 else -1]
        found = {kind: _run(program, case, kind) for kind in order}
        if turn:  # the first warms up
            plain.append(found["plain"])
            profiled.append(found["profiled"])
            idle.append(found["idle"])
    wall = [after[0] / before[0] - 1 for before, after in zip(plain, profiled, strict=True)]
    low, _, high = statistics.quantiles(wall, n=4)
    return Cost(
        case=case.words,
        round_us=statistics.median(before[0] for before in plain) / 1000,
        wall=statistics.median(wall),
        wall_low=low,
        wall_high=high,
        cpu=statistics.median(after[1] / before[1] - 1 for before, after in zip(plain, profiled, strict=True)),
        idle_cpu=statistics.median(after[1] / before[1] - 1 for before, after in zip(plain, idle, strict=True)),
    )


def _run(program: Path, case: Case, kind: str) -> tuple[float, float]:
    """Nanoseconds a round: by the clock, and of CPU."""
    environment: Mapping[str, str] = os.environ
    file = RingFile(new_path(), uid=os.geteuid(), gid=os.getegid()) if kind == "profiled" else None
    try:
        if kind != "plain":
            environment = {**environment, "LD_PRELOAD": str(LIBRARY), FILE_VARIABLE: str(file.path) if file else ""}
        told = (str(program), *case.arguments)
        done = subprocess.run(told, env=environment, capture_output=True, text=True, check=True)
        if file is not None:
            assert file.read().processes, "nothing was recorded"
    finally:
        if file is not None:
            file.close()
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


if __name__ == "__main__":
    sys.exit(main())
