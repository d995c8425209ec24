"""Co-located jobs with a worker on each of several nodes: how many nodes a group gets, and what each node is told."""

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from farside.agent import messages as m
from farside.agent.messages import EXECUTOR
from farside.cli.cluster_table import plan_table
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.colocation.state import JobTimes
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import DrainRequested, GroupsPlanned, JobAllocated, NodeLost, ServiceChanged
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.spec import spec_problems
from farside.scheduler.manager.nodes.dispatch import AgentLine, start_of
from farside.scheduler.manager.nodes.group_orders import granted, group_key, group_on, group_order, worker_variables
from farside.scheduler.manager.view import groups as view
from tests.live.test_colocation import (
    AGGREGATOR,
    HOUR_S,
    THERE,
    a_world,
    events_of,
    grouping_nodes,
    let_go,
    reserve,
    runs_measured,
    submit,
    timed,
    together,
)
from tests.live.test_node_services import hello
from tests.live.world import World, submitted_spec

SECRET = b"s" * 32
GOOD = {"argv": ["true"], "colocate": True, "checkpoint_dir": "/scratch"}


def test_a_job_is_measured_on_two_nodes_and_then_gets_as_many_as_keep_most_busy() -> None:
    world = grouping_nodes(4)
    job = submit(world, workers="1-4")
    assert together(world) == {("n0", "n1"): (job,)}
    assert world.state.colocation.measuring == (job,)
    world.runs(job)

    timed(world, job, 8.0, 1.0)
    let_go(world)

    assert together(world) == {("n0", "n1", "n2", "n3"): (job,)}
    assert [task.node for task in world.job(job).tasks] == ["n0", "n1", "n2", "n3"]
    (group,) = world.state.colocation.groups
    assert (group.predicted_s, group.bound) == (8.0 * 2 / 4 + 1.0, "job")  # eq. 2
    assert [*violations(world.log)] == []


def test_jobs_that_fill_each_others_gaps_share_the_same_nodes() -> None:
    world = grouping_nodes(2)
    first, second = (runs_measured(world, comp_s, net_s, workers="2") for comp_s, net_s in ((1.0, 1.0), (1.0, 1.0)))

    assert together(world) == {("n0", "n1"): (first, second)}
    (group,) = world.state.colocation.groups
    assert (group.predicted_s, group.bound) == (2.0, "cpu")
    shown = view.report({}, lambda _: True, world.state.colocation).groups
    assert [(one.node, one.plan.nodes) for one in shown if one.plan] == [(node, ["n0", "n1"]) for node in ("n0", "n1")]
    console = Console(file=io.StringIO(), width=120)
    console.print(plan_table([msgspec.to_builtins(one) for one in shown]))
    assert console.file.getvalue().count("n0 n1") == 1  # type: ignore[attr-defined]
    epochs = {group.epoch for event in events_of(world, GroupsPlanned) for group in event.groups}
    assert epochs == {1}  # the group has the same nodes all the time


def test_a_job_of_one_node_is_in_no_group_with_one_of_two() -> None:
    world = grouping_nodes(3)
    wide, small = runs_measured(world, 1.0, 1.0, workers="2"), runs_measured(world, 1.0, 1.0)

    assert together(world) == {("n0", "n1"): (wide,), ("n2",): (small,)}


def test_a_lost_node_ends_the_group_and_its_jobs_go_on_with_fewer() -> None:
    world = grouping_nodes(3)
    job = runs_measured(world, 8.0, 1.0, workers="1-3")
    let_go(world)
    assert len(world.job(job).tasks) == 3

    world.does(NodeLost(node="n1", reason="silent"))
    let_go(world)

    assert together(world) == {("n0", "n2"): (job,)}
    assert world.phase(job) is Phase.RUNNING
    assert [*violations(world.log)] == []
    epochs = [group.epoch for group in events_of(world, GroupsPlanned)[-1].groups]
    assert epochs == [world.state.colocation.epoch]


def test_a_job_that_needs_more_nodes_than_can_be_a_group_waits_and_is_told_why() -> None:
    world = grouping_nodes(2)
    world.does(DrainRequested(node="n1", reason="disks", by="root"))
    job = submit(world, workers="2")
    (why,) = world.decider.why(job, world.now_s, str)
    assert "it needs 2 nodes that can be a group, and 1" in why
    assert "n1: " in why


