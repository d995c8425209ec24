"""The paper's integer program against every placement there is, on tiny clusters."""

import itertools
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.config import ManagerConfig
from farside.errors import ConfigError
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.domain import Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.placement.ilp import Ilp
from farside.scheduler.placement.ilp_program import TrafficProblem, solve
from farside.scheduler.placement.traffic import TrafficLedger, node_traffic
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Allocation, Demand, Job, Node
from tests.support.traces import flat_cluster, trace


def spreads(free: tuple[int, ...], workers: int) -> Iterator[tuple[int, ...]]:
    """Every way to put workers on nodes."""
    for counts in itertools.product(*(range(gpus + 1) for gpus in free)):
        if sum(counts) == workers:
            yield counts


def smallest_greatest_traffic(problem: TrafficProblem) -> float:
    nodes = range(len(problem.free_gpus))
    return min(
        max(node_traffic(problem.traffic_bytes, workers, hosts, problem.server_bytes))
        for workers in spreads(problem.free_gpus, problem.workers)
        for hosts in itertools.product(nodes, repeat=len(problem.server_bytes))
    )


@st.composite
def problems(draw: st.DrawFn) -> TrafficProblem:
    free = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    servers = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    return TrafficProblem(
        free_gpus=free,
        traffic_bytes=tuple(float(draw(st.integers(0, 60))) for _ in free),
        workers=draw(st.integers(1, max(1, sum(free)))),
        server_bytes=tuple(map(float, servers)),
    )


@settings(deadline=None, max_examples=80)
@given(problems())
def test_it_finds_what_trying_every_placement_finds(problem: TrafficProblem) -> None:
    if sum(problem.free_gpus) < problem.workers:
        assert solve(problem) is None
        return

    found = solve(problem)

    assert found is not None
    assert found.is_proven
    assert sum(found.workers) == problem.workers
    assert all(workers <= gpus for workers, gpus in zip(found.workers, problem.free_gpus, strict=True))
    assert found.most_bytes == pytest.approx(smallest_greatest_traffic(problem))


def test_a_job_may_take_all_free_gpus_of_a_node_whatever_iii_1_prints() -> None:
    problem = TrafficProblem(free_gpus=(4,), traffic_bytes=(0.0,), workers=4, server_bytes=(1.0,) * 4)

    found = solve(problem)

    assert found is not None
    assert found.workers == (4,)
    assert found.most_bytes == 0  # nothing leaves the machine


def test_it_stays_away_from_nodes_whose_network_is_busy() -> None:
    problem = TrafficProblem(free_gpus=(2, 2, 2), traffic_bytes=(50.0, 0.0, 0.0), workers=4, server_bytes=(1.0, 1.0))

    found = solve(problem)

    assert found is not None
    assert found.workers == (0, 2, 2)


@pytest.mark.parametrize("policy", [Ilp(time_limit_s=0.0), Ilp(most_products=10)])
def test_a_limit_that_comes_at_once_still_starts_the_job(policy: Ilp) -> None:
    ledger = policy.ledger(tuple(Node(name=f"n{at}", gpus=4) for at in range(6)))
    demand = policy.demand(Job(job_id="0", sequence=0, submit_s=0, gpus=16, model="vgg16"))

    allocation = policy.place(ledger, demand)

    assert allocation is not None
    assert sum(gpus for _, gpus in allocation) == 16


def test_traffic_comes_and_goes_with_the_jobs() -> None:
    policy = Ilp()
    ledger = policy.ledger(tuple(Node(name=f"n{at}", gpus=2) for at in range(4)))
    assert isinstance(ledger, TrafficLedger)
    demand = policy.demand(Job(job_id="0", sequence=0, submit_s=0, gpus=4, model="resnet50"))
    held: list[Allocation] = []
    for _ in range(2):
        allocation = policy.place(ledger, demand)
        assert allocation is not None
        ledger.take(demand, allocation)
        held.append(allocation)

    assert sum(ledger.traffic_bytes) == pytest.approx(2 * crossing_bytes(ledger, demand, held[0]))
    for allocation in held:
        ledger.give(demand, allocation)
    assert ledger.traffic_bytes == pytest.approx([0.0] * 4)


def crossing_bytes(ledger: TrafficLedger, demand: Demand, allocation: Allocation) -> float:
    workers = [dict(allocation).get(at, 0) for at in range(len(ledger.nodes))]
    sizes = [demand.model_bytes / demand.parameter_servers] * demand.parameter_servers
    return sum(node_traffic([0.0] * len(workers), workers, ledger.hosts(demand, allocation), sizes))


def test_it_spreads_a_job_wider_than_it_must_to_balance_the_load() -> None:
    """A worker and a server on each of four nodes: 1.5 M there; two on each of two: 2 M. [tiresias §3.3.3: balancing
    the network's load "does not necessarily improve" training]"""
    problem = TrafficProblem(free_gpus=(2, 2, 2, 2), traffic_bytes=(0.0,) * 4, workers=4, server_bytes=(0.25,) * 4)

    found = solve(problem)

    assert found is not None
    assert found.workers == (1, 1, 1, 1)
    assert found.most_bytes == pytest.approx(1.5)


def test_a_trace_runs_under_it_to_the_end() -> None:
    jobs = trace([(0, 5, 4), (0, 9, 2), (1, 3, 1), (2, 4, 8), (3, 1, 3)])

    runs = Simulation(flat_cluster(2, 4), Rules(order=Fifo(), placement=Ilp()), jobs).run()

    assert [run.end_s for run in runs] == [5, 9, 4, 13, 14]


def test_without_scipy_it_is_refused_at_once_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import farside.scheduler.placement as placements

    monkeypatch.delattr(placements, "ilp_program", raising=False)
    monkeypatch.delitem(sys.modules, "farside.scheduler.placement.ilp_program", raising=False)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)

    with pytest.raises(ConfigError, match=r"^placement: ilp needs SciPy, which is not here \("):
        rules_of(ManagerConfig(placement="ilp"))
