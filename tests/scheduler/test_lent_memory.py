"""Memory that donors lend: what fits, what is promised, and what a ledger books of it."""

import math

import pytest
from hypothesis import given, settings
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
from farside.scheduler.state import Cluster, Demand, Job, Node, VirtualCluster
from farside.scheduler.table import JobTable

GIB = 1 << 30
RULES = Rules(order=make_order("fifo", {}), placement=make_placement("consolidate", {}))
SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9))
SOME = st.frozensets(st.sampled_from("abcd"))


def could_have(lends: dict[str, int], promised: dict[str, int], twice: frozenset[str] = frozenset()) -> bool:
    """Whether all could have what they were promised at once, by the largest flow of pages to donors.

    A page with two copies has them at two donors, so no donor gets more pages of a node than that was promised.
    """
    asked = {node: size * (2 if node in twice else 1) for node, size in promised.items()}
    flow = {(node, donor): 0 for node in asked for donor in lends if node != donor}
    while (path := augmenting(lends, promised, asked, flow, twice)) is not None:
        for at, (node, donor) in enumerate(path):
            flow[node, donor] += 1 if at % 2 == 0 else -1
    return sum(flow.values()) == sum(asked.values())


def augmenting(
    lends: dict[str, int],
    promised: dict[str, int],
    asked: dict[str, int],
    flow: dict[tuple[str, str], int],
    twice: frozenset[str],
) -> list[tuple[str, str]] | None:
    """Edges by which one more copy finds a donor: there and, for others that make room, back."""
    went = {node: sum(size for (one, _), size in flow.items() if one == node) for node in asked}
    gave = {donor: sum(size for (_, one), size in flow.items() if one == donor) for donor in lends}
    queue: list[tuple[str, list[tuple[str, str]]]] = [(node, []) for node in asked if went[node] < asked[node]]
    seen = {node for node, _ in queue}
    found_donors: set[str] = set()
    for node, path in queue:
        for donor in lends:
            most = promised[node] if node in twice else asked[node]
            if node == donor or donor in found_donors or flow[node, donor] >= most:
                continue
            found_donors.add(donor)
            there = [*path, (node, donor)]
            if gave[donor] < lends[donor]:
                return there
            for other in asked:
                if other not in seen and flow.get((other, donor), 0) > 0:
                    seen.add(other)
                    queue.append((other, [*there, (other, donor)]))
    return None


def of(lends: dict[str, int], twice: frozenset[str], own: dict[str, int]) -> LentMemory:
    memory = LentMemory()
    for node in "abcd":
        copies = 2 if node in twice else 1
        memory.set_node(node, lends_bytes=lends.get(node, 0), own_bytes=own.get(node, 0), copies=copies)
    return memory


def together(*some: dict[str, int]) -> dict[str, int]:
    return {node: sum(one.get(node, 0) for one in some) for node in "abcd"}


@settings(max_examples=300)
@given(SIZES, SIZES, SIZES, SOME, st.sampled_from([{}, {"a": 1}, {"b": 2, "c": 1}]))
def test_what_fits_is_what_all_could_have_at_once_no_page_on_its_own_node_nor_twice_at_one_donor(
    lends: dict[str, int], before: dict[str, int], needs: dict[str, int], twice: frozenset[str], own: dict[str, int]
) -> None:
    memory = of(lends, twice, own)
    for node, size in before.items():
        memory.promise(node, size)

    assert memory.is_kept is could_have(lends, together(before, own), twice)
    if memory.is_kept:
        fits = could_have(lends, together(before, own, needs), twice)
        assert memory.fits(needs) is (fits or not any(needs.values()))
        for node in "abcd":
            most = memory.free_on(node)
            assert could_have(lends, together(before, own, {node: max(0, most)}), twice)
            assert not could_have(lends, together(before, own, {node: max(0, most) + 1}), twice)


def beside(lends: dict[str, int], rooms: dict[str, int], taken: dict[str, int]) -> dict[str, int]:
    """What donors lend whose nodes' memory jobs have so much of."""
    return {
        node: min(size, max(0, rooms[node] - taken[node])) if node in rooms and taken.get(node) else size
        for node, size in lends.items()
    }


@given(SIZES, SIZES, SIZES, SOME, SIZES, SIZES, SIZES)
def test_with_jobs_on_donors_nodes_fits_is_what_all_could_have_beside_their_memory(
    lends: dict[str, int],
    before: dict[str, int],
    needs: dict[str, int],
    twice: frozenset[str],
    rooms: dict[str, int],
    taken: dict[str, int],
    takes: dict[str, int],
) -> None:
    memory = of(lends, twice, {})
    for node, size in before.items():
        memory.promise(node, size)
    for node, size in rooms.items():
        memory.set_room(node, size)
    for node, size in taken.items():
        memory.take(node, size)
    now, then = beside(lends, rooms, taken), beside(lends, rooms, together(taken, takes))

    assert memory.lent_bytes == sum(now.values())
    assert memory.is_kept is could_have(now, before, twice)
    if memory.is_kept and (then != now or any(needs.values())):
        assert memory.fits(needs, takes) is could_have(then, together(before, needs), twice)
    for node, size in taken.items():
        memory.take(node, -size)
    assert memory.lent_bytes == sum(lends.values())


