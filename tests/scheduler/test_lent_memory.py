"""Memory that donors lend: what fits, what is promised, and what a ledger books of it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.admission.rules import Rules
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain
from farside.scheduler.explain import Cause, look
from farside.scheduler.lent_memory import LentMemory, parts_of
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster, Job, Node, VirtualCluster
from farside.scheduler.table import JobTable

GIB = 1 << 30
RULES = Rules(order=make_order("fifo", {}), placement=make_placement("consolidate", {}))
SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9))


def could_have(lends: dict[str, int], promised: dict[str, int]) -> bool:
    """Whether all could have what they were promised at once, by Hall's theorem over all sets of nodes."""
    for count in range(1, len(promised) + 1):
        for some in combinations(promised, count):
            donors = (size for node, size in lends.items() if set(some) != {node})
            if sum(promised[node] for node in some) > sum(donors):
                return False
    return True


@given(SIZES, SIZES, SIZES)
def test_what_fits_is_what_all_could_have_at_once_none_of_it_from_its_own_node(
    lends: dict[str, int], before: dict[str, int], needs: dict[str, int]
) -> None:
    memory = LentMemory(lends)
    if not could_have(lends, before):
        return
    for node, size in before.items():
        memory.promise(node, size)
    after = {node: before.get(node, 0) + needs.get(node, 0) for node in {*before, *needs}}

    assert memory.fits(needs) is (could_have(lends, after) or not any(needs.values()))


def test_what_nodes_own_programs_have_is_not_promised() -> None:
    memory = LentMemory({"d": 10})
    memory.set_node("n", lends_bytes=0, own_bytes=4)

    assert memory.fits({"n": 6})
    assert not memory.fits({"n": 7})


def test_where_more_is_promised_than_lent_nothing_fits_until_it_does_again() -> None:
    memory = LentMemory({"d": 10})
    memory.promise("n", 8)

    memory.set_node("d", lends_bytes=5)
    assert (memory.free_bytes, memory.fits({"n": 1}), memory.fits({"n": 0})) == (-3, False, True)
    memory.promise("n", -8)
    assert memory.fits({"n": 5})


@given(st.integers(0, 10**12), st.dictionaries(st.text(max_size=3), st.integers(0, 10**12)))
def test_parts_are_whole_and_their_sum_is_the_whole(total: int, lends: dict[str, int]) -> None:
    parts = parts_of(total, lends)

    assert parts.keys() == lends.keys()
    assert sum(parts.values()) == (total if sum(lends.values()) else 0)
    assert all(part >= 0 for part in parts.values())
    assert all(part == 0 for name, part in parts.items() if not lends[name])


def a_node(name: str, *, gpus: int = 4, swap_gib: int = 0, lends_gib: int = 0) -> Node:
    return Node(name=name, gpus=gpus, swap_bytes=swap_gib * GIB, lends_bytes=lends_gib * GIB)


def a_job(number: int, *, gpus: int = 1, swap_gib: int = 64, vc: str = "") -> Job:
    return Job(
        job_id=str(number), sequence=number, submit_s=float(number), gpus=gpus, vc=vc,
        swap_bytes_per_gpu=swap_gib * GIB / gpus,
    )  # fmt: skip


def ends_of(jobs: list[Job], *clusters: VirtualCluster) -> list[float]:
    """When each ends that runs for 100 s."""
    traced = [TraceJob(job=job, duration_s=100.0) for job in jobs]
    return [run.end_s for run in Simulation(Cluster(virtual_clusters=clusters), RULES, traced).run()]


def test_the_simulator_starts_no_job_that_is_promised_more_than_donors_lend() -> None:
    nodes = (a_node("n0", swap_gib=256), a_node("d", gpus=1, lends_gib=100))

    assert ends_of([a_job(1), a_job(2), a_job(3, swap_gib=36)], VirtualCluster(name="", nodes=nodes)) == [
        101.0, 201.0, 201.0,
    ]  # fmt: skip


def test_what_donors_lend_is_one_for_all_virtual_clusters() -> None:
    first = VirtualCluster(name="a", nodes=(a_node("n0", swap_gib=64), a_node("d", gpus=0, lends_gib=64)))
    second = VirtualCluster(name="b", nodes=(a_node("n1", swap_gib=64),))

    assert ends_of([a_job(1, vc="a"), a_job(2, vc="b")], first, second) == [101.0, 201.0]


@pytest.mark.parametrize("placement", ["consolidate", "yarn", "random", "fragments"])
def test_no_placement_promises_a_gang_memory_of_its_own_nodes(placement: str) -> None:
    nodes = (a_node("n0", swap_gib=64, lends_gib=60), a_node("n1", swap_gib=64, lends_gib=4))
    domain = Domain("", nodes, Rules(order=RULES.order, placement=make_placement(placement, {})), JobTable())
    domain.submit(0, a_job(1, gpus=8, swap_gib=64), remaining_s=1.0, predicted_gpu_s=1.0)

    # Half of it is n0's, of which n1 lends too little.
    assert domain.book.place(0, 0.0) is None
    domain.ledger.lent.set_node("n1", lends_bytes=32 * GIB)
    assert domain.book.place(0, 0.0) is not None


def test_a_job_that_waits_for_memory_says_how_much_is_lent_and_promised() -> None:
    nodes = (a_node("n0", swap_gib=256), a_node("d", gpus=0, lends_gib=100))
    domain = Domain("", nodes, RULES, JobTable())
    for row in (0, 1):
        domain.submit(row, a_job(row + 1), remaining_s=1.0, predicted_gpu_s=1.0)
    run_cycle(domain, 1.0)

    found = look(domain, 1, 2.0)

    assert found.cause is Cause.LENT
    assert found.words[0] == (
        "waits: needs 1 GPU with 64 GiB of Farside swap each, 3 free; "
        "of the 100 GiB that donors lend 64 GiB are promised to jobs, and it needs 64 GiB of other nodes' memory"
    )
