"""Usage: GPU hours, waiting and energy, by hand and against a log of any shape."""

import asyncio
import math
import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.sleep_time import J_PER_KWH
from farside.scheduler.manager.view.usage import By, show_usage, usage_of
from tests.live.test_api import THIRD, an_api
from tests.live.world import World, rules

USER = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
GPU_W = 500.0


def two_jobs() -> World:
    """On 4 GPUs: ann's job holds all of them for 100 s while bob's waits; then his runs for 50 s, and goes on."""
    w = World(rules(), nodes=1)
    first = w.submit(4, user="ann", account="ml")
    w.runs(first)
    second = w.submit(2, user="bob", account="ml")
    w.pass_s(100)
    w.exits(first)
    w.runs(second)
    w.pass_s(50)
    return w


def test_what_was_held_and_waited_for_is_added_up_by_user_and_by_account() -> None:
    w = two_jobs()
    jobs = w.state.jobs.values()

    by_user = usage_of(jobs, By.USER, 0, w.now_s, GPU_W)
    (by_account,) = usage_of(jobs, By.ACCOUNT, 0, w.now_s, GPU_W)

    assert [(one.name, one.gpu_s, one.wait_s, one.jobs, one.ended) for one in by_user] == [
        ("ann", 400, 0, 1, 1),
        ("bob", 100, 100, 1, 0),
    ]
    assert (by_account.name, by_account.gpu_s, by_account.energy_j) == ("ml", 500, 500 * GPU_W)
    assert show_usage(by_account).kwh == pytest.approx(500 * GPU_W / J_PER_KWH)


def test_a_time_counts_only_what_lies_in_it_and_parts_add_up_to_the_whole() -> None:
    w = two_jobs()
    jobs = w.state.jobs.values()
    begun_s = w.now_s - 150

    first = usage_of(jobs, By.USER, begun_s + 20, begun_s + 40, GPU_W)

    assert [(one.name, one.gpu_s, one.wait_s) for one in first] == [("ann", 80, 0), ("bob", 0, 20)]
    assert usage_of(jobs, By.USER, begun_s + 101, begun_s + 102, GPU_W)[0].name == "bob"
    assert usage_of(jobs, By.USER, 0, begun_s - 1, GPU_W) == ()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["ann", "bob"]), st.floats(0, 50)), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_whatever_happens_users_and_accounts_used_the_same_and_two_halves_make_the_whole(
    jobs: list[tuple[int, str, float]], part: float
) -> None:
    w = World(rules("srtf"), nodes=1)
    for gpus, user, pause_s in jobs:
        w.submit(gpus, user=user, time_limit_s=1000.0 / gpus)
        for job_id in list(w.state.unfinished):
            w.runs(job_id)
        w.pass_s(pause_s)
        for job_id in list(w.state.unfinished):
            if w.phase(job_id) is Phase.STOPPING:
                w.exits(job_id, 143, "stopped")
    middle_s = 1000 + part * (w.now_s - 1000)

    def total(begin_s: float, end_s: float, by: By = By.USER) -> float:
        return math.fsum(one.gpu_s + one.wait_s for one in usage_of(w.state.jobs.values(), by, begin_s, end_s, GPU_W))

    held = sum(job.held_until(w.now_s) * job.spec.gpus for job in w.state.jobs.values())
    whole = usage_of(w.state.jobs.values(), By.USER, 0, w.now_s, GPU_W)
    assert sum(one.gpu_s for one in whole) == pytest.approx(held)
    assert total(0, w.now_s) == pytest.approx(total(0, w.now_s, By.ACCOUNT))
    assert total(0, w.now_s) == pytest.approx(total(0, middle_s) + total(middle_s, w.now_s))


def test_a_user_sees_only_their_own_use_and_an_operator_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            for uid in (USER.pw_uid, THIRD.pw_uid):
                await api.as_uid(uid).post("/v1/jobs", json={"argv": ["true"]})
            own, every = [(await api.as_uid(uid).get("/v1/usage")).json() for uid in (USER.pw_uid, 0)]
            wrong = await api.as_uid(0).get("/v1/usage", params={"from_s": 9e9})

        assert [row["name"] for row in own["rows"]] == [USER.pw_name]
        assert {row["name"] for row in every["rows"]} == {THIRD.pw_name, USER.pw_name}
        assert (wrong.status_code, wrong.json()["detail"]) == (422, "from_s: must not be later than to_s or now")

    asyncio.run(run())
