"""An Aggregator's threads: each job is served by one of them, and a new job by the one that has the least to do."""

import secrets

import pytest

from farside.agent.aggregator.door import Attach, Hello
from farside.agent.aggregator.jobs import Jobs, ServedJob
from farside.agent.aggregator.layout import Tensor
from farside.agent.aggregator.plan import Run
from farside.kmod_shim.engine.aggregation import Aggregator

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")

THREADS = 3


def test_a_new_job_comes_to_the_thread_that_has_the_least_to_sum() -> None:
    engine = Aggregator(64 << 20, threads=THREADS)
    jobs = Jobs(engine, jobs_max=8, keep_s=60, memory_bytes=64 << 20, secrets=lambda: (b"k" * 32,), threads=THREADS)

    def come(name: str, count: int) -> ServedJob:
        hello = Hello(1, name, 0, b"k" * 8, secrets.token_bytes(32))
        attach = Attach(
            number=0, rank=0, members=2, rule="sgd", tensors=(Tensor("a", count, "f32"),), life=1, has_region=True,
            runs=(Run(first=0, count=1, owner=0, epoch=1),),
        )  # fmt: skip
        return jobs.admit(hello, attach)

    first = [come(name, count) for name, count in (("large", 60_000), ("small", 100), ("middle", 1000))]
    threads = [job.engine_number % THREADS for job in first]
    behind = [come(f"more {at}", 10_000).engine_number % THREADS for at in range(2)]
    jobs.drop(first[0], why="a test")
    last = come("last", 10)

    assert sorted(threads) == [0, 1, 2]
    assert behind == [threads[1], threads[2]]
    assert last.engine_number % THREADS == threads[0]
    assert len({job.engine_number for job in jobs}) == len(jobs) == 5
    engine.close()
