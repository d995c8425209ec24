"""What one person sees at a glance: bounded, own jobs only, and told again only where something changed."""

from dataclasses import replace
from typing import Any

import msgspec

from farside.scheduler.manager.model.event import HoldRequested, NodeLost
from farside.scheduler.manager.view.overview import (
    ENDED_MAX,
    LINES_MAX,
    Overview,
    Sensed,
    Survey,
    show_overview,
    waiting_ids,
)
from tests.live.world import World, rules


def a_world() -> World:
    """Jobs 1 and 2 of ann fill both nodes, 3 waits."""
    world = World(rules())
    for _ in range(3):
        world.submit(4)
    return world


def seen(world: World, user: str | None = None) -> Overview:
    return Survey(world.state).overview(user)


def shown(overview: Overview, before: Overview | None = None) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(show_overview(overview, 0.0, before))
    return told


def test_a_user_sees_own_jobs_an_operator_all_and_everybody_the_nodes() -> None:
    world = a_world()
    world.submit(1, user="bob")

    ann, bob, operator, nobody = (seen(world, user) for user in ("ann", "bob", None, "eve"))

    assert [job.user for job in (*ann.active, *ann.waiting)] == ["ann"] * 3
    assert [job.user for job in bob.waiting] == ["bob"]
    assert dict(operator.counts) == {"starting": 2, "waiting": 2}
    assert (nobody.active, nobody.waiting, dict(nobody.counts)) == ((), (), {})
    assert [node.name for node in nobody.nodes] == ["n0", "n1"]


def test_however_long_the_queue_is_what_is_sent_is_bounded_and_the_counts_are_not() -> None:
    world = World(rules())
    world.submit(8, count=LINES_MAX + 50)

    overview = seen(world, "ann")

    assert len(overview.waiting) == LINES_MAX
    assert sum(overview.counts.values()) == LINES_MAX + 50


def test_of_those_that_ended_the_latest_are_shown() -> None:
    world = World(rules())
    jobs = [world.submit(1) for _ in range(ENDED_MAX + 5)]
    for job in reversed(jobs):
        world.pass_s(1)
        if world.job(job).tasks:
            world.exits(job)
    for job in jobs:
        world.pass_s(1)
        world.exits(job)

    ended = seen(world).ended

    assert len(ended) == ENDED_MAX
    assert [job.end_s for job in ended] == sorted((job.end_s for job in ended), reverse=True)
    assert ended[0].end_s == max(job.end_s for job in world.state.jobs.values())


def test_what_somebody_has_already_is_not_sent_again() -> None:
    world = a_world()
    before = seen(world)
    world.does(HoldRequested(job_id="3", by="ann"))

    told = shown(seen(world), before)

    assert [job["id"] for job in told["jobs"]] == ["3"]
    assert told["nodes"] == []
    assert (told["active"], told["waiting"]) == (["1", "2"], ["3"])


def test_what_is_sent_piece_by_piece_is_what_is_sent_whole() -> None:
    world = a_world()
    before = seen(world)
    first = shown(before)
    jobs = {job["id"]: job for job in first["jobs"]}
    nodes = {node["name"]: node for node in first["nodes"]}
    for happens in (
        lambda: world.runs("1"),
        lambda: world.does(NodeLost(node="n1", reason="gone")),
        lambda: world.exits("1"),
        lambda: world.submit(2),
        lambda: world.pass_s(60),
    ):
        happens()
        now = seen(world)
        change, whole = shown(now, before), shown(now)
        jobs |= {job["id"]: job for job in change["jobs"]}
        nodes |= {node["name"]: node for node in change["nodes"]}
        listed = {*whole["active"], *whole["waiting"], *whole["ended"]}

        assert [jobs[job] for job in sorted(listed)] == sorted(whole["jobs"], key=lambda job: str(job["id"]))
        assert list(nodes.values()) == whole["nodes"]
        before = now


def test_sums_are_of_what_is_known_and_nothing_where_nothing_is() -> None:
    overview = seen(a_world())
    sensed = {"n0": Sensed(gpu_power_w=1200.0, loans={"n7": 1 << 30}), "n1": Sensed()}

    nothing, something = shown(overview)["cluster"], shown(replace(overview, sensed=sensed))["cluster"]

    assert (nothing["gpu_power_w"], nothing["loan_bytes"]) == (None, 0)
    assert (something["gpu_power_w"], something["loan_bytes"]) == (1200.0, 1 << 30)
    assert (something["gpus"], something["gpus_held"]) == (8, 8)


def test_sensors_that_tell_the_same_are_not_sent_again() -> None:
    world = a_world()
    before = replace(seen(world), sensed={"n0": Sensed(gpu_power_w=1.0), "n1": Sensed(gpu_power_w=2.0)})
    now = replace(before, sensed={"n0": Sensed(gpu_power_w=1.0), "n1": Sensed(gpu_power_w=3.0)})

    assert [*shown(now, before)["sensed"]] == ["n1"]


def test_nobody_asks_why_a_held_job_waits() -> None:
    world = a_world()
    fourth = world.submit(4)
    world.does(HoldRequested(job_id="3", by="ann"))

    assert waiting_ids(seen(world), 9) == [fourth]
