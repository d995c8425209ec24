"""The queue by classes: the first of each class, whatever came and went."""

import sys
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.state import Job, Node
from farside.scheduler.table import JobTable
from farside.scheduler.waiting import SPARE, Waiting


@given(st.integers(0, 1000), st.lists(st.sampled_from(("add", "again", "leave", "all again")), max_size=60))
def test_the_first_of_a_class_is_its_smallest_rank(seed: int, steps: list[str]) -> None:
    random, waiting = Random(seed), Waiting()
    ranks: dict[int, float] = {}

    for row, step in enumerate(steps):
        known = random.choice(sorted(ranks)) if ranks else row
        if step == "leave":
            ranks.pop(known, None)
            waiting.discard(known)
        elif step == "all again":
            ranks = {row: random.random() for row in ranks}
            waiting.add_all([(row, row % 3, (rank,)) for row, rank in ranks.items()])
        else:
            new = row if step == "add" else known
            ranks[new] = random.random()
            waiting.add_all([(new, new % 3, (ranks[new],))])
        for group in range(3):
            own = [((rank,), row) for row, rank in ranks.items() if row % 3 == group]
            assert waiting.first(group) == min(own, default=None)
        assert len(waiting) == len(ranks)


def test_ranks_that_are_replaced_for_ever_take_no_more_room() -> None:
    waiting = Waiting()
    for row in range(10):
        waiting.add(row, 0, (0.0, float(row)))

    for at in range(20 * SPARE):
        waiting.add(9, 0, (1.0, float(at)))

    assert sys.getsizeof(waiting._heaps[0]) < 8 * 5 * SPARE
    assert waiting.first(0) == ((0.0, 0.0), 0)


def test_jobs_that_differ_in_what_nobody_counts_are_of_one_class() -> None:
    def classes(nodes: tuple[Node, ...], *, is_counting_more: bool) -> int:
        rules = Rules(order=Fifo(), placement=Consolidate())
        domain = Domain("", nodes, rules, JobTable(), is_counting_more=is_counting_more)
        for row in range(5):
            job = Job(job_id=str(row), sequence=row, submit_s=0.0, gpus=1, memory_bytes_per_gpu=1e9 + row)
            domain.submit(row, job, remaining_s=1.0, predicted_gpu_s=1.0)
        return len(domain.demands)

    assert classes((Node(name="a", gpus=8),), is_counting_more=False) == 1
    assert classes((Node(name="a", gpus=8, memory_bytes=64e9),), is_counting_more=True) == 5
