"""The scheduler process beside its store: what it writes at once, and whom it keeps waiting."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy.event import listen

from farside import admin
from farside.agent import messages
from farside.errors import FarsideError
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain
from farside.scheduler.manager.decider import cycle_failures as mishap
from farside.scheduler.manager.decider import planner
from farside.scheduler.manager.decider import scheduler_process as brain
from farside.scheduler.manager.decider.cycle_failures import IN_A_ROW_MAX, CycleFailures, CyclesFail
from farside.scheduler.manager.decider.scheduler_process import ASK, WAKE, SchedulerProcess
from farside.scheduler.manager.log_wakeup import wake
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    AllocationReleased,
    CancelRequested,
    Event,
    JobAllocated,
    JobEnded,
    JobStarted,
    JobSubmitted,
    NodeChanged,
    ServiceChanged,
    TaskChanged,
    TaskPhase,
)
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.transaction import Draft
from farside.scheduler.state import Action
from tests.live.facts import gpus, joined
from tests.live.world import rules

DEADLINE_S = 90.0
NODE = joined("n0", cpus=8, memory_bytes=1 << 36, headroom_bytes=1 << 36, gpus=gpus(1, "H200"))
JOB = JobSubmitted(spec=JobSpec(argv=("true",), gpus=1), user="ann")


class Led:
    """A store that a scheduler process of this process leads."""

    def __init__(self, store: EventStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def tell(self, *events: Event) -> None:
        self.store.append([Draft(event=event, cause="test") for event in events], 0.0)
        wake(self.folder / WAKE)

    def events(self) -> list[Event]:
        return [entry.event for entry in self.store.read_all()]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                await asyncio.sleep(0.01)

    def has(self, kind: type[Event], job_id: str) -> bool:
        return any(isinstance(event, kind) and getattr(event, "job_id", "") == job_id for event in self.events())

    async def ask(self, command: str, **more: object) -> Any:
        return await admin.ask(self.folder / ASK, command, timeout_s=DEADLINE_S, **more)

    async def until_it_wants_to_write(self) -> None:
        """It decides as soon as it has read."""
        while (await self.ask("status"))["seq"] < self.store.extent().last_seq:
            await asyncio.sleep(0.01)


class FailingCycle:
    """The cycle, which fails so many times after it has decided, and booked that."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, domain: Domain, now_s: float, lenders: Sequence[Domain]) -> tuple[Action, ...]:
        actions = run_cycle(domain, now_s, lenders)
        if self.left:
            self.left -= 1
            raise ZeroDivisionError("a policy's\nfault")
        return actions


@asynccontextmanager
async def led(folder: Path) -> AsyncIterator[Led]:
    store = EventStore(f"sqlite:///{folder}/manager.db")
    upgrade(store)
    running = asyncio.ensure_future(SchedulerProcess(store, rules(), folder, "test").run())
    try:
        yield Led(store, folder)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.close()


