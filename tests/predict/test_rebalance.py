"""Nodes that one virtual cluster does not need, lent to another."""

from farside.scheduler.predict.rebalance import RebalanceParams, RebalanceService
from farside.scheduler.predict.service import MoveNode, Sampled, VcSample
from farside.scheduler.sim.cluster import Site
from farside.scheduler.sim.experiment import Scene, make_experiments
from farside.scheduler.sim.rebalancing import rebalance
from farside.scheduler.state import Cluster, Node, VirtualCluster
from tests.support.traces import trace

PARAMS = RebalanceParams(look_back_s=3600.0, spare_nodes=1, node_gpus=4)
OWNERS = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
HOUR_S = 3600.0


def sample(vc: str, gpus: int, *, runs: int = 0, waits: int = 0, idle: tuple[str, ...] = ()) -> VcSample:
    return VcSample(vc=vc, gpus=gpus, running_gpus=runs, waiting_gpus=waits, idle_nodes=idle)


def moves(service: RebalanceService, at_s: float, *vcs: VcSample) -> list[tuple[str, str, str]]:
    told = service.observe(Sampled(at_s=at_s, vcs=vcs))
    return [(one.node, one.from_vc, one.to_vc) for one in told if isinstance(one, MoveNode)]


def test_idle_nodes_go_to_who_waits_and_a_spare_one_stays() -> None:
    service = RebalanceService(PARAMS, OWNERS)

    told = moves(service, 0.0, sample("a", 12, idle=("a1", "a2", "a3")), sample("b", 4, runs=4, waits=100))

    assert told == [("a1", "a", "b"), ("a2", "a", "b")]


def test_no_more_move_than_are_waited_for() -> None:
    service = RebalanceService(PARAMS, OWNERS)

    told = moves(service, 0.0, sample("a", 12, idle=("a1", "a2", "a3")), sample("b", 4, runs=4, waits=3))

    assert told == [("a1", "a", "b")]


def test_what_the_owner_needed_lately_stays_though_it_is_idle() -> None:
    service = RebalanceService(PARAMS, OWNERS)
    waiting = sample("b", 4, runs=4, waits=100)

    assert moves(service, 0.0, sample("a", 12, runs=12), waiting) == []
    assert moves(service, 1800.0, sample("a", 12, idle=("a1", "a2", "a3")), waiting) == []
    assert moves(service, 3601.0, sample("a", 12, idle=("a1", "a2", "a3")), waiting) != []


def test_an_idle_node_goes_back_when_its_owner_waits_or_nobody_does() -> None:
    for waits_a, waits_b in ((8, 100), (0, 0)):
        service = RebalanceService(PARAMS, OWNERS)
        moves(service, 0.0, sample("a", 12, idle=("a1", "a2", "a3")), sample("b", 4, runs=4, waits=3))

        told = moves(service, 10.0, sample("a", 8, runs=8, waits=waits_a), sample("b", 8, waits=waits_b, idle=("a1",)))

        assert told == [("a1", "b", "a")]


def test_nothing_moves_where_nobody_waits() -> None:
    assert moves(RebalanceService(PARAMS, OWNERS), 0.0, sample("a", 12, idle=("a1", "a2", "a3")), sample("b", 4)) == []


def test_a_trace_waits_less_with_it_and_every_job_still_ends() -> None:
    busy = trace([(at * 60.0, HOUR_S, 4) for at in range(60)], vc="b")
    calm = trace([(at * 7200.0, 600.0, 4) for at in range(30)], vc="a")
    jobs = sorted((*busy, *calm), key=lambda job: job.job.submit_s)
    nodes = tuple(Node(name=f"n{at}", gpus=4) for at in range(4))
    cluster = Cluster(
        virtual_clusters=(VirtualCluster(name="a", nodes=nodes), VirtualCluster(name="b", nodes=nodes[:1]))
    )
    scene = Scene(site=Site(cluster=cluster), jobs=tuple(jobs), labels=tuple(job.job.vc for job in jobs))
    (experiment,) = make_experiments(("fifo",), {})

    found = rebalance(experiment, scene, PARAMS)

    assert found.after.by_vc["b"].avg_queue_s < 0.6 * found.before.by_vc["b"].avg_queue_s
    assert found.after.by_vc["a"].avg_queue_s <= found.before.by_vc["a"].avg_queue_s + 600.0
    assert found.moves["a", "b"] >= 2
    assert found.after.all.jobs == found.before.all.jobs == len(jobs)
