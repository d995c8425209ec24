"""A job stays on nodes of one InfiniBand subnet."""

from farside.scheduler.manager.model.record import Phase
from tests.live.facts import gpus, joined
from tests.live.world import World, rules

FIRST, SECOND = "fe80:0000:0000:0000", "fec0:0000:0000:0001"


def a_world(*subnets: str) -> World:
    """Nodes n0, n1 and so on, of four GPUs each, in these subnets."""
    world = World(rules(), nodes=0)
    for at, subnet in enumerate(subnets):
        join(world, f"n{at}", subnet)
    return world


def join(world: World, name: str, subnet: str) -> None:
    memory = {"memory_bytes": 1 << 36, "headroom_bytes": 1 << 36}
    world.does(joined(name, name, boot_id="boot-1", cpus=16, gpus=gpus(4, "H200"), rdma_subnet=subnet, **memory))


def test_a_gang_is_not_spread_over_two_subnets() -> None:
    world = a_world(FIRST, SECOND, FIRST)

    job = world.submit(8)

    assert world.job(job).nodes == ("n0", "n2")


def test_nodes_without_infiniband_are_a_subnet_of_their_own() -> None:
    world = a_world("", FIRST, "")

    job = world.submit(8)

    assert world.job(job).nodes == ("n0", "n2")


def test_a_gang_that_no_subnet_could_hold_waits_until_one_can() -> None:
    world = a_world(FIRST, SECOND)
    job = world.submit(8)
    before = world.phase(job)

    join(world, "n2", SECOND)

    assert before is Phase.WAITING
    assert world.job(job).nodes == ("n1", "n2")
