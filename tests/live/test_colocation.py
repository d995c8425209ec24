"""Co-located jobs in the manager: where they run, what groups follow, and what the log says of them."""

import io
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from farside.agent import messages as m
from farside.agent.messages import EXECUTOR
from farside.cli.cluster_table import plan_table
from farside.errors import ConfigError
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.colocation import news
from farside.scheduler.manager.colocation.outlook import ColocationRules
from farside.scheduler.manager.colocation.state import JobTimes
from farside.scheduler.manager.model.accounts import charged
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    CancelRequested,
    DrainRequested,
    GroupsPlanned,
    HoldRequested,
    JobAllocated,
    JobStopping,
    NodeLost,
    NodesReserved,
    ReservationCancelled,
    ServiceChanged,
    StopCause,
    TaskTimed,
    UndrainRequested,
)
from farside.scheduler.manager.model.record import ACTIVE, Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.spec import JobSpec, spec_problems
from farside.scheduler.manager.nodes.dispatch import start_of
from farside.scheduler.manager.power.nodes_needed import nodes_needed
from farside.scheduler.manager.view import groups as view
from farside.scheduler.tenancy import Qos, Tenancy
from tests.agent.process import agent, until_connected, write_config
from tests.live.facts import joined
from tests.live.manager import running_manager
from tests.live.test_node_services import connected, report
from tests.live.test_sleeping_nodes import asleep
from tests.live.world import World, rules, submitted_spec
from tests.support.waiting import until
from tests.train.executors import executor

THERE = '{"is_there":true}'


def a_world(nodes: int = 2, gpus: int = 0, **more: Any) -> World:
    names = frozenset(f"n{at}" for at in range(nodes))
    told: dict[str, Any] = {"min_run_s": 0.0} | more
    world = World(rules(), nodes=nodes, gpus=gpus, colocation=ColocationRules(nodes=names, **told))
    for name in sorted(names):
        world.does(ServiceChanged(node=name, name=EXECUTOR, raw=THERE))
    return world


def submit(world: World, **more: Any) -> str:
    return world.submit(0, colocate=True, checkpoint_dir="/scratch/run", retries=3, **more)


def timed(
    world: World,
    job: str,
    comp_s: float,
    net_s: float,
    spill: m.SpilledInput | None = None,
    processor: m.ProcessorUse | None = None,
) -> None:
    """The node's executor says what an iteration of a job takes."""
    place = world.job(job)
    machines = len(place.nodes)
    world.does(
        TaskTimed(
            node=place.nodes[0], job_id=job, start=place.start, comp_s=comp_s, net_s=net_s, machines=machines,
            spill=spill, processor=processor,
        )
    )  # fmt: skip


def runs_measured(
    world: World, comp_s: float, net_s: float, processor: m.ProcessorUse | None = None, **more: Any
) -> str:  # fmt: skip
    job = submit(world, **more)
    if world.phase(job) in ACTIVE:
        world.runs(job)
        timed(world, job, comp_s, net_s, processor=processor)
    return job


AGGREGATOR = '{"cores": 1, "memory_bytes": 1073741824, "tcp": "0.0.0.0:9000", "takes_grants": true}'


def grouping_nodes(nodes: int, **more: Any) -> World:
    """Nodes that can be a group of several."""
    world = a_world(nodes, **more)
    for at in range(nodes):
        listens = '{"is_there":true,"listen":"0.0.0.0:7690"}'
        world.does(ServiceChanged(node=f"n{at}", name=EXECUTOR, raw=listens))
        world.does(ServiceChanged(node=f"n{at}", name="aggregator", raw=AGGREGATOR))
    return world


def together(world: World) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {group.nodes: group.jobs for group in world.state.colocation.groups}


def groups(world: World) -> dict[str, tuple[str, ...]]:
    return {group.node: group.jobs for group in world.state.colocation.groups}


def let_go(world: World) -> None:
    """Processes that were told to stop end, and those that were started run, until nothing is under way."""
    for _ in range(20):
        stopping = [one.job_id for one in world.state.live_jobs() if one.phase is Phase.STOPPING]
        starting = [one.job_id for one in world.state.live_jobs() if one.phase is Phase.STARTING]
        for job in stopping:
            world.exits(job, 75, "preempted")
        for job in starting:
            world.runs(job)
        if not stopping and not starting:
            return
    raise AssertionError("jobs never come to rest")


def events_of(world: World, kind: type) -> list[Any]:
    return [entry.event for entry in world.log if isinstance(entry.event, kind)]


def test_a_job_without_gpus_runs_on_a_node_that_is_set_aside() -> None:
    world = a_world()

    job = submit(world, threads=2, memory_bytes=1 << 30)

    (task,) = world.job(job).tasks
    assert (task.node, task.gpus, world.phase(job)) == ("n0", (), Phase.STARTING)
    assert world.state.colocation.measuring == (job,)


def test_two_that_fill_each_others_gaps_share_a_node_once_they_are_measured() -> None:
    world = a_world(nodes=1)
    first = runs_measured(world, 1.0, 1.0)
    second = runs_measured(world, 1.0, 1.0)

    (group,) = world.state.colocation.groups
    assert (group.jobs, group.predicted_s, group.bound) == ((first, second), 2.0, "cpu")
    assert not world.state.colocation.measuring
    assert {world.phase(first), world.phase(second)} == {Phase.RUNNING}


