"""Racks and RDMA domains: shown, kept together, chosen and left out."""

from dataclasses import replace

from farside.cli.cluster_table import node_table
from farside.scheduler.admission.partitions import NO_PARTITIONS
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import NodeChanged
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.view.view import Topology, show_node
from farside.scheduler.placement.catalog import make_placement
from tests.live.facts import gpus, joined
from tests.live.world import World, rules, submitted_spec

FIRST, SECOND = "fe80:0000:0000:0000", "fec0:0000:0000:0001"


def a_world(*racks: str, order: str = "fifo", **more: str) -> World:
    """Nodes n0, n1 and so on, of four GPUs each, in these racks."""
    world = World(rules(order), nodes=0)
    for at, rack in enumerate(racks):
        join(world, f"n{at}", rack=rack, **more)
    return world


def join(world: World, name: str, **more: object) -> None:
    memory = {"memory_bytes": 1 << 36, "headroom_bytes": 1 << 36}
    world.does(joined(name, name, boot_id="boot-1", cpus=16, gpus=gpus(4, "H200"), **memory, **more))


def test_a_gang_stays_in_one_rack_where_one_has_room() -> None:
    world = a_world("r0", "r1", "r0", "r1", "r1")
    first, second = world.submit(8), world.submit(8)

    assert (world.job(first).nodes, world.job(second).nodes) == (("n0", "n2"), ("n1", "n3"))
    assert not [*violations(world.log)]


def test_a_gang_that_no_rack_can_hold_is_spread_over_few_and_does_not_wait() -> None:
    world = a_world("r0", "r1", "r2", "r1", "r2", "r1")

    job = world.submit(16)

    assert world.job(job).nodes == ("n1", "n2", "n3", "n4")


def test_a_job_that_is_larger_than_any_rack_is_told_so_where_no_job_leaves_its_rack() -> None:
    by_rack = make_placement("yarn", {"worker_cpus": "1", "server_cpus": "0"})
    world = World(replace(rules("best-effort"), placement=by_rack), nodes=0)
    for at, rack in enumerate(("r0", "r1", "r0")):
        join(world, f"n{at}", rack=rack)

    wide, fits = world.submit(12), world.submit(8)

    assert (world.phase(wide), world.job(fits).nodes) == (Phase.WAITING, ("n0", "n2"))
    line = "no rack in service can hold it: yarn keeps a job within one, and the largest has 8 GPUs that will do"
    assert line in world.decider.why(wide, world.now_s, str)
    assert not any("no rack" in told for told in world.decider.why(world.submit(8), world.now_s, str))


def test_a_node_that_moves_to_another_rack_is_taken_there() -> None:
    world = a_world("r0", "r1", "r1")
    node = world.state.nodes["n1"]
    world.does(NodeChanged(node="n1", rack="r0", headroom_bytes=node.headroom_bytes, gpus=node.gpus))

    assert world.job(world.submit(8)).nodes == ("n0", "n1")


def test_a_fabric_that_a_setting_names_goes_before_the_subnets_prefix() -> None:
    world = World(rules(), nodes=0)
    for name, domain in (("n0", "east"), ("n1", "west"), ("n2", "east")):
        join(world, name, rdma_subnet=FIRST, rdma_domain=domain)

    assert world.job(world.submit(8)).nodes == ("n0", "n2")


def test_racks_and_fabrics_are_chosen_and_left_out_as_features() -> None:
    world = World(rules(), nodes=0)
    join(world, "n0", rack="r0", rdma_subnet=FIRST)
    join(world, "n1", rack="r1", rdma_subnet=f"{FIRST},{SECOND}", features=("nvme",))
    join(world, "n2", rack="r1")

    jobs = [
        world.submit(1, **more)  # type: ignore[arg-type]
        for more in (
            {"features": ("rack:r1",), "exclude": ("nvme",)},
            {"features": (f"rdma:{SECOND}",)},
            {"exclude": ("rack:r1",)},
            {"exclude": (f"rdma:{FIRST}",)},
        )
    ]
    none = world.submit(1, exclude=("rack:r0", "rack:r1"))

    assert [world.job(job).nodes for job in jobs] == [("n2",), ("n1",), ("n0",), ("n2",)]
    assert world.phase(none) is Phase.WAITING


def test_what_no_node_has_is_refused_with_what_there_is() -> None:
    world = a_world("r0", "r1")

    def problems(**asked: object) -> list[str]:
        spec = submitted_spec({"argv": ["true"], **asked})
        return cluster_problems(spec, world.state, user="ann", partitions=NO_PARTITIONS)

    assert problems(features=["rack:r9"]) == ["features: no node has rack:r9; there are rack:r0, rack:r1"]
    assert problems(exclude=["rack:r9"]) == [
        "exclude: there is no node rack:r9, and as a feature no node has it; `farside nodes` lists nodes, "
        "and of features there are rack:r0, rack:r1"
    ]
    assert problems(exclude=["rack:r1"]) == []
    assert problems(exclude=["rack:r1"], gpus=8) == [
        "gpus: it asks for 8, and the cluster has 4 without rack:r1; ask for fewer"
    ]


def test_topology_is_shown_and_null_where_nobody_knows() -> None:
    world = World(rules(), nodes=0)
    join(world, "n0", rack="r0", rdma_subnet=FIRST, lids=(7, 26))
    join(world, "n1", rdma_domain="east", rdma_subnet=FIRST)
    join(world, "n2")

    shown = [show_node(node) for node in world.state.nodes.values()]

    assert [node.topology for node in shown] == [
        Topology(rack="r0", rdma_domain=FIRST, lids=(7, 26)), Topology(rack=None, rdma_domain="east", lids=()), None,
    ]  # fmt: skip


def test_the_table_of_nodes_has_racks_where_there_are_some() -> None:
    row = {
        "name": "n0", "state": "idle", "gpus": [], "free_gpus": 0, "headroom_bytes": 0, "reason": "",
        "topology": {"rack": "r7"},
    }  # fmt: skip

    with_racks, without = node_table([row, {**row, "topology": None}]), node_table([{**row, "topology": None}])

    assert [*with_racks.columns[1].cells] == ["r7", ""]
    assert [column.header for column in without.columns][:2] == ["node", "state"]