def test_pages_with_two_copies_are_promised_in_two_donors_memory() -> None:
    memory = LentMemory({"d1": 64, "d2": 64})
    memory.set_node("n", lends_bytes=0, copies=2)

    assert (memory.free_on("n"), memory.fits({"n": 64}), memory.fits({"n": 65})) == (64, True, False)
    memory.promise("n", 40)
    assert (memory.promised_bytes, memory.free_bytes, memory.free_on("n"), memory.free_on("other")) == (80, 48, 24, 48)
    memory.set_node("n", lends_bytes=0, copies=1)
    assert (memory.promised_bytes, memory.free_bytes) == (40, 88)


def test_of_one_donor_no_page_can_have_two_copies() -> None:
    memory = LentMemory({"d1": 100, "d2": 10})
    memory.set_node("n", lends_bytes=0, copies=2)

    assert (memory.free_on("n"), memory.fits({"n": 10}), memory.fits({"n": 11})) == (10, True, False)


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


def a_node(name: str, *, gpus: int = 4, swap_gib: int = 0, lends_gib: int = 0, memory_gib: float = math.inf) -> Node:
    return Node(
        name=name, gpus=gpus, swap_bytes=swap_gib * GIB, lends_bytes=lends_gib * GIB, memory_bytes=memory_gib * GIB
    )  # fmt: skip


def a_job(number: int, *, gpus: int = 1, swap_gib: int = 64, memory_gib: int = 0, vc: str = "") -> Job:
    return Job(
        job_id=str(number), sequence=number, submit_s=float(number), gpus=gpus, vc=vc,
        swap_bytes_per_gpu=swap_gib * GIB / gpus, memory_bytes_per_gpu=memory_gib * GIB / gpus,
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


@pytest.mark.parametrize("first", ["a", "b"])
def test_memory_of_jobs_in_one_virtual_cluster_is_promised_to_none_of_another(first: str) -> None:
    donors = VirtualCluster(name="a", nodes=(a_node("d", gpus=1, lends_gib=40, memory_gib=64),))
    borrowers = VirtualCluster(name="b", nodes=(a_node("n", swap_gib=64),))
    second = "b" if first == "a" else "a"
    sizes = {"a": {"swap_gib": 0, "memory_gib": 54}, "b": {"swap_gib": 36}}

    # Of the 64 GiB of its node, the donor lends 40 or a job has 54: one job after the other.
    jobs = [a_job(1, vc=first, **sizes[first]), a_job(2, vc=second, **sizes[second])]
    assert ends_of(jobs, donors, borrowers) == [101.0, 201.0]


def test_a_job_that_names_no_memory_is_not_promised_what_other_jobs_have_of_donors_nodes() -> None:
    nodes = (a_node("d", gpus=1, lends_gib=40, memory_gib=64), a_node("n", swap_gib=64))
    domain = Domain("", nodes, RULES, JobTable())
    domain.submit(0, a_job(1, swap_gib=11), remaining_s=1.0, predicted_gpu_s=1.0)
    domain.ledger.take(Demand(gpus=1, memory_bytes_per_gpu=54 * GIB), ((0, 1),))

    assert domain.book.place(0, 0.0) is None  # 10 GiB are left
    domain.ledger.give(Demand(gpus=1, memory_bytes_per_gpu=54 * GIB), ((0, 1),))
    assert domain.book.place(0, 0.0) == ((1, 1),)


@pytest.mark.parametrize("placement", ["consolidate", "yarn", "fragments"])
def test_a_job_goes_where_donors_back_it_though_the_placement_finds_another_node_first(placement: str) -> None:
    # On n0 its pages have two copies: all that it is promised and what its memory takes of the donor are too much.
    nodes = (
        a_node("n0", swap_gib=64, lends_gib=40, memory_gib=64),
        a_node("n1", swap_gib=64, memory_gib=64),
        *(a_node(name, gpus=0, lends_gib=50) for name in ("d1", "d2")),
    )
    domain = Domain("", nodes, Rules(order=RULES.order, placement=make_placement(placement, {})), JobTable())
    domain.ledger.lent.set_node("n0", lends_bytes=40 * GIB, copies=2)
    domain.ledger.lent.promise("elsewhere", 10 * GIB)
    domain.submit(0, a_job(1, gpus=4, swap_gib=50, memory_gib=60), remaining_s=1.0, predicted_gpu_s=1.0)
    (demand,) = domain.demands

    assert domain.rules.placement.place(domain.ledger, demand) == ((0, 4),)
    assert domain.book.place(0, 0.0) == ((1, 4),)


def test_who_takes_memory_of_a_donor_displaces_also_who_was_promised_it_elsewhere() -> None:
    nodes = (
        a_node("d", gpus=1, lends_gib=40, memory_gib=64),
        a_node("n", gpus=1, swap_gib=64, memory_gib=32),
    )
    rules = Rules(order=make_order("srtf", {}), placement=RULES.placement)
    domain = Domain("", nodes, rules, JobTable())
    for row, (swap_gib, memory_gib, length_s) in enumerate(((36, 0, 90.0), (0, 0, 100.0), (0, 54, 10.0))):
        job = a_job(row + 1, swap_gib=swap_gib, memory_gib=memory_gib)
        domain.submit(row, job, remaining_s=length_s, predicted_gpu_s=length_s)
        run_cycle(domain, float(row + 1))

    assert 0 not in domain.running
    assert domain.running[2].allocation == ((0, 1),)
    assert domain.ledger.lent.is_kept


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
