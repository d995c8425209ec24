"""What `benchmarks.colocation_spill` measures with: jobs with limits, a donor, and what the executor saw of them."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from benchmarks.colocation import DEADLINE_S, Bench, check_turns, until_answers
from benchmarks.colocation_spill_job import FIXED, REPORT
from farside import admin
from farside.cli.demo.colocated_node import Ran
from farside.training.app.dataset import load
from farside.training.app.program import Options
from farside.training.loop.spilling import SPILL_DIR, SPILL_MEMORY, SPILL_PEER
from tests.support.kernel_limit import MemoryLimit, ReadLimit

LimitT = TypeVar("LimitT", MemoryLimit, ReadLimit)

DONOR_PORT = 7684
DEVICE_BYTES, SLAB_BYTES = 64 << 20, 4 << 20
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How a job is played in one case.

    Attributes:
        options: Of its program.
        iterations: How many.
        enter: A shell's words before it, such as into a cgroup.
        spills: Whether its input may be spilled.
        has_peer: Whether that may go to the donor, too.
        fixed: What is held fast (`benchmarks.colocation_spill_job`).
        memory_bytes: What it may have, where the kernel sets no limit; 0: no limit.
    """

    options: Options
    iterations: int
    enter: str = ""
    spills: bool = True
    has_peer: bool = False
    fixed: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of the jobs of a case, by job.

    Attributes:
        makespan_s: Until the last one had its model.
        models: A digest of each.
        pushes_ns: When each iteration's push was over.
        comp_s, net_s: What each iteration computed, and was on the network.
        reports: What each has read and waited, and its iterations one by one.
        overlaps: How often two jobs computed at once, since a turn was over before its job was done.
    """

    makespan_s: float
    models: Mapping[str, str]
    pushes_ns: Mapping[str, Mapping[int, int]]
    comp_s: Mapping[str, Mapping[int, float]]
    net_s: Mapping[str, Mapping[int, float]]
    reports: Mapping[str, Mapping[str, Any]]
    overlaps: int = 0

    def iteration_s(self, last: int) -> float:
        """Seconds an iteration of the slowest job: its last ones, from push to push, that ended while all were there.

        The mean: what is read comes in bursts, and iterations that are long and short in turn have no middle one.
        """
        all_there_ns = min(max(pushes.values()) for pushes in self.pushes_ns.values())
        found = []
        for pushes in self.pushes_ns.values():
            ends = [ended for ended in sorted(pushes.values()) if ended <= all_there_ns][-last - 1 :]
            found.append((ends[-1] - ends[0]) / 1e9 / (len(ends) - 1))
        return max(found)

    def longest_s(self, since_ns: int) -> float:
        """The longest time between two pushes of a job of which the later came after a moment."""
        pairs = [pair for pushes in self.pushes_ns.values() for pair in itertools.pairwise(sorted(pushes.values()))]
        return max(((b - a) / 1e9 for a, b in pairs if b > since_ns), default=0.0)

    def computed_s(self, job: str, first: int) -> float:
        """The median of what an iteration of a job computes, from one on."""
        return statistics.median(took for number, took in self.comp_s[job].items() if number >= first)

    def spread(self, first: int) -> float:
        """The greatest of all jobs' spreads of computing, as a share."""
        rows = [[took for number, took in one.items() if number >= first] for one in self.comp_s.values()]
        return max(statistics.stdev(row) / statistics.mean(row) for row in rows)


