"""Where jobs go whose memory donors have lent, and how long that is expected to take to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.admission.rules import Rules
from farside.scheduler.domain import Domain
from farside.scheduler.ledger import Ledger
from farside.scheduler.lent_memory import to_recall
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.placement.recall import least_recall
from farside.scheduler.placement.recall_times import KEPT, LOOK_S, RecallTimes, line_at, time_at
from farside.scheduler.state import Demand, Job, Node
from farside.scheduler.table import JobTable

GIB = 1 << 30
WHOLE = ("consolidate", "fragments", "skew", "yarn")  # which put a job that fits on one node there


def a_domain(placement: str, borrowed_gib: list[int], *, gpus: int = 4, memory_gib: int = 64) -> Domain:
    """Nodes n0 and so on whose donors lend half of their memory, so much of that lent by now."""
    nodes = tuple(
        Node(name=f"n{at}", gpus=gpus, memory_bytes=memory_gib * GIB, lends_bytes=memory_gib * GIB / 2)
        for at in range(len(borrowed_gib))
    )
    rules = Rules(order=make_order("fifo", {}), placement=make_placement(placement, {}))
    domain = Domain("", nodes, rules, JobTable())
    for at, size in enumerate(borrowed_gib):
        domain.ledger.lent.set_borrowed(f"n{at}", size * GIB)
    return domain


def places(domain: Domain, *, gpus: int, memory_gib: float) -> dict[str, int] | None:
    job = Job(job_id="1", sequence=1, submit_s=0.0, gpus=gpus, memory_bytes_per_gpu=memory_gib * GIB)
    domain.submit(0, job, remaining_s=1.0, predicted_gpu_s=1.0)
    found = domain.book.place(0, 0.0)
    return None if found is None else {domain.ledger.nodes[at].name: count for at, count in found}


@pytest.mark.parametrize("placement", WHOLE)
def test_a_job_that_needs_memory_goes_where_nobody_has_it(placement: str) -> None:
    domain = a_domain(placement, [30, 30, 0, 30])

    assert places(domain, gpus=4, memory_gib=16) == {"n2": 4}


@pytest.mark.parametrize("placement", WHOLE)
def test_where_all_nodes_lend_it_goes_where_least_has_to_come_back(placement: str) -> None:
    domain = a_domain(placement, [30, 20, 10, 25])

    assert places(domain, gpus=4, memory_gib=16) == {"n2": 4}


def test_a_job_that_finds_its_memory_beside_what_is_lent_goes_where_it_would_go_anyway() -> None:
    assert places(a_domain("consolidate", [30, 0]), gpus=2, memory_gib=8) == {"n0": 2}


def test_a_job_that_names_no_memory_goes_where_it_would_go_anyway() -> None:
    assert places(a_domain("consolidate", [30, 0]), gpus=4, memory_gib=0) == {"n0": 4}


def test_a_job_is_not_spread_over_more_nodes_for_memory_that_is_lent() -> None:
    domain = a_domain("fragments", [30, 0, 0])
    domain.ledger.take(Demand(gpus=2), ((1, 2),))
    domain.ledger.take(Demand(gpus=2), ((2, 2),))
    demand = Demand(gpus=4, memory_bytes_per_gpu=16 * GIB)

    assert domain.rules.placement.place(domain.ledger, demand) == ((1, 2), (2, 2))
    assert least_recall(domain.rules.placement, domain.ledger, demand, ((0, 4),)) == ((0, 4),)


def test_a_recall_that_would_break_a_promise_is_none() -> None:
    domain = a_domain("consolidate", [30, 30])
    domain.ledger.lent.set_node("elsewhere", lends_bytes=0)
    domain.ledger.lent.promise("elsewhere", 60 * GIB)  # of the 64 GiB that both donors lend

    assert places(domain, gpus=4, memory_gib=10) is None  # 24 GiB would be left to lend, of 32
    domain.ledger.lent.promise("elsewhere", -4 * GIB)
    assert domain.book.place(0, 0.0) == ((0, 4),)


def test_a_node_whose_promises_a_recall_would_break_does_not_hide_one_where_it_would_not() -> None:
    domain = a_domain("consolidate", [30, 0])
    domain.ledger.lent.promise("elsewhere", 48 * GIB)
    domain.ledger.lent.set_node("n1", lends_bytes=20 * GIB)

    assert places(domain, gpus=4, memory_gib=11) == {"n1": 4}  # which leaves 20 GiB on either node


def test_a_job_gets_no_memory_of_a_donor_that_others_were_promised_and_do_not_use_yet() -> None:
    domain = a_domain("consolidate", [0, 0])
    domain.ledger.lent.promise("elsewhere", 60 * GIB)  # of the 64 GiB that both donors lend

    assert places(domain, gpus=4, memory_gib=10) is None  # 24 GiB would be left to lend, of 32
    domain.ledger.lent.promise("elsewhere", -4 * GIB)
    assert domain.book.place(0, 0.0) == ((0, 4),)


def test_a_job_is_not_promised_what_another_jobs_memory_leaves_a_donor_no_more() -> None:
    ledger = a_domain("consolidate", [0, 0, 0]).ledger
    ledger.take(Demand(gpus=4, memory_bytes_per_gpu=15 * GIB), ((0, 4),))  # 4 GiB are left there to lend
    fitting, larger = (Demand(gpus=4, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=gib * GIB) for gib in (9, 10))

    assert ledger.is_lent(fitting, ((1, 4),))  # the donors of the two others lend 36 GiB
    assert not ledger.is_lent(larger, ((1, 4),))


def test_a_job_that_takes_nothing_lent_does_not_wait_for_what_others_lack() -> None:
    domain = a_domain("consolidate", [0, 0])
    domain.ledger.lent.promise("elsewhere", 80 * GIB)  # donors have gone since

    assert places(domain, gpus=4, memory_gib=8) == {"n0": 4}


def recall_of(ledger: Ledger, at: int, memory_gib: int, gpus: int) -> int:
    """Slowly, of one node, without the ledger's arithmetic: the fewest bytes that leave enough."""
    node, borrowed = ledger.nodes[at], ledger.lent.borrowed_from(ledger.nodes[at].name) // GIB
    free = int(node.memory_bytes) // GIB
    return next(size for size in range(borrowed + 1) if free - (borrowed - size) >= gpus * memory_gib)