@pytest.mark.parametrize(
    ("service", "raw", "why"),
    [
        (EXECUTOR, THERE, "--group-listen"),  # as an agent of the version before says it
        ("aggregator", "", "reached by other nodes"),
        ("aggregator", AGGREGATOR.replace("0.0.0.0:9000", ""), "reached by other nodes"),
        ("aggregator", AGGREGATOR.replace("true", "false"), "of the version before"),
    ],
)
def test_a_node_that_can_t_be_in_a_group_of_several_gets_jobs_of_one_node_alone(
    service: str, raw: str, why: str
) -> None:
    world = grouping_nodes(2)
    world.does(ServiceChanged(node="n1", name=service, raw=raw))

    wide = submit(world, workers="2")
    each = [runs_measured(world, 1.0, 1.0, workers="1-2") for _ in range(2)]

    assert world.phase(wide) is Phase.WAITING
    assert why in world.decider.why(wide, world.now_s, str)[0]
    assert together(world) == {("n0",): (each[0],), ("n1",): (each[1],)}
    spec = submitted_spec(GOOD | {"workers": "2"})
    (problem,) = cluster_problems(spec, world.state, user="ann", set_aside=world.colocation.nodes)
    assert problem.startswith("workers: it asks for 2, and 1 of the nodes")


def test_a_job_measured_on_one_node_gets_two_once_they_are_free() -> None:
    world = grouping_nodes(2)
    other = runs_measured(world, 1.0, 5.0)
    job = runs_measured(world, 4.0, 0.0, workers="1-2")
    assert together(world) == {("n0",): (other,), ("n1",): (job,)}

    world.exits(other)
    let_go(world)
    assert together(world) == {("n0", "n1"): (job,)}
    assert world.state.colocation.measuring == (job,)
    timed(world, job, 2.5, 1.0)
    times = world.state.colocation.times[job]
    assert times.shares() == pytest.approx((3.0, 1.0))  # 4 = 3 + 1, 2.5 = 3 / 2 + 1
    profile = world.state.colocation.profile(job)
    assert profile is not None
    assert (profile.net_s, profile.net_alone_s, profile.machines_most) == (1.0, 0.0, 2)
    assert not world.state.colocation.measuring


def test_nodes_that_close_at_different_times_are_no_group() -> None:
    world = grouping_nodes(3)
    reserve(world, "n0", world.now_s + HOUR_S)

    job = submit(world, workers="2", time_limit_s=HOUR_S / 2)
    later = submit(world, workers="2", time_limit_s=2 * HOUR_S)

    assert together(world) == {("n0", "n1"): (job,)}  # all are open for as long as it may run
    world.exits(job)
    assert together(world) == {("n1", "n2"): (later,)}


def test_times_that_no_repeated_part_explains_are_all_shared() -> None:
    alone = JobTimes(start=1, comp_s=4.0, net_s=0.0)
    for comp_s in (1.0, 4.0, 5.0):  # quicker than half, and no quicker on two nodes
        times = alone.then(JobTimes(start=2, comp_s=comp_s, net_s=1.0, machines=2))
        assert times.shares() == (2 * comp_s, 0.0)


def test_another_leader_has_the_same_groups_and_epochs() -> None:
    world = grouping_nodes(4)
    for comp_s, net_s in ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0)):
        runs_measured(world, comp_s, net_s, workers="1-2")
    let_go(world)
    before, entries = world.state.colocation.groups, len(world.log)

    world.lead()
    world.lead(decode_state(encode_state(world.state)))

    assert world.state.colocation.groups == before
    assert len(world.log) == entries + 2  # that each of them leads


@pytest.mark.parametrize("workers", ["4-2", "0", "a", "1-", "1-65", "-2", "1-4-6"])
def test_what_is_no_number_of_nodes_is_refused_in_one_line(workers: str) -> None:
    (problem,) = spec_problems(submitted_spec(GOOD | {"workers": workers}))
    assert problem.startswith("workers: ")


def test_only_a_colocated_job_has_workers() -> None:
    (problem,) = spec_problems(submitted_spec({"argv": ["true"], "workers": "2"}))
    assert problem.startswith("workers: only a job with colocate = true")


def test_the_checker_finds_groups_that_are_none() -> None:
    world = grouping_nodes(2)
    submit(world, workers="2")

    def changed(**more: Any) -> list[str]:
        return [
            *violations(
                msgspec.structs.replace(
                    entry,
                    event=msgspec.structs.replace(
                        entry.event, groups=tuple(msgspec.structs.replace(one, **more) for one in entry.event.groups)
                    ),
                )
                if isinstance(entry.event, GroupsPlanned) else entry
                for entry in world.log
            )
        ]  # fmt: skip

    assert [*violations(world.log)] == []
    assert any("has epoch 0, which another one had" in what for what in changed(epoch=0))
    assert any("is on 1 nodes, and asked for 2 to 2" in what for what in changed(beside=()))
    assert any("node n0 has two groups" in what for what in changed(beside=("n0",)))


# ---- what nodes are told


def line(world: World, node: str, *can: str) -> AgentLine:
    words = (m.can_service(EXECUTOR), m.can_service(m.AGGREGATOR), *can)
    return AgentLine(msgspec.structs.replace(hello(), node=node, can=words), "10.0.0.1", secret=SECRET)


