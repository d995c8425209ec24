"""A job trains while all its chunks move to another Aggregator, and an equal stretch without [autops Table 4.3].

The server has the optimizer, SGD with momentum, so that state moves, too. Beside it, what the other way would cost: a
checkpoint, an end of the processes, and a start from the checkpoint.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.aggregation.group import Farside, ask_all
from benchmarks.aggregation.judge import spread
from benchmarks.aggregation.models import chunks_of
from benchmarks.aggregation.plan import Workload, trained
from benchmarks.aggregation.training import WARM
from benchmarks.figure import Figure, Table
from benchmarks.load import BenchmarkError

STEPS = 24
LIMIT_S, RATIO_BAR, EXTRA_BAR_S = 60.0, 1.25, 0.05


class MovedJob:
    """A job at two Aggregators, whose chunks are all at one of them."""

    def __init__(self, ours: Farside, workload: Workload, compute_s: float) -> None:
        self._ours, self._workload, self._compute_s = ours, workload, compute_s
        self._chunks = len(chunks_of(workload.counts))
        self.number = ours.add(workload, "shm", ours.members, rule="SGD")
        self._owner, self._epoch = 0, 1
        self._linked: set[tuple[int, int]] = set()

    def begin(self) -> None:
        for member in self._ours.members:
            member.order(do="train", counts=self._workload.counts, compute_s=self._compute_s, steps=STEPS)

    def longest_s(self) -> float:
        """Of the slowest member's iterations, without the first ones."""
        return max(float(max(member.answer()["steps_s"][WARM:])) for member in self._ours.members)

    def move(self) -> float:
        """All chunks to the other Aggregator; seconds from the plan to its commit.

        Raises:
            BenchmarkError: It takes too long.
        """
        begun_s = time.monotonic()
        owner, to, epoch = self._owner, 1 - self._owner, self._epoch + 1
        if (owner, to) not in self._linked:
            self._link(owner, to)
        for me in (0, 1):
            self._plan(me, owner=owner, epoch=self._epoch, next_owner=to, next_epoch=epoch)
        while self._ours.aggregators[to].ask(do="told", job=self.number) != dict.fromkeys(
            ("copied", "pushed"), self._chunks
        ):
            if time.monotonic() - begun_s > LIMIT_S:
                raise BenchmarkError(f"a move has not ended within {LIMIT_S:.0f} s")
            time.sleep(0.01)
        for me in (0, 1):
            self._plan(me, owner=to, epoch=epoch)
        self._owner, self._epoch = to, epoch
        return time.monotonic() - begun_s

    def _plan(self, me: int, **place: int) -> None:
        self._ours.plan(self.number, me, self._chunks, **place)

    def _link(self, owner: int, to: int) -> None:
        path = self._ours.sockets[to]
        self._ours.aggregators[owner].ask(do="link", job=self.number, to=to, me=owner, path=path)
        self._linked.add((owner, to))


def move(folder: Path, rounds: int) -> Figure:
    """Longest iterations with and without moves, and how long a checkpoint and restart takes."""
    rows = [_row(folder / model, model, *job, rounds) for model, job in trained().items()]
    return Figure(
        key="moving",
        title="All chunks move while the job trains",
        source=f"{rounds} rounds of {STEPS - WARM} iterations without a move and with one, by shared memory",
        tables=(
            Table(
                caption="medians and quartiles, in ms",
                header=("model", "longest iteration", "while moving", "longer by", "bar", "met", "move", "restart"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "move: from the plan to its commit; restart: checkpoint to the disk, end of the members, start from it",
        ),
    )


def _row(folder: Path, model: str, workload: Workload, compute_s: float, rounds: int) -> tuple[str, ...]:
    folder.mkdir()
    ours = Farside(sys.executable, folder, aggregators=2)
    try:
        job = MovedJob(ours, workload, compute_s)
        quiet, moving, took = zip(*[_round(job, compute_s) for _ in range(rounds)], strict=True)
        restart_s = _restart(ours, job, workload, compute_s, folder / "checkpoint")
    finally:
        ours.close()
    extra = [with_s - without_s for with_s, without_s in zip(moving, quiet, strict=True)]
    bar_s = extra_bar_s(quiet)
    return (
        model, _ms(quiet), _ms(moving), _ms(extra), f"at most {bar_s * 1e3:.0f}",
        "yes" if statistics.median(extra) <= bar_s else "no", _ms(took), f"{restart_s * 1e3:.0f}",
    )  # fmt: skip


def extra_bar_s(longest_s: Sequence[float]) -> float:
    """How much longer an iteration may take while everything moves: 50 ms, or a quarter."""
    return max(EXTRA_BAR_S, (RATIO_BAR - 1) * statistics.median(longest_s))


def _ms(seconds: Sequence[float]) -> str:
    found = spread([one * 1e3 for one in seconds])
    return found.text(0)


def _round(job: MovedJob, compute_s: float) -> tuple[float, float, float]:
    job.begin()
    quiet_s = job.longest_s()
    job.begin()
    time.sleep((WARM + 1) * compute_s)
    took_s = job.move()
    return quiet_s, job.longest_s(), took_s


def _restart(ours: Farside, job: MovedJob, workload: Workload, compute_s: float, path: Path) -> float:
    """Seconds until members that start from a checkpoint have done an iteration, without what its timer takes."""
    begun_s = time.monotonic()
    ours.members[0].order(do="save", path=str(path))
    ours.members[0].answer()
    for member in ours.members:
        member.end()
    ours.drop(job.number)
    ours.members = ours.start_members("again")
    number = ours.add(workload, "shm", ours.members, rule="SGD", checkpoint=str(path))
    ask_all(ours.members, do="train", counts=workload.counts, compute_s=compute_s, steps=1)
    took_s = time.monotonic() - begun_s - compute_s
    ours.drop(number)
    return took_s