@given(st.lists(st.integers(0, 32), min_size=1, max_size=6), st.integers(1, 16), st.integers(1, 4))
def test_of_single_nodes_none_has_less_to_take_back_than_the_one_found(
    borrowed_gib: list[int], memory_gib: int, gpus: int
) -> None:
    domain = a_domain("consolidate", borrowed_gib)
    found = places(domain, gpus=gpus, memory_gib=memory_gib)

    assert found is not None
    ((name, _),) = found.items()
    recalled = [recall_of(domain.ledger, at, memory_gib, gpus) for at in range(len(borrowed_gib))]
    assert recalled[int(name[1:])] == min(recalled)
    assert domain.ledger.recalls(domain.demands[domain.groups[0]], ((int(name[1:]), gpus),)) == (
        {int(name[1:]): min(recalled) * GIB} if min(recalled) else {}
    )


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_with_what_is_recalled_a_job_has_its_memory_unless_all_that_is_lent_is_too_little(
    need: int, free: int, borrowed: int
) -> None:
    recalled = to_recall(need, free, borrowed)

    assert 0 <= recalled <= borrowed
    assert free - borrowed + recalled >= need or recalled == borrowed
    assert recalled == 0 or free - borrowed + recalled <= need


# ---- how long it takes


def test_nothing_is_expected_before_anything_was_measured() -> None:
    assert RecallTimes().expected_s("n0", GIB) is None


