"""`explain` names the nodes that are out of service, and says why nobody knows when a job starts."""

import pytest

from farside.agent.messages import Gpu
from farside.scheduler.explain import nobody_knows
from farside.scheduler.manager.model.event import DrainRequested, NodeChanged, NodeLost, PowerChanged
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.start_estimate import AHEAD_MAX, StartEstimate
from tests.live.test_sleeping_nodes import BOOTING, asleep, powers
from tests.live.world import World, rules


def why(world: World, job: str) -> tuple[str, ...]:
    return world.decider.why(job, world.now_s, str)


def when(world: World, job: str) -> str:
    foreseen = world.decider.foresee(job, world.now_s)
    assert foreseen is not None
    return nobody_knows(world.decider.domain, foreseen)


def test_drained_lost_sleeping_and_broken_nodes_are_named_with_their_reasons_and_what_gives_them_back() -> None:
    world = World(rules(), nodes=8)
    for node in ("n0", "n1"):
        world.does(DrainRequested(node=node, reason="new disks", by="root"))
    world.does(NodeLost(node="n2", reason="silent for 60 s"))
    asleep(world, "n3", "n4")
    powers(world, "n4", BOOTING)
    bad = tuple(Gpu(index=at, model="H200", healthy=at != 1) for at in range(4))
    world.does(NodeChanged(node="n5", gpus=bad, headroom_bytes=1 << 36))
    busy = world.submit(gpus=4)
    world.does(DrainRequested(node=world.job(busy).nodes[0], reason="", by="ann"))
    job = world.submit(gpus=32)

    assert sorted(why(world, job)[-6:]) == [
        "4 GPUs are on n2: lost (silent for 60 s)",
        "4 GPUs are on n3: asleep: idle",
        "4 GPUs are on n5: drained (GPU 1: errors)",
        "4 GPUs are on n6: draining (drained by ann); `farside undrain` gives it back",
        "8 GPUs are on n0, n1: drained (new disks); `farside undrain` gives it back",
        "being switched on: n4",
    ]


def test_a_node_that_a_job_could_not_use_anyway_is_not_named() -> None:
    world = World(rules(), nodes=2)
    world.does(DrainRequested(node="n0", reason="new disks", by="root"))

    assert not any("n0" in line for line in why(world, world.submit(gpus=8, gpu_model="A100")))


def test_many_nodes_are_counted_and_some_named() -> None:
    world = World(rules(), nodes=12, gpus=1)
    for at in range(12):
        world.does(DrainRequested(node=f"n{at}", reason="move", by="root"))

    last = why(world, world.submit(gpus=4))[-1]

    assert last.startswith("12 GPUs are on n0, n1, n10, n11, n2, n3, n4, n5 and 4 more: drained (move)")


def test_where_nodes_are_missing_and_nobody_stands_before_it_no_time_limit_is_blamed() -> None:
    world = World(rules(), nodes=2)
    world.runs(world.submit(gpus=1))
    world.does(DrainRequested(node="n1", reason="", by="root"))

    told = when(world, world.submit(gpus=8))

    assert told == (
        "its start is unknown: too few GPUs are in service for it or for a job before it, even if all running jobs end"
    )


def test_a_job_without_a_time_limit_is_named_with_what_it_holds() -> None:
    world = World(rules(), nodes=1)
    world.runs(world.submit(gpus=3))
    world.runs(world.submit(gpus=1, time_limit_s=60.0))

    told = when(world, world.submit(gpus=4))

    assert told == "its start is unknown: job 1 (3 GPUs), which goes before it, has no time limit"


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        (1, "job 1 (4 GPUs) and 1 more that go before it have no time limit"),
        (3, "job 1 (4 GPUs) and 3 more that go before it have no time limit"),
    ],
)
def test_of_several_without_a_time_limit_the_largest_is_named(waiting: int, says: str) -> None:
    world = World(rules(), nodes=1)
    world.runs(world.submit(gpus=4))
    for _ in range(waiting):
        world.submit(gpus=2)

    assert when(world, world.submit(gpus=4)).endswith(says)


def test_a_long_queue_is_the_reason_where_it_is_too_long_to_be_played() -> None:
    told = nobody_knows(World(rules()).decider.domain, StartEstimate())

    assert told == f"its start is unknown: more than {AHEAD_MAX:,} jobs go before it"


def test_a_node_about_to_open_is_told_as_that() -> None:
    world = World(rules(), nodes=1)
    asleep(world, "n0")
    powers(world, "n0", BOOTING)
    world.does(
        PowerChanged(node="n0", generation=world.generation, note=NodePowerRecord(reason="booted", drain_number=1))
    )

    assert "4 GPUs are on n0: about to open: booted" in why(world, world.submit(gpus=4))
