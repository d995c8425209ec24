"""What a chunk and a byte cost, from an Aggregator's counters; where these can't tell, one of them, and the reason."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farside.scheduler.sharing.aggregation.cost import WORDS, Basis, Cost, Counted, fitted, mean_cost

KIB = 1024.0


def counted(updates: list[tuple[float, float]]) -> Counted:
    """The sums over updates of a size in bytes and a time in seconds."""
    return Counted(
        updates=len(updates),
        size_bytes=sum(size for size, _ in updates),
        busy_s=sum(took_s for _, took_s in updates),
        size_squares=sum(size**2 for size, _ in updates),
        size_times=sum(size * took_s for size, took_s in updates),
    )


@given(chunk_s=st.floats(1e-7, 1e-3), byte_s=st.floats(1e-12, 1e-8), small=st.floats(1.0, 128.0))
def test_times_on_a_line_give_the_line(chunk_s: float, byte_s: float, small: float) -> None:
    sizes = [small * KIB, 256 * KIB] * 400

    found = fitted(counted([(size, chunk_s + byte_s * size) for size in sizes]))

    assert found is not None
    whole_s = chunk_s + byte_s * 256 * KIB
    assert found.work_s(1, 256 * KIB) == pytest.approx(whole_s)
    assert abs(found.chunk_s - chunk_s) < 1e-6 * whole_s


@given(
    st.lists(st.tuples(st.floats(1.0, 64e6), st.floats(1e-7, 1e-2)), min_size=1, max_size=60),
    st.integers(1, 50),
)
def test_what_all_updates_cost_is_what_was_measured_and_no_part_of_it_is_below_0(
    updates: list[tuple[float, float]], times: int
) -> None:
    told = counted(updates * times)

    found = fitted(told)

    assert found is not None
    assert min(found.chunk_s, found.byte_s) >= 0
    assert found.work_s(told.updates, told.size_bytes) == pytest.approx(told.busy_s)


# Sums that no updates have, as a broken or lying agent might tell them.
@given(
    st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.floats(0, 4e9), st.floats(0, 1e40), st.floats(0, 1e40)
)  # fmt: skip
@example(1, 1, 1.0, 1e40, 1e40)
def test_sums_that_make_no_sense_give_no_more_than_was_measured(
    updates: int, size_bytes: int, busy_s: float, size_squares: float, size_times: float
) -> None:
    told = Counted(
        updates=updates, size_bytes=size_bytes, busy_s=busy_s, size_squares=size_squares, size_times=size_times
    )

    found = fitted(told)

    if found is not None:
        assert 0 <= found.chunk_s <= busy_s / updates * (1 + 1e-9)
        assert 0 <= found.byte_s < math.inf
        assert found.byte_s <= busy_s / size_bytes * (1 + 1e-9)


LINE = [(size, 1e-5 + 1e-10 * size) for size in (20 * KIB, 256 * KIB)]


@pytest.mark.parametrize(
    ("updates", "basis"),
    [
        (LINE * 400, Basis.BOTH),
        (LINE * 2, Basis.ALIKE),  # too few
        ([(250 * KIB, 1e-4), (256 * KIB, 1e-4)] * 5000, Basis.ALIKE),
        ([(20 * KIB, 1e-7), (256 * KIB, 1e-4)] * 400, Basis.SMALL),
        ([(20 * KIB, 1e-4), (256 * KIB, 9e-5)] * 400, Basis.LARGE),
    ],
)
def test_where_the_two_can_not_be_told_apart_there_is_one_and_the_reason(
    updates: list[tuple[float, float]], basis: Basis
) -> None:
    found = fitted(counted(updates))

    assert found is not None
    assert found.basis is basis
    assert bool(WORDS[basis]) == (0.0 in (found.chunk_s, found.byte_s))


def test_an_aggregator_of_before_tells_what_a_byte_costs() -> None:
    assert fitted(Counted(updates=4, size_bytes=100.0, busy_s=2.0)) == Cost(byte_s=0.02)
    assert fitted(Counted(updates=0, size_bytes=0.0, busy_s=0.0)) is None


def test_a_cost_differs_where_one_of_its_parts_does_though_their_sum_is_the_same() -> None:
    one = Cost(chunk_s=1.0, byte_s=1.0)

    assert not one.differs(Cost(chunk_s=1.04, byte_s=1.04), 10, 10, 0.05)
    assert one.differs(Cost(chunk_s=1.5, byte_s=0.5), 10, 10, 0.05)
    assert not one.differs(Cost(chunk_s=1.5, byte_s=1.0), 1, 1000, 0.05)  # a small part of the whole


def test_several_aggregators_count_alike() -> None:
    both, alone = Cost(chunk_s=2.0, byte_s=1.0, basis=Basis.BOTH), Cost(byte_s=3.0, basis=Basis.ALIKE)

    assert mean_cost([]) is None
    assert mean_cost([alone, alone]) == alone
    assert mean_cost([both, alone]) == Cost(chunk_s=1.0, byte_s=2.0, basis=Basis.BOTH)