def test_while_one_is_measured_on_a_node_the_next_waits_and_is_told_so() -> None:
    world = a_world(nodes=1)
    first, second = submit(world), submit(world)
    world.runs(first)

    (why,) = world.decider.why(second, world.now_s, str)
    assert "measured first" in why
    assert world.phase(second) is Phase.WAITING

    timed(world, first, 1.0, 1.0)
    assert world.phase(second) is Phase.STARTING


def test_a_job_that_keeps_no_more_busy_is_paused_and_starts_when_another_ends() -> None:
    world = a_world(nodes=1)
    first, second = runs_measured(world, 2.0, 1.0), runs_measured(world, 2.0, 1.0)
    third = runs_measured(world, 2.0, 1.0)

    (stop,) = events_of(world, JobStopping)
    assert (stop.job_id, stop.cause) == (third, StopCause.PREEMPTED)
    let_go(world)
    assert world.phase(third) is Phase.WAITING
    assert "no more machines busy" in world.decider.why(third, world.now_s, str)[0]

    world.exits(first)
    let_go(world)
    assert groups(world) == {"n0": (second, third)}
    assert world.job(third).start == 2


@pytest.mark.parametrize(("waited_s", "phase"), [(99.0, Phase.WAITING), (101.0, Phase.RUNNING)])
def test_a_job_that_has_waited_too_long_is_in_the_next_grouping_though_it_keeps_nothing_busier(
    waited_s: float, phase: Phase
) -> None:
    world = a_world(nodes=1, age_limit_s=100.0)
    first = runs_measured(world, 1.0, 3.0)
    _, last = (runs_measured(world, 4.0, 0.0) for _ in range(2))
    let_go(world)
    assert world.phase(last) is Phase.WAITING

    world.now_s += waited_s
    world.exits(first)
    let_go(world)

    assert world.phase(last) is phase
    assert not [*violations(world.log)]


def test_a_job_of_two_nodes_that_has_waited_too_long_gets_them_though_jobs_of_one_node_have_them() -> None:
    world = grouping_nodes(2, age_limit_s=100.0)
    first, second = runs_measured(world, 1.0, 1.0), runs_measured(world, 1.0, 1.0)
    wide = submit(world, workers="2")
    world.pass_s(99.0)
    assert together(world) == {("n0",): (first,), ("n1",): (second,)}

    world.pass_s(2.0)
    let_go(world)

    assert together(world) == {("n0", "n1"): (wide,)}
    assert [world.phase(job) for job in (first, second, wide)] == [Phase.WAITING, Phase.WAITING, Phase.RUNNING]
    assert f"job {wide} has waited too long, and {first}, {second} waits in its stead" in world.state.colocation.reason
    timed(world, wide, 4.0, 1.0)
    assert world.phase(wide) is Phase.RUNNING
    world.exits(wide)
    let_go(world)
    assert {world.phase(job) for job in (first, second)} == {Phase.RUNNING}
    assert not [*violations(world.log)]


def test_a_measured_job_that_keeps_nothing_busier_gets_a_place_by_time_alone() -> None:
    world = a_world(nodes=1, age_limit_s=100.0)
    first, second, third = (runs_measured(world, 2.0, 1.0) for _ in range(3))
    let_go(world)
    assert groups(world) == {"n0": (first, second)}

    world.pass_s(101.0)
    let_go(world)

    assert groups(world) == {"n0": (first, second, third)}
    assert {world.phase(job) for job in (first, second, third)} == {Phase.RUNNING}


def test_who_got_a_place_by_waiting_too_long_keeps_it_for_a_while() -> None:
    world = grouping_nodes(2, age_limit_s=100.0, kept_s=300.0)
    first, second, third = (submit(world, workers="2") for _ in range(3))
    world.runs(first)
    world.pass_s(100.0)
    let_go(world)
    assert together(world) == {("n0", "n1"): (second,)}
    took_s = world.now_s

    world.pass_s(took_s + 299.0 - world.now_s)
    let_go(world)
    assert together(world) == {("n0", "n1"): (second,)}
    world.pass_s(2.0)
    let_go(world)

    assert together(world) == {("n0", "n1"): (third,)}
    assert [world.phase(job) for job in (first, second)] == [Phase.WAITING, Phase.WAITING]


def test_who_has_just_started_gives_way_to_nobody_before_it_has_run_for_a_while() -> None:
    world = grouping_nodes(2, age_limit_s=100.0, min_run_s=60.0)
    first, second = submit(world), submit(world)
    world.runs(first)
    world.runs(second)
    wide, young = submit(world, workers="2"), submit(world)
    world.pass_s(90.0)
    world.exits(second)
    world.runs(young)

    world.pass_s(59.0)
    assert together(world) == {("n0",): (first,), ("n1",): (young,)}
    world.pass_s(1.0)
    let_go(world)

    assert together(world) == {("n0", "n1"): (wide,)}


def test_a_job_that_has_waited_too_long_for_memory_gets_that_of_others() -> None:
    world = a_world(nodes=1, age_limit_s=100.0)  # of 64 GiB
    large = runs_measured(world, 1.0, 1.0, memory_bytes=float(40 << 30))
    small = runs_measured(world, 1.0, 1.0, memory_bytes=float(10 << 30))
    waits = submit(world, memory_bytes=float(30 << 30))
    assert groups(world) == {"n0": (large, small)}

    world.pass_s(101.0)
    let_go(world)

    assert groups(world) == {"n0": (small, waits)}
    assert world.phase(large) is Phase.WAITING


