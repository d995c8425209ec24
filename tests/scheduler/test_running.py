"""The running jobs by rank: whatever happens in between, the same as ranking all of them anew."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.smallest import Smallest
from farside.scheduler.order.srtf import Srsf, Srtf
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.running import MANY, RunningOrder
from farside.scheduler.state import Job
from farside.scheduler.table import JobColumns, JobTable
from farside.scheduler.waiting import Rank

KNOWN = Distribution([50.0, 400.0, 5000.0])
POLICIES: dict[str, OrderPolicy] = {
    "las": Las(limits_gpu_s=(30.0, 200.0)),
    "las without queues": Las(limits_gpu_s=()),
    "gittins without queues": Gittins(limits_gpu_s=(), prior=KNOWN, is_learning=False),
    "gittins in four queues": Gittins(limits_gpu_s=(20.0, 60.0, 150.0), prior=KNOWN, is_learning=False),
    "gittins": Gittins(limits_gpu_s=(60.0,), prior=KNOWN, is_learning=False),
    "srtf": Srtf(),
    "srsf": Srsf(),
    "sf": Smallest(),
    "timeshare": Timeshare(quantum_s=7.0),
}


class Cluster:
    """Jobs that run, their table, and the order that is to be tried."""

    def __init__(self, order: OrderPolicy, random: Random) -> None:
        self.order, self.random = order, random
        self.table, self.running, self.now_s = JobTable(), RunningOrder(), 0.0
        self.rows: set[int] = set()

    def start(self, row: int) -> None:
        """A job comes and runs."""
        job = Job(job_id=str(row), sequence=row, submit_s=self.now_s, gpus=self.random.choice((1, 2, 8)))
        remaining_s = self.random.uniform(1.0, 300.0)
        self.table.submit(row, job, remaining_s=remaining_s, predicted_gpu_s=0.0)
        self.table.start(row, now_s=self.now_s, delay_s=self.random.choice((0.0, 5.0)), speed=1.0)
        self.table.position[row] = self.random.random()
        self.rows.add(row)
        self.running.renew(row)

    def end(self) -> None:
        """One of them runs no more."""
        row = self.random.choice(sorted(self.rows))
        self.rows.discard(row)
        self.running.discard(row)

    def move(self) -> None:
        """One of them comes to another place in its queue."""
        row = self.random.choice(sorted(self.rows))
        self.table.position[row] = self.random.random()
        self.running.renew(row)

    def figures(self, rows: list[int]) -> JobColumns:
        """As a domain gives them."""
        return self.table.figures(np.array(rows, dtype=np.intp), self.now_s)

    def read(self, count: int) -> list[tuple[Rank, int]]:
        """The last of them, as the order has it."""
        reading = self.running.last_first(self.order, self.figures, self.now_s)
        return [entry for entry, _ in zip(reading, range(count), strict=False)]

    def anew(self) -> list[tuple[Rank, int]]:
        """All of them, each ranked now."""
        rows = sorted(self.rows)
        if not rows:
            return []
        jobs = self.figures(rows)
        keys = (*self.order.keys(jobs), jobs.submit_s, jobs.sequence)
        ranks = zip(*(key.tolist() for key in keys), strict=True)
        return sorted(zip(ranks, rows, strict=True), reverse=True)


@pytest.mark.parametrize("name", POLICIES)
@given(
    seed=st.integers(0, 1000),
    steps=st.lists(st.sampled_from(("start", "end", "move", "wait", "read", "all anew")), min_size=5, max_size=60),
)
def test_it_reads_as_if_all_were_ranked_at_each_reading(name: str, seed: int, steps: list[str]) -> None:
    cluster = Cluster(POLICIES[name], Random(seed))

    for row, step in enumerate(steps):
        if step == "start" or not cluster.rows:
            cluster.start(row)
        elif step == "end":
            cluster.end()
        elif step == "move":
            cluster.move()
        elif step == "wait":
            cluster.now_s += cluster.random.uniform(0.0, 20.0)
        elif step == "all anew":
            cluster.running.renew_all()
        count = cluster.random.choice((1, 3, len(steps)))
        assert cluster.read(count) == cluster.anew()[:count]


@pytest.mark.parametrize("name", POLICIES)
def test_hundreds_that_come_and_go_at_once_are_no_different(name: str) -> None:
    cluster = Cluster(POLICIES[name], Random(3))
    for row in range(5 * MANY):
        cluster.start(row)

    before = cluster.read(5 * MANY) == cluster.anew()
    cluster.now_s += 11.0
    for _ in range(2 * MANY):
        cluster.end()
    cluster.move()

    assert before
    assert cluster.read(2 * MANY) == cluster.anew()[: 2 * MANY]


def test_who_leaves_while_it_is_read_is_not_read() -> None:
    cluster = Cluster(Srsf(), Random(1))
    for row in range(20):
        cluster.start(row)
    reading = cluster.running.last_first(cluster.order, cluster.figures, cluster.now_s)
    cluster.read(0)
    expected = cluster.anew()

    first = next(reading)
    cluster.running.discard(expected[1][1])

    assert first == expected[0]
    assert next(reading) == expected[2]


def test_a_queue_is_not_ranked_before_a_reading_comes_to_it() -> None:
    cluster = Cluster(POLICIES["gittins in four queues"], Random(2))
    for row in range(30):
        cluster.start(row)
        cluster.now_s += 5.0
    levels = [rank[0] for rank, _ in cluster.anew()]
    last = levels.count(3.0)
    cluster.read(30)
    asked: list[int] = []

    def figures(rows: list[int]) -> JobColumns:
        asked.extend(rows)
        return cluster.figures(rows)

    reading = cluster.running.last_first(cluster.order, figures, cluster.now_s)

    entries = [next(reading) for _ in range(last)]
    before = list(asked)
    entries.append(next(reading))

    assert 0 < last < 30
    assert before == []
    assert entries == cluster.anew()[: last + 1]
    assert len(asked) == levels.count(2.0)


def test_a_rank_that_nobody_knows_stands_behind_all() -> None:
    cluster = Cluster(Srsf(), Random(1))
    for row in range(5):
        cluster.start(row)
    cluster.table.remaining_s[2] = np.nan

    rows = [row for _, row in cluster.read(5)]

    cluster.rows.discard(2)
    assert rows == [2, *(row for _, row in cluster.anew())]
