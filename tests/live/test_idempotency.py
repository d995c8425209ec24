"""One request that comes to two managers of one store: it is written once, and both tell the same answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from farside.scheduler.manager.api.idempotency import Idempotency
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.event import JobSubmitted, NodesReserved, ReleaseRequested
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import request_of
from farside.scheduler.manager.store.event_store import AskedBefore, EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.transaction import Draft
from tests.live.store_end import close_after_calls
from tests.live.stores import KINDS, store_url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url(request.param, tmp_path) as made:
        store = EventStore(made)
        upgrade(store)
        store.close()
        yield made


@asynccontextmanager
async def two_logs(url: str, folder: Path) -> AsyncIterator[tuple[LiveLog, LiveLog]]:
    stores = [EventStore(url), EventStore(url)]
    folders = [folder / "a", folder / "b"]
    for one in folders:
        one.mkdir()
    first, second = (LiveLog(store, one) for store, one in zip(stores, folders, strict=True))
    async with asyncio.TaskGroup() as group:
        tasks = []
        for log in (first, second):
            ready = asyncio.Event()
            tasks.append(group.create_task(log.run(ready.set)))
            await ready.wait()
        try:
            yield first, second
        finally:
            for task in tasks:
                task.cancel()
    await close_after_calls(*stores)


def job(key: str, user: str = "ann") -> JobSubmitted:
    return JobSubmitted(spec=JobSpec(argv=("true",)), user=user, key=key)


def reservation(key: str) -> NodesReserved:
    return NodesReserved(nodes=("n0",), begin_s=1.0, end_s=2.0, reason="", by="ann", key=key)


@pytest.mark.parametrize("make", [job, reservation])
def test_what_comes_to_both_managers_at_one_moment_is_written_once(
    make: Callable[[str], JobSubmitted | NodesReserved], url: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with two_logs(url, tmp_path) as logs:
            events = [make(f"key-{number}") for number in range(20)]
            asked = [
                [idempotency.write(event, request_of(event), "test") for event in events]
                for idempotency in map(Idempotency, logs)
            ]
            first, second = await asyncio.gather(*(asyncio.gather(*one) for one in asked))

            assert first == second
            assert len(set(first)) == 20
            written = [entry.event for entry in logs[0].store.read_all() if entry.event in events]
            assert sorted(written, key=repr) == sorted(events, key=repr)

    asyncio.run(run())


def test_a_request_that_the_writer_has_not_read_yet_is_found_where_it_writes(url: str) -> None:
    store = EventStore(url)
    read_to = store.extent().last_seq
    store.append([Draft(event=job("a"), cause="first")], 1.0)
    store.append([Draft(event=ReleaseRequested(job_id="1", by="ann"), cause="first")], 1.0)

    with pytest.raises(AskedBefore):
        store.append(
            [Draft(event=job("b"), cause="second"), Draft(event=job("a"), cause="second")], 2.0, read_to=read_to
        )
    for other in (job("b"), job("a", user="bob"), job(""), reservation("a")):
        store.append([Draft(event=other, cause="second")], 2.0, read_to=read_to)
    for _ in range(2):  # without a key each is one of its own
        store.append([Draft(event=job(""), cause="second")], 2.0, read_to=read_to)

    assert [entry.cause for entry in store.read_all()] == ["first", "first", *["second"] * 6]
    store.close()


def test_those_who_write_beside_a_request_that_was_made_before_are_not_kept_from_it(url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with two_logs(url, tmp_path) as (first, second):
            await first.write([job("a")], "test")

            results = await asyncio.gather(
                second.write([job("")], "test"), second.write([job("a")], "test"), second.write([job("c")], "test"),
                return_exceptions=True,
            )  # fmt: skip

            assert [type(result) for result in results] == [range, AskedBefore, range]
            assert len(second.state.jobs) == 3

    asyncio.run(run())