def test_jobs_move_when_one_ends_if_that_keeps_more_nodes_busy() -> None:
    world = a_world(nodes=2)
    first, second = runs_measured(world, 1.0, 3.0), runs_measured(world, 1.0, 3.0)
    third, fourth = runs_measured(world, 3.0, 1.0), runs_measured(world, 1.0, 3.0)
    fifth = runs_measured(world, 3.0, 1.0)
    assert groups(world) == {"n0": (first, third), "n1": (second, fourth, fifth)}

    world.exits(first)
    let_go(world)

    pairs = {frozenset(jobs) for jobs in groups(world).values()}
    assert {len(pair & {third, fifth}) for pair in pairs} == {1}  # each that computes with one that communicates
    *_, stop = events_of(world, JobStopping)
    assert (stop.cause, world.job(stop.job_id).nodes) == (StopCause.PREEMPTED, ("n0",))
    assert {world.phase(job) for job in (second, third, fourth, fifth)} == {Phase.RUNNING}
    assert not [*violations(world.log)]


def test_another_leader_has_the_same_groups_and_changes_nothing() -> None:
    world = a_world(nodes=2)
    for comp_s, net_s in ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0)):
        runs_measured(world, comp_s, net_s)
    let_go(world)
    before, entries = groups(world), len(world.log)

    world.lead()

    assert groups(world) == before
    assert len(world.log) == entries + 1  # that it leads
    world.lead(decode_state(encode_state(world.state)))
    assert groups(world) == before
    assert len(world.log) == entries + 2


def test_a_leader_that_takes_over_between_plan_and_stop_goes_on_with_the_plan() -> None:
    world = a_world(nodes=1)
    runs_measured(world, 2.0, 1.0)
    runs_measured(world, 2.0, 1.0)
    third = submit(world)
    world.runs(third)
    place = world.job(third)
    world.tell(TaskTimed(node="n0", job_id=third, start=1, comp_s=2.0, net_s=1.0))
    world.read()
    (plan,) = world.decider.next_events(world.now_s)
    assert isinstance(plan.event, GroupsPlanned)
    world.tell(plan.event)
    assert place.phase is Phase.RUNNING

    world.lead()  # the one before died with the plan in the log, and nobody stopped

    assert world.phase(third) is Phase.STOPPING
    assert not [*violations(world.log)]


def test_a_lost_node_s_jobs_go_to_the_others_and_a_drained_one_keeps_its_own() -> None:
    world = a_world(nodes=2)
    first, second = runs_measured(world, 1.0, 1.0), runs_measured(world, 1.0, 1.0)
    assert groups(world) == {"n0": (first,), "n1": (second,)}

    world.does(DrainRequested(node="n1", reason="new disks", by="root"))
    assert world.phase(second) is Phase.RUNNING
    third = runs_measured(world, 1.0, 1.0)
    assert groups(world)["n0"] == (first, third)

    world.does(NodeLost(node="n0", reason="silent"))
    assert world.phase(first) is Phase.WAITING
    assert "silent" in world.decider.why(first, world.now_s, str)[0]
    world.does(UndrainRequested(node="n1", by="root"))
    let_go(world)
    assert first in groups(world)["n1"]
    assert not [*violations(world.log)]


def test_a_node_without_an_executor_or_unlike_the_others_gets_no_job() -> None:
    world = a_world(nodes=2)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=""))
    first = submit(world)
    assert world.job(first).nodes == ("n1",)

    world.does(ServiceChanged(node="n1", name=EXECUTOR, raw=""))
    second = submit(world)
    (why,) = world.decider.why(second, world.now_s, str)
    assert "no executor answers there" in why


def test_jobs_move_from_a_node_on_which_only_the_executor_stays_away() -> None:
    world = a_world(nodes=2)
    first, second = runs_measured(world, 1.0, 1.0), runs_measured(world, 1.0, 1.0)
    assert groups(world) == {"n0": (first,), "n1": (second,)}

    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=""))
    world.pass_s(50.0)
    assert world.phase(first) is Phase.RUNNING
    world.pass_s(20.0)
    let_go(world)

    assert groups(world) == {"n1": (first, second)}
    assert world.job(first).nodes == ("n1",)
    assert "where no executor gives turns" in world.state.colocation.reason
    assert not [*violations(world.log)]


def test_an_executor_that_comes_back_soon_moves_nobody() -> None:
    world = a_world(nodes=2)
    first = runs_measured(world, 1.0, 1.0)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=""))
    world.pass_s(50.0)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=THERE))
    world.pass_s(500.0)

    assert groups(world) == {"n0": (first,)}
    assert not events_of(world, JobStopping)


def test_jobs_run_on_without_turns_where_no_other_node_takes_them_and_move_once_one_does() -> None:
    world = a_world(nodes=2)
    first = runs_measured(world, 1.0, 1.0)
    busy = runs_measured(world, 30.0, 0.0)  # beside this one nobody keeps more busy
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=""))
    world.pass_s(100.0)
    assert world.phase(first) is Phase.RUNNING
    assert groups(world) == {"n0": (first,), "n1": (busy,)}

    world.exits(busy)
    let_go(world)
    assert groups(world) == {"n1": (first,)}


def test_a_job_of_several_nodes_moves_as_a_whole_and_one_that_nobody_has_measured_once_there_is_room() -> None:
    world = grouping_nodes(4)
    job, young = submit(world, workers="2"), submit(world)
    world.runs(job)
    world.runs(young)
    timed(world, job, 4.0, 1.0)
    assert together(world) == {("n0", "n1"): (job,), ("n2",): (young,)}
    for node in ("n1", "n2"):
        world.does(ServiceChanged(node=node, name=EXECUTOR, raw=""))
    world.pass_s(100.0)
    let_go(world)
    assert together(world) == {("n0", "n3"): (job,), ("n2",): (young,)}
    assert world.job(young).start == 1

    world.exits(job)
    let_go(world)
    assert together(world) == {("n0",): (young,)}
    assert not [*violations(world.log)]


