"""Parameter servers stand beside the workers; and how much of what is free is stranded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.servers import server_sizes, servers_beside
from farside.scheduler.placement.traffic import crossing_share, node_traffic
from farside.scheduler.sim.result.fragmentation import stranded_share
from farside.scheduler.state import Demand, Node

workers_on_nodes = st.lists(st.integers(1, 8), min_size=1, max_size=6).map(
    lambda counts: tuple((3 * at, gpus) for at, gpus in enumerate(counts))
)


@given(workers_on_nodes, st.integers(0, 40))
def test_every_server_has_a_node_near_its_share(workers: tuple[tuple[int, int], ...], servers: int) -> None:
    placed = dict(servers_beside(workers, servers))

    total = sum(gpus for _, gpus in workers)
    assert sum(placed.values()) == servers
    assert placed.keys() <= dict(workers).keys()
    assert all(abs(placed.get(at, 0) - servers * gpus / total) < 1 for at, gpus in workers)


def test_with_as_many_servers_as_workers_each_has_one() -> None:
    assert servers_beside(((0, 4), (2, 3), (5, 1)), 8) == ((0, 4), (2, 3), (5, 1))


@given(st.integers(1, 10), st.floats(0, 1))
def test_servers_host_the_whole_model(servers: int, skew: float) -> None:
    sizes = server_sizes(1000.0, servers, skew)

    assert len(sizes) == servers
    assert sum(sizes) == pytest.approx(1000)
    assert max(sizes) >= skew * 1000 * (1 - 1e-9)


@given(workers_on_nodes)
def test_the_crossing_share_is_what_the_nodes_carry(workers: tuple[tuple[int, int], ...]) -> None:
    """Each byte that crosses leaves one node and enters another."""
    counts = [gpus for _, gpus in workers]
    hosts = [at for at, count in enumerate(counts) for _ in range(count)]
    total = sum(counts)

    carried = node_traffic([0.0] * len(counts), counts, hosts, [1.0] * total)

    assert sum(carried) / 2 / total**2 == pytest.approx(crossing_share(counts), abs=1e-12)


def ledger(sizes: list[int], free: list[int]) -> Ledger:
    found = Ledger([Node(name=f"n{at}", gpus=gpus) for at, gpus in enumerate(sizes)])
    for at, gpus in enumerate(sizes):
        if gpus > free[at]:
            found.take(Demand(gpus=1), ((at, gpus - free[at]),))
    return found


@pytest.mark.parametrize(
    ("free", "gpus", "share"),
    [
        ([4, 4, 4], 4, 0.0),
        ([3, 3, 2], 4, 1.0),
        ([3, 3, 2], 2, 2 / 8),
        ([3, 3, 2], 1, 0.0),
        ([4, 3, 1], 4, 4 / 8),
        ([4, 4, 3], 8, 3 / 11),
        ([4, 3, 3], 8, 1.0),  # one whole node is not enough for eight
        ([0, 0, 0], 4, 0.0),
    ],
)
def test_what_cant_serve_a_job_of_a_size_is_stranded(free: list[int], gpus: int, share: float) -> None:
    assert stranded_share(ledger([4] * 3, free), gpus) == pytest.approx(share)
