"""A key that a manager gives to a start is the only one by which anybody gets into it, whenever they came."""

import asyncio
import secrets
import socket
from collections.abc import Iterator, Mapping

import pytest

from farside.agent.aggregator.door import NONCE_BYTES, Answer, Attach, Caller, Hello, Refused
from farside.agent.aggregator.entrance import Entrance
from farside.agent.aggregator.jobs import JobId, Jobs
from farside.agent.aggregator.layout import Tensor
from farside.agent.aggregator.pairing import Pairing
from farside.agent.aggregator.plan import Run, job_key
from farside.kmod_shim.engine.aggregation import Aggregator

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")

SECRET, GRANTED = b"s" * 32, b"g" * 32
JOB: JobId = ("7", 3)
GRANTS: Mapping[JobId, bytes] = {JOB: GRANTED}


@pytest.fixture
def engine() -> Iterator[Aggregator]:
    made = Aggregator(1 << 20)
    yield made
    made.close()


def jobs_of(engine: Aggregator) -> Jobs:
    return Jobs(engine, jobs_max=8, keep_s=60, memory_bytes=1 << 20, secrets=lambda: (SECRET,))


def attach(rank: int, count: int = 1000) -> Attach:
    return Attach(
        number=0, rank=rank, members=2, rule="sgd", tensors=(Tensor("a", count, "f32"),), life=1 + rank,
        has_region=False, runs=(Run(first=0, count=1, owner=0, epoch=1),),
    )  # fmt: skip


def test_who_has_named_a_start_before_its_manager_has_no_part_in_it(engine: Aggregator) -> None:
    jobs = jobs_of(engine)
    hello = Hello(1, *JOB, b"k" * 8, secrets.token_bytes(NONCE_BYTES))
    others = jobs.admit(hello, attach(1, count=999))

    jobs.take_orders((), GRANTS)
    job = jobs.admit(hello, attach(0))

    assert list(jobs) == [job] != [others]
    jobs.take_orders((), GRANTS)
    assert jobs.admit(hello, attach(1)) is job


def test_a_key_that_was_proved_before_the_manager_gave_another_one_lets_nobody_in(engine: Aggregator) -> None:
    jobs = jobs_of(engine)
    entrance = Entrance(engine, jobs, incarnation=1, pairing=Pairing(rdma="off"))

    async def come(listener: socket.socket) -> Answer | None:
        serving = asyncio.get_running_loop().create_task(entrance.accept(listener))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        job, start = JOB
        caller = Caller(
            job_key(SECRET, job, start), job=job, start=start, nonce=secrets.token_bytes(NONCE_BYTES), request=attach(0)
        )
        answer: Answer | None = None
        while answer is None:
            writer.write(caller.to_send())
            answer = caller.receive(await reader.read(caller.needed))
            if caller.is_proved:  # it is asked, and has not said so yet
                jobs.take_orders((), GRANTS)
        writer.close()
        serving.cancel()
        return answer

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = asyncio.run(come(listener))

    assert answer == Refused("job 7 has another key by now", is_final=False)
    assert not list(jobs)