def test_what_is_expected_goes_by_the_newest_recalls_of_all_until_a_node_has_enough_of_its_own() -> None:
    """One quick recall was all that its node went by, however slow the others had been."""
    times = RecallTimes()
    times.add("n0", 100, 10.0)
    assert (times.expected_s("n0", 200), times.expected_s("n1", 200)) == (20.0 + LOOK_S, 20.0 + LOOK_S)
    for _ in range(KEPT - 1):
        times.add("n1", 100, 3.0)
        assert times.expected_s("n1", 100) == pytest.approx(10.0 + LOOK_S)

    times.add("n1", 100, 3.0)

    assert times.expected_s("n1", 100) == pytest.approx(3.0 + LOOK_S)
    assert times.expected_s("n0", 100) == pytest.approx(10.0 + LOOK_S)


def test_of_other_nodes_the_newest_recalls_count_as_many_of_each() -> None:
    times = RecallTimes()
    for at in range(KEPT):
        times.add("n1", 100, float(at))
        times.add("n2", 200, float(at))
    times.add("n0", 300, 1.0)

    assert times.samples("n0") == [
        (300, 1.0), (100, 7.0), (200, 7.0), (100, 6.0), (200, 6.0), (100, 5.0), (200, 5.0), (100, 4.0),
    ]  # fmt: skip


def test_a_recall_that_nobody_saw_the_end_of_counts_where_it_took_longer_than_expected() -> None:
    """Jobs that were cancelled while they waited left no trace, so that the slow recalls were missing."""
    times = RecallTimes()
    times.add_unfinished("n0", 100, 50.0)
    assert times.expected_s("n0", 100) is None
    times.add("n0", 100, 3.0)
    times.add_unfinished("n0", 100, 3.0 + LOOK_S)
    assert len(times.samples("n0")) == 1

    times.add_unfinished("n0", 100, 9.0)

    assert times.expected_s("n0", 100) == pytest.approx(9.0 + LOOK_S)


def test_an_end_may_be_seen_a_look_later_than_those_before() -> None:
    times = RecallTimes()
    times.add("n0", 100, 0.25)

    assert times.expected_s("n0", 100) == pytest.approx(0.5)


def test_a_recall_larger_than_all_that_were_measured_takes_in_proportion_to_the_largest() -> None:
    assert time_at([(100, 6.0), (300, 8.0)], 300) == pytest.approx(8.0)
    assert time_at([(100, 6.0), (300, 8.0)], 600) == pytest.approx(16.0)
    assert time_at([(40, 0.3), (96, 0.3)], 256) == pytest.approx(0.8)


def test_the_way_of_the_order_is_told_from_what_goes_by_size() -> None:
    assert line_at([(100, 6.0), (300, 8.0)], 500) == pytest.approx(10.0)
    assert line_at([(100, 6.0), (300, 8.0)], 0) == pytest.approx(5.0)


def test_what_is_expected_is_no_less_than_the_slowest_recalls_say() -> None:
    samples = [(100, 6.0), (300, 8.0), (200, 10.0), (200, 4.0)]

    assert line_at(samples, 200) == pytest.approx(10.0)
    assert line_at(samples, 400) == pytest.approx(12.0)
    assert all(line_at(samples, size) >= took_s - 1e-9 for size, took_s in samples)


def test_a_recall_smaller_than_all_that_were_measured_alike_may_take_as_long() -> None:
    assert line_at([(100, 6.0)], 50) == 6.0


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.1, 1000.0)), min_size=1, max_size=8), st.integers(1, 1000))
def test_a_larger_recall_is_never_expected_to_take_less_and_none_takes_no_time(
    samples: list[tuple[int, float]], size: int
) -> None:
    assert 0.0 <= line_at(samples, size) <= time_at(samples, size) + 1e-6
    assert time_at(samples, size) <= time_at(samples, 2 * size) + 1e-6


def test_only_the_newest_recalls_of_a_node_count() -> None:
    times = RecallTimes()
    for _ in range(KEPT):
        times.add("n0", 100, 500.0)
    for _ in range(KEPT):
        times.add("n0", 100, 1.0)

    assert times.expected_s("n0", 100) == pytest.approx(1.0 + LOOK_S)
    assert len(times.samples("n0")) == KEPT
