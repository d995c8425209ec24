"""How many jobs a user may submit within an hour, and that neither a restart nor an image forgets it."""

import asyncio
from pathlib import Path

import httpx
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.manager.model.event import CancelRequested
from farside.scheduler.manager.model.queue_quota import QueueLimits
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.submit_rate import BYTES_A_JOB, STEP_S, WINDOW_S, SubmitRates, TooMany, jobs_of
from tests.live.test_api import OTHER, THIRD, Api, an_api
from tests.live.world import World, rules

LIMIT = 10


def room_in_s(counts: SubmitRates, jobs: int, now_s: float) -> float:
    """0: now."""
    try:
        counts.check("ann", jobs, beside=0, limit=LIMIT, now_s=now_s)
    except TooMany as refusal:
        return refusal.after_s
    return 0.0


@given(st.lists(st.tuples(st.integers(1, LIMIT), st.floats(0.0, 3000.0)), max_size=40))
def test_no_hour_has_more_than_the_limit_whenever_it_begins_and_who_waits_as_told_has_room(
    asked: list[tuple[int, float]],
) -> None:
    counts, now_s = SubmitRates(), 1e9
    taken: list[tuple[float, int]] = []
    for jobs, pause_s in asked:
        now_s += pause_s
        wait_s = room_in_s(counts, jobs, now_s)
        if wait_s:
            assert wait_s <= WINDOW_S + STEP_S
            assert not room_in_s(counts, jobs, now_s + wait_s)
            continue
        counts.come("ann", jobs, now_s)
        taken.append((now_s, jobs))

    for begin_s, _ in taken:
        assert sum(jobs for at_s, jobs in taken if begin_s <= at_s < begin_s + WINDOW_S) <= LIMIT


def test_cancelled_jobs_and_those_of_arrays_count_and_an_image_has_them() -> None:
    world = World(rules(), nodes=1)
    for _ in range(3):
        world.does(CancelRequested(job_id=world.submit(user="ann"), by="ann"))
    world.submit(user="ann", count=4)
    world.submit(user="eve")

    again = decode_state(encode_state(world.state))

    for state in (world.state, again):
        assert [state.submit_rates.of(user, world.now_s) for user in ("ann", "eve", "bob")] == [7, 1, 0]
        assert state.submit_rates.of("ann", world.now_s + WINDOW_S + STEP_S) == 0
    world.lead()
    assert world.state.submit_rates.steps == again.submit_rates.steps


def test_users_who_submit_no_more_are_forgotten() -> None:
    counts = SubmitRates()
    for at in range(100):
        counts.come(f"user{at}", 1, 0.0)

    counts.come("ann", 1, WINDOW_S + STEP_S)

    assert set(counts.steps) == {"ann"}


def test_long_arguments_count_as_several_jobs_also_where_they_were_cancelled() -> None:
    """[M5] By half a MiB of arguments, submitted and cancelled again and again, a user wrote 10 GB an hour."""
    world = World(rules(), nodes=1)
    job = world.submit(user="ann", env={"DATA": "x" * (3 * BYTES_A_JOB)})
    world.does(CancelRequested(job_id=job, by="ann"))

    assert world.state.submit_rates.of("ann", world.now_s) == 1 + 3
    assert (jobs_of(1, BYTES_A_JOB), jobs_of(1, BYTES_A_JOB + 1), jobs_of(5, 0)) == (1, 2, 5)


def test_who_submits_long_arguments_is_told_as_how_many_jobs_they_count(tmp_path: Path) -> None:
    """[M5]"""

    async def live() -> list[httpx.Response]:
        async with an_api(tmp_path, queue_limits=QueueLimits(hourly_jobs=LIMIT)) as api:
            long = ["true", *["x" * 100_000] * 2]
            told = [await _submit(api, OTHER.pw_uid, argv=long, env={"A": "x" * 50_000})]
            return [*told, *[await _submit(api, OTHER.pw_uid, argv=["true", "x" * 100_000]) for _ in range(2)]]

    over, first, second = asyncio.run(live())

    assert [one.status_code for one in (over, first, second)] == [422, 201, 429]
    assert "so that this counts as 16 jobs, and a user submits at most 10 within an hour" in over.json()["detail"]
    assert "there is room for 7 more in " in second.json()["detail"]


async def _submit(api: Api, uid: int, **more: object) -> httpx.Response:
    return await api.as_uid(uid).post("/v1/jobs", json={"argv": ["true"]} | more)


def test_a_loop_of_submit_and_cancel_is_told_when_to_come_again_also_after_a_restart(
    tmp_path: Path,
) -> None:
    refused: list[httpx.Response] = []

    async def before() -> None:
        operators = frozenset({THIRD.pw_name})
        async with an_api(tmp_path, queue_limits=QueueLimits(hourly_jobs=3), operators=operators) as api:
            for _ in range(3):
                (job,) = (await _submit(api, OTHER.pw_uid)).json()["ids"]
                assert (await api.as_uid(OTHER.pw_uid).post(f"/v1/jobs/{job}/cancel")).status_code == 200
            refused.append(await _submit(api, OTHER.pw_uid))
            assert (await _submit(api, THIRD.pw_uid, count=50)).status_code == 201
            notes = (await api.as_uid(THIRD.pw_uid).get("/v1/audit")).json()["entries"]
            assert sum("429: more than max_hourly_jobs_per_user" in str(note) for note in notes) == 1

    async def after() -> None:
        async with an_api(tmp_path, queue_limits=QueueLimits(hourly_jobs=3)) as api:
            refused.append(await _submit(api, OTHER.pw_uid))
            refused.append(await _submit(api, OTHER.pw_uid, count=4))

    asyncio.run(before())
    asyncio.run(after())

    assert [answer.status_code for answer in refused] == [429, 429, 422]
    for answer in refused[:2]:
        assert 0 < int(answer.headers["retry-after"]) <= WINDOW_S + STEP_S
        told = answer.json()["detail"]
        assert told.startswith(f"{OTHER.pw_name} has submitted 3 jobs within the hour, of at most 3 (max_hourly_jobs_")
        assert "; there is room for 1 more in " in told
    assert refused[2].json()["detail"].startswith("count: asks for 4, and a user submits at most 3 jobs within an hour")


def test_without_a_limit_anybody_submits_any_number(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            assert (await _submit(api, OTHER.pw_uid, count=30_000)).status_code == 201

    asyncio.run(run())


def test_holding_and_releasing_count_and_who_does_it_without_end_is_told_to_wait(tmp_path: Path) -> None:
    """[M5] A user wrote 41,330 entries in 15 s by holding a job and releasing it."""

    async def live() -> tuple[list[int], int, int]:
        async with an_api(tmp_path, queue_limits=QueueLimits(hourly_jobs=LIMIT)) as api:
            told = await _submit(api, OTHER.pw_uid)
            path = f"/v1/jobs/{told.json()['ids'][0]}"
            http = api.as_uid(OTHER.pw_uid)
            asked = [
                (await http.post(f"{path}/{what}")).status_code for _ in range(LIMIT) for what in ("hold", "release")
            ]
            written = api.log.state.seq
            cancels = [(await http.post(f"{path}/cancel")).status_code for _ in range(5)]
            assert set(cancels) == {200}
            return asked, written, api.log.state.seq - written

    asked, _, by_cancels = asyncio.run(live())

    assert asked[: LIMIT - 1] == [200] * (LIMIT - 1)
    assert 429 in asked[LIMIT - 1 :]
    assert by_cancels == 1, "one cancel is in the log once"
