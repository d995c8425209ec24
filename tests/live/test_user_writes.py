"""What a user may write into the log at a time, and that others do not wait for it [M5]."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from farside.scheduler.manager.api.limit import user_writes
from farside.scheduler.manager.api.limit.user_writes import (
    BURST_BYTES,
    BURST_ENTRIES,
    BYTES_PER_S,
    ENTRIES_PER_S,
    ENTRY_BYTES,
    PATIENCE_S,
    WRITERS,
    UserWrites,
    WriteBudget,
)
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.submit_rate import TooMany
from tests.live.test_api import OTHER, THIRD, Api, an_api

ANN, BOB = (Caller(name=name, role=Role.USER) for name in ("ann", "bob"))
CARL = Caller(name="carl", role=Role.OPERATOR)
ALL = BURST_BYTES + int(PATIENCE_S * BYTES_PER_S) - ENTRY_BYTES  # the most that is taken at once, after a wait


class Waits:
    """A clock that a wait moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waited_s: list[float] = []
        self.writes = UserWrites(lambda: self.now_s, is_on=True, sleep=self.sleep)

    async def sleep(self, wait_s: float) -> None:
        self.waited_s.append(wait_s)
        self.now_s += wait_s

    async def write(self, caller: Caller, size_bytes: int = 0) -> None:
        async with self.writes.turn(caller, size_bytes):
            pass


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 600_000)), max_size=60))
def test_no_time_has_more_bytes_or_entries_than_the_burst_and_the_rate(steps: list[tuple[float, int]]) -> None:
    budget, now_s = WriteBudget(0.0), 0.0
    written: list[tuple[float, int]] = []  # when, in the order in which it was taken
    for pause_s, size_bytes in steps:
        now_s += pause_s
        written.append((now_s + budget.wait_s(1, size_bytes, now_s), size_bytes))
        budget.take(1, size_bytes, now_s)

    for end_s, _ in written:
        until = [size_bytes for at_s, size_bytes in written if at_s <= end_s]
        assert sum(until) <= BURST_BYTES + BYTES_PER_S * end_s + 1
        assert len(until) <= BURST_ENTRIES + ENTRIES_PER_S * end_s + 1e-3


def test_the_first_entries_do_not_wait_and_the_others_wait_in_the_order_in_which_they_came() -> None:
    waits = Waits()

    async def many() -> None:
        for _ in range(BURST_ENTRIES + 3):
            await waits.write(ANN)

    asyncio.run(many())

    assert waits.waited_s == pytest.approx([1 / ENTRIES_PER_S] * 3)


def test_what_would_wait_too_long_is_refused_and_counts_for_nothing() -> None:
    waits = Waits()
    asyncio.run(waits.write(ANN, ALL))
    waited_s = waits.waited_s.copy()

    waits.now_s = 0.0
    with pytest.raises(TooMany) as refusal:
        asyncio.run(waits.write(ANN, 100 * ENTRY_BYTES))
    waits.now_s = refusal.value.after_s + 1e-6
    asyncio.run(waits.write(ANN, 100 * ENTRY_BYTES))

    assert "ann asks for more than the manager writes down at a time" in str(refusal.value)
    assert waited_s == pytest.approx([PATIENCE_S])
    assert waits.waited_s[-1] == pytest.approx(PATIENCE_S, abs=1e-3)


def test_another_user_and_an_operator_do_not_wait_for_one_who_writes_without_end() -> None:
    waits = Waits()
    asyncio.run(waits.write(ANN, ALL))
    waits.waited_s.clear()

    asyncio.run(waits.write(BOB, BURST_BYTES - ENTRY_BYTES))
    asyncio.run(waits.write(CARL, 100 * BURST_BYTES))

    assert waits.waited_s == []


def test_jobs_can_be_cancelled_whatever_their_user_has_written() -> None:
    waits = Waits()
    asyncio.run(waits.write(ANN, ALL))
    waits.now_s, waits.waited_s = 0.0, []

    async def cancel() -> None:
        async with waits.writes.cancelling(ANN):
            pass

    asyncio.run(cancel())

    assert waits.waited_s == [PATIENCE_S]


def test_who_has_cancelled_many_jobs_submits_again_as_soon_as_who_has_submitted_too_much() -> None:
    """[M5] Ten thousand cancellations, of one array, put a user's next submission off by five minutes."""
    waits = Waits()
    budget = waits.writes._user(ANN).budget
    for _ in range(10_000):
        budget.take_cancel(0.0)

    with pytest.raises(TooMany) as refusal:
        asyncio.run(waits.write(ANN))
    waits.now_s = refusal.value.after_s + 1e-6
    asyncio.run(waits.write(ANN))

    assert refusal.value.after_s == pytest.approx(2 * ENTRY_BYTES / BYTES_PER_S, abs=ENTRY_BYTES / BYTES_PER_S)
    assert waits.waited_s == pytest.approx([PATIENCE_S], abs=1e-3)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.booleans()), max_size=60))
def test_cancellations_never_owe_more_than_comes_back_while_a_request_waits(steps: list[tuple[float, bool]]) -> None:
    budget, now_s = WriteBudget(0.0), 0.0
    budget.take(0, ALL, now_s)
    for pause_s, is_cancel in steps:
        now_s += pause_s
        if is_cancel:
            budget.take_cancel(now_s)
        elif budget.wait_s(1, ENTRY_BYTES, now_s) <= PATIENCE_S:
            budget.take(1, ENTRY_BYTES, now_s)

        assert budget.wait_s(0, 0, now_s) <= PATIENCE_S + 1e-6


