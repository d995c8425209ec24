"""What one user may have in the queue, and that its count follows the log."""

import asyncio
import os
import pwd
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.manager.model.event import CancelRequested, JobSubmitted
from farside.scheduler.manager.model.queue_quota import QueueCounts, QueueGate, QueueLimits
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.submit_rate import SubmitRates, TooMany
from tests.live.test_api import OTHER, THIRD, an_api
from tests.live.world import World, rules

FOURTH = next(one for one in pwd.getpwall() if one.pw_uid not in (0, os.geteuid(), OTHER.pw_uid, THIRD.pw_uid))
OTHER_NAME, OTHER_UID = OTHER.pw_name, OTHER.pw_uid


def test_the_counts_follow_the_jobs_and_a_snapshot_has_them_too() -> None:
    world = World(rules(), nodes=1)
    world.submit(4, user="ann", env={"A": "12345"})
    array = world.submit(4, user="ann", count=3, env={"B": "1"})
    world.submit(4, user="eve")
    size = len("true") + len("A12345")
    world.does(CancelRequested(job_id=f"{array}_0", by="ann"))
    counts = world.state.queued

    assert (counts.jobs, counts.size_bytes) == ({"ann": 3, "eve": 1}, {"ann": size + len("trueB1"), "eve": 4})
    assert decode_state(encode_state(world.state)).queued == counts
    for at in (1, 2):
        world.does(CancelRequested(job_id=f"{array}_{at}", by="ann"))
    world.exits("1")
    world.exits("3")
    assert counts == QueueCounts()


def passing(
    gate: QueueGate, user: str, jobs: int, *, is_free: bool = False, hourly: SubmitRates | None = None
) -> AbstractContextManager[None]:
    event = JobSubmitted(spec=JobSpec(argv=("true",)), user=user, count=jobs)
    return gate.passing(event, QueueCounts(), hourly or SubmitRates(), 1000.0, is_free=is_free)


def test_what_is_on_its_way_into_the_log_counts_already_and_what_failed_does_not() -> None:
    gate = QueueGate(QueueLimits(jobs=10))

    with passing(gate, "ann", 6):
        with pytest.raises(ConfigError), passing(gate, "ann", 5):
            pass
        with passing(gate, "eve", 10), passing(gate, "ann", 5, is_free=True):
            pass
    with passing(gate, "ann", 10):
        pass


def test_what_is_on_its_way_counts_among_those_of_the_hour_too() -> None:
    gate, hourly = QueueGate(QueueLimits(hourly_jobs=10)), SubmitRates()
    hourly.come("ann", 4, 900.0)

    with passing(gate, "ann", 3, hourly=hourly):
        with pytest.raises(TooMany, match="ann has submitted 7 jobs within the hour, of at most 10"):
            passing(gate, "ann", 4, hourly=hourly).__enter__()
        with passing(gate, "eve", 10, hourly=hourly), passing(gate, "ann", 50, hourly=hourly, is_free=True):
            pass


@pytest.mark.parametrize(
    ("limits", "more", "says"),
    [
        (
            QueueLimits(jobs=3),
            {"count": 3},
            f"count: asks for 3, and {OTHER_NAME} has 1 of at most 3 jobs that are not over "
            "(max_queued_jobs_per_user); wait until some are over, or cancel some",
        ),
        (
            QueueLimits(size_bytes=1000),
            {"env": {"A": "b" * 1000}},
            f"env, argv: take 1005 B, and those of {OTHER_NAME}'s jobs that are not over 4 B, of at most 1000 B "
            "(max_queued_bytes_per_user); wait until some are over, or cancel some, or put it into files",
        ),
    ],
)
def test_who_has_too_much_in_the_queue_is_told_in_one_line_and_others_and_operators_may_go_on(
    limits: QueueLimits, more: dict[str, object], says: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with an_api(tmp_path, queue_limits=limits, operators=frozenset({FOURTH.pw_name})) as api:
            body = {"argv": ["true"], "hold": True}
            assert (await api.as_uid(OTHER_UID).post("/v1/jobs", json=body)).status_code == 201
            refused = await api.as_uid(OTHER_UID).post("/v1/jobs", json={**body, **more})
            others = [
                (await api.as_uid(uid).post("/v1/jobs", json=body)).status_code for uid in (OTHER_UID, THIRD.pw_uid)
            ]
            more_of_it = {**body, "count": 5, "env": {"A": "b" * 1000}}
            operator = await api.as_uid(FOURTH.pw_uid).post("/v1/jobs", json=more_of_it)

        assert (refused.status_code, " ".join(refused.json()["detail"].split())) == (422, says)
        assert (others, operator.status_code) == ([201, 201], 201)

    asyncio.run(run())


def test_many_requests_at_once_do_not_slip_through_together(tmp_path: Path) -> None:
    async def run() -> Counter[int]:
        async with an_api(tmp_path, queue_limits=QueueLimits(jobs=10)) as api:
            client = api.as_uid(OTHER_UID)
            body = {"argv": ["true"], "hold": True, "count": 3}
            return Counter([one.status_code for one in await asyncio.gather(
                *(client.post("/v1/jobs", json=body) for _ in range(8))
            )])  # fmt: skip

    assert asyncio.run(run()) == {201: 3, 422: 5}
