"""Leases that run on beyond their first time limit: which may, what is refused and why, and who is told of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from farside.agent import messages as m
from farside.scheduler.manager.decider.extension import run_limit_s, why_not_extended
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    CancelRequested,
    DrainRequested,
    Event,
    LimitExtended,
    NodesReserved,
    StopCause,
    TaskPhase,
)
from farside.scheduler.manager.model.maintenance import still_there
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.view.view import show_job_in_full
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules

LEASE_S = 100.0


LEASE: Mapping[str, Any] = {"deployment": "vision", "argv": ("farside", "serve", "worker")}
NO_LEASES: Mapping[str, Mapping[str, Any]] = {
    "no lease": {"deployment": ""},
    "one that only names a deployment": {"argv": ("python", "train.py")},
}


def cluster(*, order: str = "fifo", nodes: int = 1, extends: bool = True, reserve_after_s: float = 1e9) -> World:
    world = World(replace(rules(order), reserve_after_s=reserve_after_s), nodes=0)
    for at in range(nodes):
        connected(world, FakeNode(f"n{at}", gpus=1, extends_limits=extends))
    return world


def connected(world: World, node: FakeNode) -> AgentLine:
    line = AgentLine(node.hello(), "127.0.0.1")
    for event in line.joined(world.state):
        world.does(event)
    return line


def leased(world: World, **more: object) -> str:
    asked: dict[str, object] = {**LEASE, "time_limit_s": LEASE_S, "preemptible": False, **more}
    job = world.submit(1, **asked)  # type: ignore[arg-type]
    world.runs(job)
    return job


def extended(world: World, job_id: str, left_s: float) -> str:
    """Extends it as the API does; or why not."""
    job = world.job(job_id)
    why = why_not_extended(world.state, job, left_s, world.now_s)
    if not why:
        limit_s = run_limit_s(job, left_s, world.now_s)
        world.does(LimitExtended(job_id=job_id, start=job.start, time_limit_s=limit_s, by="ann"))
    return why


def left_s(world: World, job_id: str) -> float | None:
    return show_job_in_full(world.job(job_id), world.now_s).left_s


def test_a_lease_runs_on_to_the_limit_to_which_it_was_extended_and_ends_there() -> None:
    w = cluster()
    job = leased(w)
    w.pass_s(90)
    assert left_s(w, job) == 10

    assert extended(w, job, 110) == ""

    assert left_s(w, job) == 110
    w.pass_s(109)
    assert (w.phase(job), left_s(w, job)) == (Phase.RUNNING, 1)
    w.pass_s(1)
    assert (w.phase(job), w.job(job).stop_cause) == (Phase.STOPPING, StopCause.TIME_LIMIT)
    assert w.job(job).reason == "it has held its GPUs for its time limit of 3.33 min"
    assert [*violations(w.log)] == []


def test_a_longer_limit_outlives_a_restart_and_a_snapshot_and_may_be_extended_again() -> None:
    w = cluster()
    job = leased(w)
    for _ in range(3):
        w.pass_s(90)
        assert extended(w, job, 100) == ""
        w.lead()
    w.lead(decode_state(encode_state(w.state)))

    assert left_s(w, job) == 100
    w.pass_s(99)
    assert w.phase(job) is Phase.RUNNING
    w.pass_s(2)
    assert w.phase(job) is Phase.STOPPING


def refused_lease(what: str) -> tuple[World, str]:
    w = cluster(nodes=2, extends=what != "old agent")
    job = leased(w, **NO_LEASES.get(what, {}))
    (node,) = w.job(job).nodes
    reserve = NodesReserved(nodes=(node,), begin_s=w.now_s + 150, end_s=w.now_s + 200, reason="disks", by="root")
    told: dict[str, Event] = {
        "drains": DrainRequested(node=node, reason="new disks", by="root"),
        "reserved": reserve,
        "cancelled": CancelRequested(job_id=job, by="ann"),
    }
    if what in told:
        w.does(told[what])
    return w, job


@pytest.mark.parametrize(
    ("what", "why"),
    [
        *((what, "job 1 is no worker of a deployment, and only these are extended") for what in NO_LEASES),
        ("old agent", "n0: its agent is of a version before this one: update it"),
        ("drains", "n0: new disks"),
        ("reserved", "job 1 would still run then: n0 reserved from "),
        ("cancelled", "job 1 is stopping: only a lease that runs is extended"),
    ],
)
def test_a_refusal_says_why_in_one_line_and_the_limit_stays(what: str, why: str) -> None:
    w, job = refused_lease(what)
    before_s = left_s(w, job)

    assert extended(w, job, 160).startswith(why)

    assert left_s(w, job) == before_s


def test_a_lease_that_ends_before_a_reservation_begins_is_extended_up_to_it() -> None:
    w, job = refused_lease("reserved")

    assert extended(w, job, 150) == ""

    assert still_there(w.state, w.state.maintenance["m1"], w.now_s) == []


def test_one_that_waits_or_has_begun_or_may_run_longer_or_too_long_is_not_extended() -> None:
    w = cluster()
    job = w.submit(1, **LEASE, time_limit_s=LEASE_S, preemptible=False)
    waiting = w.submit(1, **LEASE, time_limit_s=LEASE_S)

    found = [extended(w, one, 200) for one in (job, waiting)]
    w.runs(job)
    found += [extended(w, job, left_s) for left_s in (LEASE_S, 4.1e9)]

    assert found == [
        f"job {job} is starting: only a lease that runs is extended",
        f"job {waiting} is waiting: only a lease that runs is extended",
        f"job {job} may run longer than that already",
        f"job {job} would run for more than 4e+09 s",
    ]


@pytest.mark.parametrize("late", ["stopped", "another start", "shorter", "nobody's"])
def test_an_extension_that_comes_too_late_changes_nothing(late: str) -> None:
    w = cluster()
    job = leased(w)
    asked = LimitExtended(job_id=job, start=1, time_limit_s=500, by="ann")
    if late == "stopped":
        w.pass_s(LEASE_S)
    event = {
        "stopped": asked,
        "another start": LimitExtended(job_id=job, start=2, time_limit_s=500, by="ann"),
        "shorter": LimitExtended(job_id=job, start=1, time_limit_s=50, by="ann"),
        "nobody's": LimitExtended(job_id="9", start=1, time_limit_s=500, by="ann"),
    }[late]

    before = w.job(job)
    w.does(event)

    assert w.job(job) == before


def test_a_gpu_for_which_a_job_has_waited_long_is_promised_to_that_and_without_it_to_nobody() -> None:
    w = cluster(reserve_after_s=50)
    lease = leased(w)
    assert w.decider.promised_to(lease) == ""
    gang = w.submit(1)

    w.pass_s(60)

    assert w.decider.promised_to(lease) == gang


def test_one_that_was_preempted_after_an_extension_has_its_whole_limit_again() -> None:
    w = cluster(order="srtf")
    job = leased(w, preemptible=True)
    w.pass_s(90)
    assert extended(w, job, 300) == ""
    short = w.submit(1, time_limit_s=5.0)
    assert w.phase(job) is Phase.STOPPING
    w.exits(job, 143, "preempted")

    w.runs(short)
    w.exits(short)
    w.runs(job)

    assert (w.job(job).start, left_s(w, job)) == (2, LEASE_S)
    w.pass_s(LEASE_S - 1)
    assert w.phase(job) is Phase.RUNNING
    w.pass_s(1)
    assert w.phase(job) is Phase.STOPPING
    assert [*violations(w.log)] == []


def test_its_agent_is_told_once_a_connection_and_an_old_agent_never() -> None:
    w = cluster()
    job = leased(w)
    runs = m.TaskState(task_id=f"{job}.0", start=1, state="running", at_s=1.0)
    known = {(f"{job}.0", 1): runs}
    line = connected(w, FakeNode("n0", gpus=1, extends_limits=True, tasks=known))
    before = line.commands(w.state)
    w.pass_s(90)
    extended(w, job, 110)

    told, again = line.commands(w.state), line.commands(w.state)
    rejoined = connected(w, FakeNode("n0", gpus=1, extends_limits=True, tasks=known)).commands(w.state)
    old = connected(w, FakeNode("n0", gpus=1, tasks=known)).commands(w.state)

    assert told == rejoined == [m.Extend(task_id=f"{job}.0", start=1, generation=w.generation, time_limit_s=200)]
    assert before == again == old == []


@pytest.mark.parametrize(("ago_s", "is_wrong"), [(50.0, True), (0.0, False)])
def test_the_checker_finds_a_lease_that_is_ended_long_before_the_limit_to_which_it_was_extended(
    ago_s: float, is_wrong: bool
) -> None:
    w = cluster()
    job = leased(w)
    w.pass_s(LEASE_S)
    (stopping,) = (at for at, entry in enumerate(w.log) if type(entry.event).__name__ == "JobStopping")
    early = w.log[stopping]
    told = type(early)(
        seq=early.seq, at_s=early.at_s - ago_s, generation=0, cause="test",
        event=LimitExtended(job_id=job, start=1, time_limit_s=500, by="ann"),
    )  # fmt: skip
    later = type(early)(
        seq=early.seq + 1, at_s=early.at_s, generation=early.generation, cause="test", event=early.event
    )

    found = [*violations([*w.log[:stopping], told, later])]

    line = f"entry {later.seq}: job {job} is ended 400 s before the limit to which it was extended"
    assert found == ([line] if is_wrong else [])


def test_a_state_of_the_whole_log_is_the_deciders() -> None:
    w = cluster()
    job = leased(w)
    extended(w, job, 200)
    state = LiveState()
    for entry in w.log:
        apply(state, entry)

    found: LiveJob = state.jobs[job]
    assert found == w.job(job)
    assert found.limit_s == 200
    assert found.tasks[0].phase is TaskPhase.RUNNING