def test_a_job_of_two_nodes_stays_whole_where_one_has_no_executor_and_no_others_are_there() -> None:
    world = grouping_nodes(2)
    wide = submit(world, workers="2")
    world.runs(wide)
    timed(world, wide, 4.0, 1.0)
    small = submit(world)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=""))

    world.pass_s(100.0)
    let_go(world)

    assert together(world) == {("n0", "n1"): (wide,)}
    assert [world.phase(job) for job in (wide, small)] == [Phase.RUNNING, Phase.WAITING]
    assert not [*violations(world.log)]


def test_gpu_jobs_get_nothing_of_nodes_that_are_set_aside() -> None:
    world = World(rules(), nodes=2, gpus=4, colocation=ColocationRules(nodes=frozenset({"n0"})))
    jobs = [world.submit(4) for _ in range(2)]

    assert world.job(jobs[0]).nodes == ("n1",)
    assert world.phase(jobs[1]) is Phase.WAITING


def test_a_gpu_job_that_is_there_already_is_waited_for() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(4)
    world.runs(job)
    world.colocation = ColocationRules(nodes=frozenset({"n0"}))
    world.lead()
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=THERE))
    waits = submit(world)
    assert "another job" in world.decider.why(waits, world.now_s, str)[0]

    world.exits(job)

    assert world.phase(waits) is Phase.STARTING


def test_memory_of_a_group_is_that_of_a_node() -> None:
    world = a_world(nodes=1)  # of 64 GiB
    runs_measured(world, 1.0, 1.0, memory_bytes=float(40 << 30))
    second = submit(world, memory_bytes=float(30 << 30))

    assert world.phase(second) is Phase.WAITING


def test_a_failed_job_starts_again_in_its_group_until_its_retries_are_used_up() -> None:
    world = a_world(nodes=1)
    first = runs_measured(world, 1.0, 1.0)
    for start in range(1, 4):
        world.exits(first, 1)
        assert world.job(first).start == start + 1
        world.runs(first)
    world.exits(first, 1)
    assert world.phase(first) is Phase.FAILED
    assert groups(world) == {}


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ({"gpus": 1}, "gpus"),
        ({"ranks": "gpu"}, "ranks"),
        ({"checkpoint_dir": ""}, "checkpoint_dir"),
        ({"swap_bytes_per_gpu": 1, "memory_bytes_per_gpu": 1}, "memory_bytes_per_gpu"),
        ({"threads": 0}, "threads"),
        ({"env": {"OMP_NUM_THREADS": "2"}}, "env.OMP_NUM_THREADS"),
        ({"env": {"FARSIDE_THREADS": "2"}}, "env.FARSIDE_THREADS"),
        ({"preemptible": False}, "preemptible"),
        ({"aggregation": "shared"}, "aggregation"),
        ({"model": "vgg16"}, "model"),
        ({"roles": [{"name": "w", "argv": ["true"]}]}, "roles"),
    ],
)
def test_what_a_colocated_job_can_t_have_is_refused_in_one_line(told: dict[str, object], key: str) -> None:
    good = {"argv": ["true"], "colocate": True, "checkpoint_dir": "/scratch"}

    assert [*spec_problems(submitted_spec(good))] == []
    assert any(problem.startswith(f"{key}: ") for problem in spec_problems(submitted_spec(good | told)))


def test_a_colocated_job_without_a_checkpoint_folder_is_told_of_that_alone() -> None:
    (problem,) = spec_problems(submitted_spec({"argv": ["true"], "colocate": True}))

    assert problem.startswith("checkpoint_dir: ")


def test_a_colocated_job_names_no_qos_and_gets_the_default_one() -> None:
    qualities = {name: Qos(name=name) for name in ("normal", "urgent")}
    tenancy = Tenancy(qualities=qualities, default_qos="normal")
    spec = submitted_spec({"argv": ["true"], "colocate": True, "checkpoint_dir": "/scratch"})

    assert charged(spec, "u", tenancy).qos == "normal"
    with pytest.raises(ConfigError, match="qos: co-located jobs wait in the order"):
        charged(msgspec.structs.replace(spec, qos="urgent"), "u", tenancy)


def test_a_job_without_gpus_has_to_be_colocated_and_its_keys_are_no_other_s() -> None:
    (gpus,) = spec_problems(submitted_spec({"argv": ["true"], "gpus": 0}))
    assert "colocate = true" in gpus
    (threads,) = spec_problems(submitted_spec({"argv": ["true"], "threads": 2}))
    assert threads.startswith("threads: only a job with colocate")


def test_the_checker_finds_a_job_that_is_not_where_its_group_is() -> None:
    world = a_world(nodes=2)
    submit(world)
    moved = [
        msgspec.structs.replace(entry, event=msgspec.structs.replace(entry.event, groups=()))
        if isinstance(entry.event, GroupsPlanned) else entry
        for entry in world.log
    ]  # fmt: skip

    assert [*violations(world.log)] == []
    assert any("another place than its group's node" in what for what in violations(moved))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "come",
                "time",
                "spill",
                "place",
                "away",
                "end",
                "fail",
                "cancel",
                "hold",
                "lose",
                "drain",
                "undrain",
                "reserve",
                "unreserve",
                "lead",
                "rest",
            ]
        ),
        st.integers(0, 7),
        st.sampled_from([(1.0, 1.0), (3.0, 0.5), (0.5, 3.0), (2.0, 1.0)]),
    ),
    max_size=30,
)