def play(story: Callable[[Led], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        async with led(folder) as one:
            await story(one)

    asyncio.run(main())


EXITED = TaskChanged(node="n0", job_id="1", start=1, rank=0, phase=TaskPhase.EXITED, exit_code=0)


def test_the_place_of_a_job_and_its_start_are_one_commit(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        commits: list[object] = []
        listen(one.store.engine, "commit", commits.append)

        one.tell(EXITED)
        await one.until(lambda: one.has(JobStarted, "2"))

        assert [type(event) for event in one.events()[-3:]] == [JobEnded, JobAllocated, JobStarted]
        assert len(commits) == 3  # what was told, what followed, and what the cycle gave

    play(story, tmp_path)


def test_what_others_wrote_meanwhile_stands_before_a_decision_and_is_known_to_what_follows(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        one.tell(EXITED)
        with one.store.turn() as turn:
            await one.until_it_wants_to_write()
            turn.add([Draft(event=CancelRequested(job_id="2", by="ann"), cause="test")], 0.0)
        await one.until(lambda: one.has(JobEnded, "2"))

        assert [type(event) for event in one.events()[-3:]] == [CancelRequested, JobEnded, JobEnded]
        assert not one.has(JobStarted, "2")

    play(story, tmp_path)


def test_a_donor_that_shrinks_while_a_decision_is_on_its_way_keeps_the_job_from_its_start(tmp_path: Path) -> None:
    def donor(lends_bytes: int) -> messages.Donor:
        return messages.Donor(node="d", control="tcp:d:1", capacity_bytes=lends_bytes)

    async def story(one: Led) -> None:
        swap = messages.Swap(size_bytes=1 << 36)
        lender = joined("d", memory_bytes=1 << 36, donor=donor(1 << 30))
        needs = JobSpec(argv=("true",), gpus=1, memory_bytes_per_gpu=1.0, swap_bytes_per_gpu=float(1 << 30))
        one.tell(structs.replace(NODE, swap=swap, gpus=gpus(2, "H200")), lender, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        one.tell(JobSubmitted(spec=needs, user="ann"))
        with one.store.turn() as turn:
            await one.until_it_wants_to_write()
            less = NodeChanged(node="d", gpus=(), headroom_bytes=0, donor=donor(1 << 29))
            turn.add([Draft(event=less, cause="test")], 0.0)
        await one.until(lambda: one.has(AllocationReleased, "2"))
        assert not one.has(JobStarted, "2")

        one.tell(structs.replace(less, donor=donor(1 << 30)))
        await one.until(lambda: one.has(JobStarted, "2"))
        assert list(violations(one.store.read_all())) == []

    play(story, tmp_path)


def test_who_asks_why_a_job_waits_is_answered_while_another_writer_has_the_store(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        one.tell(EXITED)
        with one.store.turn():
            await one.until_it_wants_to_write()

            lines = await one.ask("explain", job_id="2")

        assert lines["lines"]
        await one.until(lambda: one.has(JobStarted, "2"))

    play(story, tmp_path)


def test_a_cycle_that_fails_is_told_in_one_line_and_tried_again_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mishap, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(planner, "run_cycle", FailingCycle(3))

    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        while (told := await one.ask("status"))[
            "cycle_failures_in_a_row"
        ]:  # it is in the log a moment before it counts
            await asyncio.sleep(0.01)

        assert told["cycle_failures"] == 3
        assert told["cycle_failure"] == "ZeroDivisionError: a policy's fault"
        assert told["cycle_failed_s"] > 0
        assert [type(event) for event in one.events()].count(JobAllocated) == 1  # there is one GPU
        assert (await one.ask("explain", job_id="2"))["lines"]

    with caplog.at_level("INFO"):
        play(story, tmp_path)

    lines = [record for record in caplog.records if record.message == "a cycle failed"]
    assert [record.exc_info for record in lines] == [None] * 3
    assert [getattr(record, "farside_fields")["in_a_row"] for record in lines] == [1, 2, 3]  # noqa: B009


def test_the_traceback_of_a_cycle_that_failed_is_for_developers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(planner, "run_cycle", FailingCycle(1))

    async def story(one: Led) -> None:
        one.tell(NODE, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))

    with caplog.at_level("DEBUG", logger="farside"):
        play(story, tmp_path)

    assert [record.levelname for record in caplog.records if record.exc_info] == ["DEBUG"]


def test_what_was_decided_by_a_cycle_that_fails_as_it_is_written_was_never_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [KeyError("n0")]

    def tell_of(event: Event) -> None:
        if isinstance(event, JobAllocated) and faults:
            raise faults.pop()

    monkeypatch.setattr(brain, "_tell_of", tell_of)

    async def story(one: Led) -> None:
        one.tell(NODE, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))

        assert (await one.ask("status"))["cycle_failures"] == 1
        assert [type(event) for event in one.events()].count(JobAllocated) == 1

    play(story, tmp_path)


def test_while_a_cycle_is_tried_again_nobody_is_told_why_a_job_waits_by_half_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mishap, "FIRST_PAUSE_S", DEADLINE_S)
    monkeypatch.setattr(mishap, "LONGEST_PAUSE_S", DEADLINE_S)
    monkeypatch.setattr(planner, "run_cycle", FailingCycle(1))

    async def story(one: Led) -> None:
        one.tell(NODE, JOB)
        await one.until((tmp_path / ASK).exists)
        while not (await one.ask("status"))["cycle_failures"]:
            await asyncio.sleep(0.01)

        with pytest.raises(FarsideError, match="the last cycle failed, by ZeroDivisionError: a policy's fault; it is"):
            await one.ask("explain", job_id="1")

    play(story, tmp_path)


def test_a_brain_whose_cycles_fail_one_after_another_ends_in_one_line_and_its_process_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mishap, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(planner, "run_cycle", FailingCycle(1000))
    store = EventStore(f"sqlite:///{tmp_path}/manager.db")
    upgrade(store)
    store.append([Draft(event=event, cause="test") for event in (NODE, JOB)], 0.0)

    with pytest.raises(CyclesFail) as failure:
        asyncio.run(asyncio.wait_for(SchedulerProcess(store, rules(), tmp_path, "test").run(), DEADLINE_S))
    store.close()

    assert str(failure.value).startswith(
        f"{IN_A_ROW_MAX} cycles failed one after another, the last by ZeroDivisionError"
    )
    assert failure.value.exit_code == 1


def test_a_job_that_fails_every_cycle_may_be_cancelled_and_the_others_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mishap, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(mishap, "IN_A_ROW_MAX", 1 << 30)

    def cycle(domain: Domain, now_s: float, lenders: Sequence[Domain]) -> tuple[Action, ...]:
        if any(job.gpus == 13 for job in domain.jobs.values()):
            raise ValueError("13 GPUs")
        return run_cycle(domain, now_s, lenders)

    monkeypatch.setattr(planner, "run_cycle", cycle)

    async def story(one: Led) -> None:
        one.tell(NODE, JobSubmitted(spec=JobSpec(argv=("true",), gpus=13), user="eve"), JOB)
        await one.until((tmp_path / ASK).exists)
        while not (await one.ask("status"))["cycle_failures"]:
            await asyncio.sleep(0.01)

        one.tell(CancelRequested(job_id="1", by="eve"))

        await one.until(lambda: one.has(JobStarted, "2"))

    play(story, tmp_path)


def test_pauses_between_failed_cycles_grow_up_to_the_longest_and_begin_anew() -> None:
    failures = CycleFailures()
    seen = []
    for _ in range(8):
        failures.note(KeyError("n0"), 7.0)
        seen.append(failures.pause_s)
    failures.note_success()
    failures.note(KeyError("n0"), 8.0)

    assert seen == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert (failures.pause_s, failures.count, failures.in_a_row, failures.last_s) == (0.1, 9, 1, 8.0)


def test_a_job_that_waits_with_its_gpus_is_told_in_the_log_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "PLANS_MAX", 1)
    job = JobSubmitted(spec=JobSpec(argv=("true",), gpus=1, aggregation="shared"), user="ann")
    nodes = [structs.replace(NODE, node=name, gpus=gpus(count, "H200")) for name, count in (("n0", 2), ("n1", 0))]
    offers = [ServiceChanged(node=one.node, name="aggregator", raw='{"cores":1}') for one in nodes]

    async def story(one: Led) -> None:
        one.tell(*nodes, *offers, job, job)
        await one.until(lambda: "a job has its GPUs and waits" in caplog.text)
        assert one.has(JobStarted, "1")
        assert one.has(JobAllocated, "2")
        assert not one.has(JobStarted, "2")

    play(story, tmp_path)
