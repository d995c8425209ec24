"""Two jobs on one Aggregator, each computing by a timer: what sharing costs, and what a kill in the other does.

Members that compute by a timer leave the processors to the Aggregator, as GPUs do; two jobs whose members compute on
processors could not have two of them each.
"""

import itertools
import os
import signal
import statistics
import time
from collections.abc import Sequence

from benchmarks.aggregation.group import Farside, Talker, ask_all
from benchmarks.aggregation.judge import Spread, spread
from benchmarks.aggregation.measure import metered
from benchmarks.aggregation.plan import Workload, sized
from benchmarks.aggregation.training import WARM, median_step_s
from benchmarks.figure import Figure, Table
from benchmarks.load import process_cpu_s

STEPS = 10
COMPUTE_S = 0.2
KILL_AFTER_S = 0.6
SPEED_BAR, KILL_BAR, IDLE_BAR = 0.91, 1.10, 0.005
IDLE_S = 60.0
WHOLE = "100 MB"  # one tensor: all of it is ready at once, so the jobs' phases can be opposite


class Job:
    """One job's members at the shared Aggregator, connected."""

    def __init__(self, ours: Farside, members: Sequence[Talker], workload: Workload) -> None:
        self.members, self.counts = members, workload.counts
        self.number = ours.add(workload, "shm", members)

    def begin(self, after_s: float = 0.0) -> None:
        for member in self.members:
            member.order(do="train", counts=self.counts, compute_s=COMPUTE_S, steps=STEPS, after_s=after_s)

    def end(self) -> list[list[float]]:
        """Seconds of each iteration, by member."""
        return [member.answer()["steps_s"] for member in self.members]


def share(ours: Farside, rounds: int) -> Figure:
    """The figure. Its rounds measure each job alone, then both, then the first beside a job whose member is killed."""
    found = [_round(ours, at) for at in range(rounds)]
    first, second, killed, other = (tuple(column) for column in zip(*found, strict=True))
    idle_share = _idle_share(ours)
    rows = (
        _row("first job, beside the second", "speed to alone", spread(first), SPEED_BAR, at_least=True),
        _row("second job, beside the first", "speed to alone", spread(second), SPEED_BAR, at_least=True),
        _row("first job, after a kill in the second", "iteration to alone", spread(killed), KILL_BAR, at_least=False),
        (
            f"Aggregator with a job that does nothing, {IDLE_S:.0f} s", "share of a core", f"{idle_share:.3%}",
            f"below {IDLE_BAR:.1%}", "yes" if idle_share < IDLE_BAR else "no",
        ),
    )  # fmt: skip
    return Figure(
        key="sharing",
        title="Two jobs on one Aggregator, in opposite phase",
        source=f"{rounds} rounds; each job exchanges {WHOLE} after {COMPUTE_S:g} s of a timer",
        tables=(Table(caption="what sharing costs", header=("what", "figure", "ours", "bar", "met"), rows=rows),),
        notes=(f"other work had {statistics.median(other):.0%} of the machine",),
    )


def _row(what: str, figure: str, ours: Spread, bar: float, *, at_least: bool) -> tuple[str, ...]:
    is_met = ours.median >= bar if at_least else ours.median <= bar
    return what, figure, ours.text(), f"at {'least' if at_least else 'most'} {bar:.2f}", "yes" if is_met else "no"


def _round(ours: Farside, at: int) -> tuple[float, float, float, float]:
    """Speed of both jobs to that alone, the first one's iteration after a kill to that alone; share of other work."""
    others = ours.start_members(f"second-{at}")
    try:
        first, second = (Job(ours, members, sized(WHOLE)) for members in (ours.members, others))
        alone, _, other = metered(ours, lambda: _median_of(first))
        second_alone = _median_of(second)
        first.begin()
        second.begin(after_s=alone / 2)
        beside, second_beside = median_step_s(first.end()), median_step_s(second.end())
        after_kill = _beside_killed(first, second)
    finally:
        for one in others:
            one.end()
    ask_all(ours.members, do="release")
    for job in (first, second):
        ours.drop(job.number)
    return alone / beside, second_alone / second_beside, after_kill / alone, other


def _median_of(job: Job) -> float:
    job.begin()
    return median_step_s(job.end())


def _beside_killed(job: Job, other: Job) -> float:
    """The job's median iteration once a member of the other is dead."""
    job.begin()
    other.begin()
    begun_s = time.monotonic()
    time.sleep(KILL_AFTER_S)
    os.kill(other.members[-1].process.pid, signal.SIGKILL)
    killed_s = time.monotonic() - begun_s
    return max(statistics.median(begun_after(steps, killed_s)) for steps in job.end())


def begun_after(steps_s: Sequence[float], at_s: float) -> list[float]:
    """Those of consecutive iterations that began after a time; never the first ones."""
    begins = itertools.accumulate(steps_s, initial=0.0)
    return [step for at, (begin, step) in enumerate(zip(begins, steps_s, strict=False)) if begin >= at_s and at >= WARM]


def _idle_share(ours: Farside) -> float:
    """Of a core, with a job that is connected and exchanges nothing."""
    ours.prepare(sized(WHOLE), "shm")
    pid = ours.aggregator.process.pid
    used_s, begun_s = process_cpu_s(pid), time.monotonic()
    time.sleep(IDLE_S)
    idle_share = (process_cpu_s(pid) - used_s) / (time.monotonic() - begun_s)
    ours.release()
    return idle_share