@pytest.mark.parametrize("workers", ["", "1-3"])
@settings(max_examples=60, deadline=None)
@given(steps=OPERATIONS)
def test_whatever_comes_no_job_is_lost_and_the_log_is_sound(
    workers: str, steps: list[tuple[str, int, tuple[float, float]]]
) -> None:
    world = grouping_nodes(3, away_s=1.0) if workers else a_world(nodes=3, away_s=1.0)
    for what, which, (comp_s, net_s) in steps:
        world.now_s += 1.0
        entries = len(world.log)
        _do(world, what, which, comp_s, net_s, workers)
        _is_sound(world, entries)
    for reservation in [*world.state.maintenance]:
        world.does(ReservationCancelled(reservation_id=reservation, by="root"))
    for node in ("n0", "n1", "n2"):
        if not world.state.nodes[node].is_up:
            world.join(node, gpus=0)
        world.does(UndrainRequested(node=node, by="root"))
        place(world, node, spills=True, workers=workers)
    for _ in range(60):
        let_go(world)
        # A job that is held while it runs keeps its nodes until it ends.
        left = [one for one in world.state.live_jobs() if not one.held_by or one.phase is Phase.RUNNING]
        if not left:
            break
        assert any(one.phase is Phase.RUNNING for one in left), "all wait, and nobody runs"
        for one in left:
            if one.phase is Phase.RUNNING and one.job_id in world.state.colocation.measuring:
                timed(world, one.job_id, 1.0, 1.0)
            elif one.phase is Phase.RUNNING:
                world.exits(one.job_id)
    assert not [one.job_id for one in world.state.live_jobs() if not one.held_by]
    assert [*violations(world.log)] == []


@pytest.mark.parametrize("workers", ["", "1-3"])
@settings(max_examples=60, deadline=None)
@given(steps=OPERATIONS)
def test_nobody_waits_past_the_aging_bound_where_others_can_make_room(
    workers: str, steps: list[tuple[str, int, tuple[float, float]]]
) -> None:
    aging: dict[str, Any] = {"age_limit_s": AGE_LIMIT_S, "kept_s": KEPT_S, "away_s": 8.0}
    world = grouping_nodes(3, **aging) if workers else a_world(nodes=3, **aging)
    for what, which, (comp_s, net_s) in steps:
        world.pass_s(4.0)
        entries = len(world.log)
        _do(world, what, which, comp_s, net_s, workers)
        _is_sound(world, entries)
        _nobody_is_owed_a_place(world)
    for _ in range(8):
        let_go(world)
        world.pass_s(AGE_LIMIT_S / 4)
        _nobody_is_owed_a_place(world)
    assert [*violations(world.log)] == []


AGE_LIMIT_S, KEPT_S = 20.0, 15.0


def _nobody_is_owed_a_place(world: World) -> None:
    """No job waits past the bound that some nodes could have without another that may not be stopped yet."""
    grouped, planned = world.state.colocation, world.state.colocation.nodes_of
    reserved = {node for one in world.state.maintenance.values() if not one.cancelled_by for node in one.nodes}
    taking = {name: node for name, node in world.state.nodes.items() if node.is_taking and node.executor.is_there}
    taking = {name: node for name, node in taking.items() if name not in reserved}
    for job in world.state.live_jobs():
        is_owed = job.phase is Phase.WAITING and not job.held_by and world.now_s >= job.since_s + AGE_LIMIT_S
        if not is_owed or job.job_id in planned:
            continue
        least, most = grouped.workers_of(job.job_id)
        nodes = [name for name, node in taking.items() if node.executor.spills or not grouped.spills(job.job_id)]
        for group in grouped.groups:
            is_known = all(grouped.knows(other, len(group.nodes)) for other in group.jobs)
            fits = least <= len(group.nodes) <= most and {*group.nodes} <= {*nodes}
            assert not (fits and is_known), f"{job.job_id} may join {group}"
        for chosen in (set(some) for size in range(least, 4) for some in itertools.combinations(nodes, size)):
            touched = [group for group in grouped.groups if {*group.nodes} & chosen]
            is_alike = least == 1 or len({taking[name].executor.spills for name in chosen}) == 1
            may_go = all(_may_be_stopped(world, other) for group in touched for other in group.jobs)
            is_free = may_go and all({*group.nodes} <= chosen for group in touched)
            assert not (is_alike and is_free), f"{job.job_id} may have {least} of {sorted(chosen)}"


def _may_be_stopped(world: World, job_id: str) -> bool:
    """A running job, but for one that had waited past the bound itself and runs for a short time."""
    job = world.job(job_id)
    if job.phase is not Phase.RUNNING:
        return False
    begun_s = [one.begin_s for one in job.stints]
    free_s = [job.submit_s, *(one.end_s for one in job.stints)]
    has_waited = begun_s[-1] - free_s[len(begun_s) - 1] >= AGE_LIMIT_S
    return world.now_s >= job.since_s + (KEPT_S if has_waited else 0.0)