class SpillBench(Bench):
    """An Aggregator and an executor, and jobs with limits of the kernel and a donor."""

    def __init__(self, folder: Path, stack: ExitStack, *, processors: Sequence[int], threads: int) -> None:
        super().__init__(folder, stack, iterations=0, processors=processors)
        self.folder, self.threads = folder, threads
        self._plays: Mapping[str, Play] = {}
        self._rows: list[list[Any]] = []
        self._donor: subprocess.Popen[bytes] | None = None
        self._stack = stack
        (folder / "spill").mkdir()

    def play(self, label: str, plays: Mapping[str, Play], during: Callable[[], None] | None = None) -> Played:
        """Plays jobs that begin together; ``during`` runs beside them, in a thread."""
        self._plays = plays
        beside = threading.Thread(target=during) if during is not None else None
        if beside is not None:
            beside.start()
        ran = dict(zip(plays, self._case(label, tuple(plays), turns=True), strict=True))
        if beside is not None:
            beside.join()
        played = self._played(label, ran)
        print(f"{label}: {played.makespan_s:.1f} s", file=sys.stderr, flush=True)
        return played

    def ends_early(self, play: Play) -> int:
        """The exit code of a job that is not let begin; negative: it was killed by a signal."""
        self._plays = {"early": play}
        with ExitStack() as stack:
            (process,) = self._started(stack, "early", "early", turns=False)
            process.communicate(timeout=DEADLINE_S)
            return process.returncode

    def shape(self, rate: int) -> None:
        """What the link carries, in bytes a second."""
        self._link.shape(rate)

    def calibrate(self, label: str, plays: Mapping[str, Play], pushed_bytes: float, ratio: float) -> int:
        """Sets the link so that a job is on the network ``ratio`` times as long as it computes; bytes a second."""
        rate = 100_000_000
        for step in range(2):
            self.shape(rate)
            found = [self.play(f"{label}-{step}-{name}", {name: play}) for name, play in plays.items()]
            comp_s = statistics.mean(_median(one.comp_s) for one in found)
            net_s = statistics.mean(_median(one.net_s) for one in found)
            rate = int(2 * pushed_bytes / (ratio * comp_s) if step == 0 else rate * net_s / (ratio * comp_s))
        self.shape(rate)
        return rate

    def limit(self, kind: Callable[..., LimitT], *how: Any) -> LimitT:
        """A limit of the kernel, which goes with the benchmark.

        Raises:
            Unavailable: The machine can't.
        """
        made = kind(*how)
        self._stack.callback(made.close)
        return made

    # --- the donor

    def start_donor(self) -> None:
        """Starts a donor by TCP, and writes the settings of its borrowers."""
        folder = self.folder
        (folder / "donor.toml").write_text(
            f'node = "donor"\nlisten = ["tcp:127.0.0.1:{DONOR_PORT}"]\nkey_file = "{self._key}"\n'
            f'slab_bytes = {SLAB_BYTES}\nheadroom_bytes = {1 << 30}\nhugepages = "off"\n'
            f'admin_socket = "{folder}/donor.admin"\n'
        )
        (folder / "peers.toml").write_text(f'[[donor]]\nnode = "donor"\ncontrol = "tcp:127.0.0.1:{DONOR_PORT}"\n')
        # On a link that is saturated a donor's answer takes long, and it is not dead.
        (folder / "borrower.toml").write_text(
            f'node = "borrower"\nsize_bytes = {DEVICE_BYTES}\nslab_bytes = {SLAB_BYTES}\nkey_file = "{self._key}"\n'
            f'peers_file = "{folder}/peers.toml"\ntransport = "tcp"\nworkers = 1\ndeadline_s = 5.0\ngrace_s = 10.0\n'
        )
        argv = [sys.executable, "-m", "farside", "daemon", "--config", str(folder / "donor.toml")]
        with (folder / "donor.log").open("wb") as log:
            self._donor = subprocess.Popen(argv, stderr=log)
        self._stack.callback(self._donor.wait)
        self._stack.callback(self._donor.kill)
        until_answers(folder / "donor.admin")

    def kill_donor_after(self, iteration: int, jobs: Sequence[str], killed_ns: list[int]) -> None:
        """Kills the donor once these jobs have come so far and have read from it, and notes when."""
        assert self._donor is not None
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            told = admin.call(self._shown_by, "status", timeout_s=5)["jobs"]
            there = {
                job.partition(":")[2]
                for job, one in told.items()
                if one["position"] // 3 >= iteration and one["spill"] and one["spill"]["peer_bytes"]
            }
            if there.issuperset(jobs):
                break
            time.sleep(LOOK_EVERY_S)
        killed_ns.append(time.monotonic_ns())
        self._donor.kill()

    # --- how a job is started

    def _program(self, name: str) -> tuple[list[str], Mapping[str, str]]:
        play = self._plays[name]
        options = msgspec.structs.replace(play.options, iterations=play.iterations)
        argv = [sys.executable, "-m", "benchmarks.colocation_spill_job", msgspec.json.encode(options).decode()]
        variables = {FIXED: json.dumps(dict(play.fixed)), REPORT: str(self._report(name))}
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.threads))
        if play.spills:
            variables[SPILL_DIR] = str(self.folder / "spill")
        if play.has_peer:
            variables[SPILL_PEER] = str(self.folder / "borrower.toml")
        if play.memory_bytes:
            variables[SPILL_MEMORY] = str(play.memory_bytes)
        return ["sh", "-c", f'{play.enter}exec "$@"', "sh", *argv], variables

    def _report(self, name: str) -> Path:
        return self.folder / f"{name}.report"

    def _check_trace(self, jobs: Sequence[str]) -> None:
        """No subtask without a turn. On a busy machine a turn may be over before its job is done: that is counted."""
        check_turns([row for job in jobs for row in self._trace(job)], len(jobs))

    # --- what the executor has seen

    def _trace(self, job: str) -> list[list[Any]]:
        while more := admin.call(self._shown_by, "trace", first=len(self._rows))["rows"]:
            self._rows += more
        return [row for row in self._rows if row[0].partition(":")[2] == job]

    def _played(self, label: str, ran: Mapping[str, Ran]) -> Played:
        pushes: dict[str, dict[int, int]] = {}
        steps: dict[str, dict[str, dict[int, float]]] = {"comp": {}, "net": {}}
        computing: list[tuple[int, int]] = []
        for name in ran:
            ours: dict[str, dict[int, float]] = {"comp": {}, "net": {}}
            pushes[name] = {}
            for _job, position, phase, _asked, granted_ns, done_ns, has_lease, *_ in self._trace(f"{label}-{name}"):
                number = position // 3
                if number < 0:
                    continue
                kind = "comp" if phase == "COMP" else "net"
                if phase == "COMP" and has_lease:
                    computing.append((granted_ns, done_ns))
                ours[kind][number] = ours[kind].get(number, 0.0) + (done_ns - granted_ns) / 1e9
                if phase == "PUSH":
                    pushes[name][number] = done_ns
            for kind, found in ours.items():
                steps[kind][name] = found
        reports = {
            name: json.loads(self._report(name).read_text()) for name in ran if self._report(name).exists()
        }  # fmt: skip
        return Played(
            makespan_s=(max(one.ended_ns for one in ran.values()) - min(one.begun_ns for one in ran.values())) / 1e9,
            models={name: one.model for name, one in ran.items()},
            pushes_ns=pushes, comp_s=steps["comp"], net_s=steps["net"], reports=reports,
            overlaps=sum(later[0] < before[1] for before, later in itertools.pairwise(sorted(computing))),
        )  # fmt: skip


def _median(by_job: Mapping[str, Mapping[int, float]]) -> float:
    """The median of the iterations after the first two, of the one job."""
    (found,) = by_job.values()
    return statistics.median(took for number, took in found.items() if number >= 2)


def write_input(options: Options, path: Path) -> Options:
    """Writes drawn input into a file, as `farside train` takes it; the options to read it."""
    drawn = load(options)
    has_target = isinstance(drawn.blocks[0], tuple)
    shape = (drawn.rows, drawn.columns + has_target)
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=shape)
    at = 0
    for block in drawn.blocks:
        rows = np.column_stack(block) if has_target else block
        table[at : at + len(rows)] = rows
        at += len(rows)
    table.flush()
    return msgspec.structs.replace(options, data=os.fspath(path))