NEW = (m.can_service(EXECUTOR, 2), m.can_service(m.AGGREGATOR, 2))


def test_each_node_of_a_group_is_told_of_it_with_a_key_that_is_in_no_entry() -> None:
    world = grouping_nodes(3)
    submit(world, workers="2")
    plan = world.state.colocation.groups
    orders = {
        node: group_order(world.state, group_on(plan, node), node, SECRET).group for node in ("n0", "n1", "n2")
    }  # fmt: skip

    first, second = orders["n0"], orders["n1"]
    assert first is not None
    assert second is not None
    assert orders["n2"] is None
    assert (first.nodes, first.synchronizer, first.epoch) == (("n0", "n1"), "127.0.0.1:7690", 1)
    assert (first.key, first.nodes, second.node) == (second.key, second.nodes, "n1")
    assert first.key != group_key(b"t" * 32, 1, first.nodes)
    assert first.key != group_key(SECRET, 2, first.nodes)
    log = b"".join(msgspec.json.encode(entry.event) for entry in world.log)
    for secret in (first.key.hex().encode(), msgspec.json.encode(first.key).strip(b'"')):
        assert secret not in log
        assert secret not in encode_state(world.state)


def test_the_order_comes_once_and_never_to_an_older_agent() -> None:
    world = grouping_nodes(2)
    job = submit(world, workers="2")
    older, newer = line(world, "n1"), line(world, "n1", *NEW)

    assert [*older.groups(world.state)] == []
    assert not any(granted_in(order) for order in older.plans(world.state))
    (order,) = newer.groups(world.state)
    assert order.name == EXECUTOR
    assert [*newer.groups(world.state)] == []
    (plans,) = newer.plans(world.state)
    assert [one.job for one in granted_in(plans)] == [job]

    world.exits(job)
    (order,) = newer.groups(world.state)
    assert msgspec.json.decode(order.raw, type=m.ExecutorOrder).group is None
    (plans,) = newer.plans(world.state)
    assert granted_in(plans) == ()


def granted_in(order: m.Service) -> tuple[Any, ...]:
    return msgspec.json.decode(order.raw, type=m.AggregatorOrder).grants


def test_workers_find_the_aggregators_of_all_their_nodes_and_prove_the_key_that_these_were_told() -> None:
    world = grouping_nodes(2)
    job = world.job(submit(world, workers="2"))
    (grant,) = granted(world.state, "n0", SECRET)

    found = worker_variables(world.state, job, SECRET)
    assert found is not None
    told = [start_of(job, task, 1, None, found).spec for task in job.tasks]

    assert [(one.rank, one.world_size, one.takes_turns) for one in told] == [(0, 2, True), (1, 2, True)]
    for one in told:
        assert one.env["FARSIDE_AGGREGATION_SERVICE"] == "tcp:127.0.0.1:9000,tcp:127.0.0.1:9000"
        assert one.env["FARSIDE_AGGREGATION_KEY"] == grant.key.hex()
        assert (one.env["FARSIDE_AGGREGATION_JOB"], one.env["FARSIDE_AGGREGATION_START"]) == (job.job_id, "1")


def test_a_job_whose_user_names_aggregators_keeps_those() -> None:
    world = grouping_nodes(2)
    job = world.job(submit(world, workers="2", env={"FARSIDE_AGGREGATION_SERVICE": "tcp:h:1"}))

    found = worker_variables(world.state, job, SECRET)

    assert found == {"FARSIDE_AGGREGATION_JOB": job.job_id, "FARSIDE_AGGREGATION_START": "1"}


def test_workers_start_only_when_all_aggregators_of_their_nodes_are_there() -> None:
    world = grouping_nodes(2)
    job = submit(world, workers="2")
    world.does(ServiceChanged(node="n1", name="aggregator", raw=""))
    to_first = line(world, "n0", *NEW)

    assert [one for one in to_first.commands(world.state) if isinstance(one, m.Start)] == []
    assert any("n1: no Aggregator there" in line for line in world.decider.why(job, world.now_s, str))

    world.does(ServiceChanged(node="n1", name="aggregator", raw=AGGREGATOR))
    (start,) = to_first.commands(world.state)
    assert isinstance(start, m.Start)
    assert start.task_id == f"{job}.0"


def test_a_job_of_one_node_is_told_nothing_more_than_before() -> None:
    world = a_world(1)
    job = world.job(submit(world))

    assert worker_variables(world.state, job, SECRET) == {}
    assert granted(world.state, "n0", SECRET) == ()
    assert not start_of(job, job.tasks[0], 1).spec.takes_turns
    assert [*events_of(world, JobAllocated)][-1].places[0].node == "n0"