def _do(world: World, what: str, which: int, comp_s: float, net_s: float, workers: str) -> None:
    running = [one.job_id for one in world.state.live_jobs() if one.phase is Phase.RUNNING]
    live = [one.job_id for one in world.state.live_jobs()]
    node = f"n{which % 3}"
    if what == "come":
        asked = workers and ("", workers, "2")[which % 3]
        submit(world, time_limit_s=(0.0, 20.0, 1000.0)[which // 3], workers=asked)
    elif what == "rest":
        let_go(world)
    elif what == "lead":
        world.lead()
    elif what == "lose":
        world.does(NodeLost(node=node, reason="silent"))
    elif what == "drain":
        world.does(DrainRequested(node=node, reason="disks", by="root"))
    elif what == "reserve":
        reserve(world, node, world.now_s + (0.0, 15.0, 500.0)[which % 3])
    elif what == "unreserve" and world.state.maintenance:
        world.does(ReservationCancelled(reservation_id=min(world.state.maintenance), by="root"))
    elif what == "undrain":
        world.does(UndrainRequested(node=node, by="root"))
    elif running and what == "time":
        timed(world, running[which % len(running)], comp_s, net_s)
    elif running and what == "spill":
        spill = m.SpilledInput(spilled=which / 7, input_bytes=10**9, wait_s=0.1, disk_bytes_s=1e9)
        timed(world, running[which % len(running)], comp_s, net_s, spill)
    elif what == "place":
        place(world, node, spills=which > 3, workers=workers)
    elif what == "away":
        world.does(ServiceChanged(node=node, name=EXECUTOR, raw=""))
    elif running and what in ("end", "fail"):
        world.exits(running[which % len(running)], int(what == "fail"))
    elif live and what in ("cancel", "hold"):
        kind = CancelRequested if what == "cancel" else HoldRequested
        world.does(kind(job_id=live[which % len(live)], by="ann"))


def place(world: World, node: str, *, spills: bool, workers: str) -> None:
    """A node has a place for input that does not fit in memory from now on, or has none."""
    facts = m.ExecutorFacts(is_there=True, listen="0.0.0.0:7690" if workers else "", spills=spills)
    world.does(ServiceChanged(node=node, name=EXECUTOR, raw=msgspec.json.encode(facts).decode()))


def _is_sound(world: World, entries: int) -> None:
    """``entries``: of the log, before the last step."""
    planned = world.state.colocation.nodes_of
    for entry in world.log[entries:]:
        if isinstance(entry.event, JobAllocated):
            limit_s = world.state.jobs[entry.event.job_id].spec.time_limit_s or math.inf
            nodes = {place.node for place in entry.event.places}
            every = (one for one in world.state.maintenance.values() if not one.cancelled_by)
            reserved = [one for one in every if nodes & {*one.nodes}]
            assert all(one.end_s <= world.now_s or world.now_s + limit_s <= one.begin_s for one in reserved)
            if world.state.colocation.spills(entry.event.job_id):
                assert all(world.state.nodes[node].executor.spills for node in nodes)
    for job in world.state.live_jobs():
        if job.phase in (Phase.ALLOCATED, Phase.STARTING, Phase.RUNNING):
            assert planned.get(job.job_id) == job.nodes
    assert all(job in planned for job in world.state.colocation.measuring)


WORKER = """
import itertools, os, pathlib, signal, sys, time
from farside.agent.training.subtask import INIT_COMP
from farside.training.loop.turns import EXECUTOR, SharedNode
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
end, took_s = pathlib.Path(sys.argv[1]), [float(word) for word in sys.argv[2:]]  # PULL, COMP, PUSH
turns = SharedNode(os.environ[EXECUTOR], job=f"any name {os.getpid()}", worker=0, workers=1)
for position in itertools.count(INIT_COMP):
    turns.ask(position)
    time.sleep(took_s[position % 3])
    turns.done()
    if end.exists():
        sys.exit(0)
"""


@pytest.mark.long
def test_a_manager_groups_measures_and_pauses_jobs_and_its_successor_goes_on(tmp_path: Path) -> None:
    node = tmp_path / "a"
    node.mkdir()

    def submit(name: str, *took_s: str) -> str:
        words = (sys.executable, "-c", WORKER, str(node / name), *took_s)
        return manager.submit(*words, cwd=str(node), colocate=True, checkpoint_dir=str(node))

    def plan() -> dict[str, Any] | None:
        """The plan once all three are measured: two share the node, and the third would keep it no busier.

        It communicates hardly at all, so that this is so also where a busy machine stretches what it is measured by.
        """
        told = manager.get("groups")
        is_settled = told["waiting"] == [third] and manager.job(third)["state"] == "waiting"
        return next((group["plan"] for group in told["groups"] if group["plan"]), None) if is_settled else None

    def is_back() -> bool:
        return manager.is_ready() and manager.get("nodes", "n1")["state"] == "busy"

    settings = {"token_submit": "true", "colocation_nodes": "n1"}
    with executor(node), running_manager(tmp_path / "m", **settings) as manager:
        config = write_config(node, manager.url, token=manager.node_token("n1"), declared_gpus=0)
        with agent(config):
            until_connected(node)
            until(lambda: manager.get("nodes", "n1")["services"].get("executor"), what="the executor in the log")
            first, second = (submit(name, "0.03", "0.1", "0.03") for name in ("first", "second"))
            third = submit("third", "0.001", "0.3", "0.001")
            before = until(plan, what="two of three jobs in a group", deadline_s=120)
            assert before is not None
            why = manager.get("jobs", third, "explain")["lines"]
            starts = [manager.job(job)["starts"] for job in (first, second, third)]

            manager.kill_all()
            manager.start()
            until(is_back, what="the manager's successor", deadline_s=120)
            after = until(plan, what="the group as it was", deadline_s=120)
            assert after is not None
            assert [manager.job(job)["starts"] for job in (first, second, third)] == starts

            (node / "first").touch()
            until(lambda: manager.job(third)["state"] == "running", what="the third in its place", deadline_s=120)
            group = manager.get("groups")["groups"][0]["plan"]
            for name in ("second", "third"):
                (node / name).touch()
            until(lambda: manager.job(third)["state"] == "done", what="the end of all", deadline_s=120)
        log = manager.entries()

    assert (before["jobs"], before["bound"], before["measuring"]) == ([first, second], "cpu", None)
    assert before["predicted_s"] >= 0.2
    # Their times go on being measured: a busy machine may have changed the prediction by a little meanwhile.
    assert after == before | {"predicted_s": pytest.approx(before["predicted_s"], rel=0.5)}
    assert "no more machines busy" in why[0]
    assert group["jobs"] == [second, third]
    assert [*violations(log, is_complete=True)] == []


def test_a_node_is_told_memory_and_threads_of_a_colocated_job() -> None:
    world = a_world()
    job = world.job(submit(world, threads=3, memory_bytes=float(1 << 30)))

    told = start_of(job, job.tasks[0], 1).spec

    assert (told.gpus, told.cpus, told.memory_bytes) == ((), 0.0, 1 << 30)
    assert {told.env[name] for name in m.THREADS} == {"3"}


def test_news_of_a_colocated_job_s_times_come_when_they_change_by_a_twentieth_of_an_iteration() -> None:
    world = a_world()
    line = connected(world, services=turns())
    job = submit(world)
    world.runs(job)
    (told,) = line.reported(world.state, report(services=turns(taker(job, 1.0))))
    world.does(told)
    assert world.state.colocation.times[job].comp_s == 1.0

    near, far = ([*line.reported(world.state, report(20 * at, services=turns(taker(job, comp_s))))]
                 for at, comp_s in ((1, 1.07), (2, 1.08)))  # fmt: skip
    assert (near, [getattr(one, "comp_s", None) for one in far]) == ([], [1.08])
    others = turns(taker(job, 2.0, start=9), taker("77", 2.0))
    assert line.reported(world.state, report(60, services=others)) == []


def taker(job: str, comp_s: float, start: int = 1) -> m.TurnTaker:
    return m.TurnTaker(job=job, start=start, rank=0, comp_s=comp_s, net_s=0.5, iteration_s=comp_s)


def turns(*takers: m.TurnTaker) -> dict[str, msgspec.Raw]:
    return {EXECUTOR: msgspec.Raw(msgspec.json.encode(m.ExecutorFacts(is_there=True, takers=takers)))}


def test_report_and_table_show_a_plan_to_whom_its_jobs_are() -> None:
    world = a_world(nodes=1)
    first, second = runs_measured(world, 1.0, 1.0), runs_measured(world, 1.0, 1.0)

    (mine,) = view.report({}, lambda job: job == first, world.state.colocation).groups
    whole = view.report({}, lambda _: True, world.state.colocation)

    assert mine.plan == view.Plan(jobs=[first], others=1, measuring=None, bound="cpu", predicted_s=2.0, nodes=["n0"])
    assert view.report({}, lambda job: job == first, world.state.colocation).reason == ""
    assert whole.reason.startswith(f"job {second} was measured")
    console = Console(file=io.StringIO(), width=120)
    console.print(plan_table([msgspec.to_builtins(mine)]))
    assert "2 s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_job_with_gpus_wakes_another_node_than_one_that_is_set_aside() -> None:
    apart = frozenset({"n0"})
    world = World(rules(), nodes=2, colocation=ColocationRules(nodes=apart))
    asleep(world, "n1")
    world.submit(4)
    world.now_s += 100.0

    assert nodes_needed(world.state, None, world.now_s, set_aside=apart) == ("n1",)


def test_shared_aggregation_takes_no_aggregator_of_a_node_that_is_set_aside() -> None:
    world = World(rules(), nodes=3, gpus=4, colocation=ColocationRules(nodes=frozenset({"n0"})))
    for node in ("n0", "n1", "n2"):
        world.does(ServiceChanged(node=node, name="aggregator", raw='{"cores": 1, "memory_bytes": 1073741824}'))
    job = world.submit(8, aggregation="shared", aggregators=2)
    waits = world.submit(8, aggregation="shared", aggregators=3)
    world.runs(job)

    assert {place.node for place in world.job(job).tasks} == {"n1", "n2"}
    assert "n0" not in world.state.aggregation.pool
    assert world.phase(waits) is Phase.WAITING


def test_a_job_whose_times_are_noise_writes_a_bounded_number_of_entries() -> None:
    world = a_world(nodes=1)
    job = submit(world)
    world.runs(job)
    state, written, entries = world.state.colocation, dict[str, news.Written](), 0
    for at_s in range(0, 24 * 3600, 10):
        took_s = 1.0 + at_s // 10 % 2
        taker = m.TurnTaker(job=job, start=1, rank=0, comp_s=took_s, net_s=took_s / 10, iteration_s=took_s)
        for event in news.timed(state, "n0", [taker], float(at_s), written):
            entries += 1
            state.times[job] = JobTimes(start=1, comp_s=event.comp_s, net_s=event.net_s, iteration_s=event.iteration_s)

    assert 1 < entries <= 33


def a_world_of(*sizes: tuple[int, int]) -> World:
    """Nodes n0, n1 and so on with so many CPUs and GiB of memory."""
    names = frozenset(f"n{at}" for at in range(len(sizes)))
    world = World(rules(), nodes=0, colocation=ColocationRules(nodes=names, min_run_s=0.0))
    for at, (cpus, memory_gib) in enumerate(sizes):
        joins(world, f"n{at}", cpus, memory_gib)
    return world


def joins(world: World, node: str, cpus: int, memory_gib: int) -> None:
    world.does(joined(node, cpus=cpus, memory_bytes=memory_gib << 30))
    world.does(ServiceChanged(node=node, name=EXECUTOR, raw=THERE))


SIZES = st.lists(st.tuples(st.sampled_from([4, 16]), st.sampled_from([28, 30, 32, 60, 64])), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from([1, 4, 5, 16, 17]), st.sampled_from([0, 28, 29, 32, 33, 61, 64, 65]))
def test_a_job_is_taken_if_and_only_if_an_empty_cluster_starts_it(
    sizes: list[tuple[int, int]], threads: int, memory_gib: int
) -> None:
    world = a_world_of(*sizes)
    asked: dict[str, Any] = {"threads": threads, "memory_bytes": float(memory_gib << 30)}
    spec = JobSpec(argv=("true",), gpus=0, colocate=True, checkpoint_dir="/scratch", **asked)

    problems = cluster_problems(spec, world.state, user="ann", set_aside=world.colocation.nodes)
    job = submit(world, **asked)

    assert (world.phase(job) is Phase.STARTING) == (not problems)
    assert all(problem.split(":")[0] in ("threads", "memory_bytes") for problem in problems)


def test_a_node_with_much_less_memory_than_most_is_left_out_and_named() -> None:
    world = a_world_of((16, 64), (16, 32), (16, 64))
    world.does(DrainRequested(node="n0", reason="disks", by="root"))
    world.does(DrainRequested(node="n2", reason="disks", by="root"))

    (why,) = world.decider.why(submit(world), world.now_s, str)

    assert "n1: it has 32 GiB of memory, and the others have at least 64 GiB" in why


def test_why_a_job_waits_for_memory_says_so() -> None:
    world = a_world_of((16, 64))
    runs_measured(world, 1.0, 1.0, memory_bytes=float(40 << 30))
    beside, whole = submit(world, memory_bytes=float(30 << 30)), submit(world, memory_bytes=float(64 << 30))
    (why,) = world.decider.why(beside, world.now_s, str)
    assert "it asks for 30 GiB of memory, and no node has more than 24 GiB left" in why

    joins(world, "n0", 16, 48)  # after a repair

    assert "a node for co-located jobs has 48 GiB" in world.decider.why(whole, world.now_s, str)[0]


HOUR_S, MONTH_S = 3600.0, 30 * 86400.0


def reserve(world: World, node: str, begin_s: float) -> None:
    event = NodesReserved(nodes=(node,), begin_s=begin_s, end_s=begin_s + HOUR_S, reason="disks", by="root")
    world.does(event)


def test_a_reservation_of_next_month_keeps_out_only_who_could_run_until_then() -> None:
    world = a_world(nodes=1)
    reserve(world, "n0", world.now_s + MONTH_S)

    short, endless = submit(world, time_limit_s=HOUR_S), submit(world)
    world.runs(short)
    timed(world, short, 1.0, 1.0)

    assert (world.phase(short), world.phase(endless)) == (Phase.RUNNING, Phase.WAITING)
    (why,) = world.decider.why(endless, world.now_s, str)
    assert "n0 reserved from" in why
    assert "a job whose time_limit is over before that may start" in why
    beside = runs_measured(world, 1.0, 1.0, time_limit_s=HOUR_S)
    assert groups(world) == {"n0": (short, beside)}

    world.exits(short)
    world.pass_s(MONTH_S + HOUR_S + 1.0)
    assert world.phase(endless) is Phase.STARTING
    assert not [*violations(world.log)]


def test_who_runs_where_a_reservation_comes_stays_and_does_not_move_among_such_nodes() -> None:
    world = a_world(nodes=2)
    first, second = runs_measured(world, 1.0, 3.0), runs_measured(world, 1.0, 3.0)
    third, fourth = runs_measured(world, 3.0, 1.0), runs_measured(world, 1.0, 3.0)
    fifth = runs_measured(world, 3.0, 1.0)
    assert groups(world) == {"n0": (first, third), "n1": (second, fourth, fifth)}
    let_go(world)
    for node in ("n0", "n1"):
        reserve(world, node, world.now_s + HOUR_S)

    world.exits(first)

    assert groups(world) == {"n0": (third,), "n1": (second, fourth, fifth)}
    assert {world.phase(job) for job in (second, third, fourth, fifth)} == {Phase.RUNNING}
    short = runs_measured(world, 1.0, 3.0, time_limit_s=HOUR_S / 2)
    assert groups(world)["n0"] == (third, short)


def test_a_job_that_was_to_start_where_it_is_too_late_now_goes_elsewhere() -> None:
    world = a_world(nodes=2)
    first, second = runs_measured(world, 2.0, 1.0), runs_measured(world, 2.0, 1.0)
    assert groups(world) == {"n0": (first,), "n1": (second,)}
    world.does(NodeLost(node="n1", reason="silent"))
    world.join("n1", gpus=0, boot_id="boot-2")
    world.does(ServiceChanged(node="n1", name=EXECUTOR, raw=THERE))
    reserve(world, "n1", world.now_s + HOUR_S)

    let_go(world)

    assert world.state.colocation.nodes_of.get(second) in (None, ("n0",))
    assert not [*violations(world.log)]