def test_few_requests_of_a_user_write_at_the_same_time() -> None:
    writes, inside, most = UserWrites(lambda: 0.0, is_on=True), 0, 0

    async def write() -> None:
        nonlocal inside, most
        async with writes.turn(ANN):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async def many() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(write())

    asyncio.run(many())

    assert most == WRITERS


def test_a_user_who_fills_the_store_is_told_to_come_again_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[M5] With 16 KiB of arguments in each of 20,000 jobs a user wrote 320 MB within minutes."""
    monkeypatch.setattr(user_writes, "REFUSAL_S", 0.0)
    monkeypatch.setattr(user_writes, "PATIENCE_S", 0.0)

    async def submit(api: Api, uid: int) -> httpx.Response:
        body = {"argv": ["true", *["x" * 100_000] * 2], "env": {"A": "x" * 100_000}}
        return await api.as_uid(uid).post("/v1/jobs", json=body)

    async def live() -> tuple[list[httpx.Response], list[httpx.Response], int]:
        async with an_api(tmp_path, paces_users=True) as api:
            flood = [await submit(api, OTHER.pw_uid) for _ in range(20)]
            size_bytes = sum(job.spec.size_bytes for job in api.log.state.jobs.values())
            jobs = [answer.json()["ids"][0] for answer in flood if answer.status_code == 201]
            cancels = [await api.as_uid(OTHER.pw_uid).post(f"/v1/jobs/{job}/cancel") for job in jobs]
            return flood, [*cancels, await submit(api, THIRD.pw_uid)], size_bytes

    flood, others, size_bytes = asyncio.run(live())

    refused = [answer for answer in flood if answer.status_code == 429]
    assert size_bytes <= BURST_BYTES
    assert len(refused) == len(flood) - 3
    assert "more than the manager writes down at a time; come again in " in refused[0].json()["detail"]
    assert int(refused[0].headers["retry-after"]) > 0
    assert {answer.status_code for answer in others} == {200, 201}


def test_a_body_that_would_be_refused_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[M5] Half a MiB that is taken apart and then refused kept others waiting as long as one that was written.

    What is written of a long body may be far less, so one is looked into where as much may be written as ever.
    """
    monkeypatch.setattr(user_writes, "REFUSAL_S", 0.0)
    monkeypatch.setattr(user_writes, "PATIENCE_S", 0.0)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 1_500_000

    async def live() -> list[httpx.Response]:
        async with an_api(tmp_path, paces_users=True) as api:
            http = api.as_uid(OTHER.pw_uid)
            job = msgspec.json.encode({"argv": ["true", "x" * 100_000]})
            return [
                await http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
                for content in (b"x" * 1_500_000, job, b"x" * 1_500_000, pieces(), b"x" * 1000)
            ]

    first, taken, whole, in_pieces, short = asyncio.run(live())

    assert (first.status_code, taken.status_code) == (422, 201)
    assert (whole.status_code, in_pieces.status_code) == (429, 429)
    assert short.status_code == 422  # it is no JSON, which is noticed by looking


async def answer_after_a_wait(
    api: Api, request: Coroutine[Any, Any, httpx.Response], meanwhile: Callable[[], object]
) -> httpx.Response:
    """The answer to a request of OTHER's whose turn comes only when something has happened meanwhile."""
    writing = api.context.writes._user(Caller(name=OTHER.pw_name, role=Role.USER)).writing
    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            await writing.acquire()
        asked = group.create_task(request)
        while not writing._waiters:  # its turn has not come
            await asyncio.sleep(0)
        meanwhile()
        for _ in range(WRITERS):
            writing.release()
    return asked.result()


def test_a_job_that_ended_while_its_hold_waited_is_not_held(tmp_path: Path) -> None:
    async def live() -> tuple[httpx.Response, str]:
        async with an_api(tmp_path, paces_users=True) as api:
            http, jobs = api.as_uid(OTHER.pw_uid), api.log.state.jobs
            job = (await http.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]

            def end() -> None:
                jobs[job] = structs.replace(jobs[job], phase=Phase.CANCELLED)

            return await answer_after_a_wait(api, http.post(f"/v1/jobs/{job}/hold"), end), jobs[job].held_by

    answer, held_by = asyncio.run(live())

    assert answer.status_code == 409
    assert "is over" in answer.json()["detail"]
    assert held_by == ""


def test_a_job_after_one_that_was_forgotten_while_its_submission_waited_is_refused(tmp_path: Path) -> None:
    """It was taken, and cancelled at once as waiting for a job that is not known."""

    async def live() -> tuple[httpx.Response, list[str], str]:
        async with an_api(tmp_path, paces_users=True) as api:
            http, jobs = api.as_uid(OTHER.pw_uid), api.log.state.jobs
            job = (await http.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
            later = http.post("/v1/jobs", json={"argv": ["true"], "after": [job]})
            return await answer_after_a_wait(api, later, lambda: jobs.__delitem__(job)), list(jobs), job

    answer, left, job = asyncio.run(live())

    assert (answer.status_code, answer.json()) == (422, {"detail": f"after: there is no job {job} of yours"})
    assert left == []
