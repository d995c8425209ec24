"""What a node may write into the log [M5]: one whose facts flap is damped, one that writes without end is slowed."""

from hypothesis import given
from hypothesis import strategies as st

from farside.log import KINDS_MAX, Rarely
from farside.scheduler.manager.nodes.entry_budget import (
    BURST_BYTES,
    BYTES_PER_S,
    CHANGE_PERIOD_S,
    CHANGES_BURST,
    IDLE_BURST,
    IDLE_BYTES,
    IDLE_PER_S,
    OVERDRAFT_BYTES,
    PAUSE_S,
    EntryBudget,
)


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 200_000)), max_size=60))
def test_a_node_that_pays_its_debts_writes_no_more_than_its_share(steps: list[tuple[float, int]]) -> None:
    budget, now_s, written = EntryBudget(0.0), 0.0, 0
    for pause_s, size_bytes in steps:
        now_s += pause_s + budget.debt_s(now_s + pause_s)
        assert not budget.debt_s(now_s) > 1e-6
        budget.spend(size_bytes, now_s)
        written += size_bytes

    assert written <= BURST_BYTES + BYTES_PER_S * now_s + 200_000


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 400_000)), max_size=60))
def test_a_node_in_debt_is_heard_on_and_writes_without_end_no_more_than_its_share(
    steps: list[tuple[float, int]],
) -> None:
    budget, now_s, written = EntryBudget(0.0), 0.0, 0
    for pause_s, size_bytes in steps:
        now_s += pause_s
        budget.spend(size_bytes, now_s)
        written += size_bytes
        rest_s = budget.rest_s(now_s)
        assert rest_s <= PAUSE_S or written > OVERDRAFT_BYTES
        now_s += rest_s
        assert budget.excess_s(now_s) <= 1e-6

    assert written <= BURST_BYTES + OVERDRAFT_BYTES + BYTES_PER_S * now_s + 1


def test_facts_that_flap_are_written_at_once_at_first_and_then_now_and_then() -> None:
    budget = EntryBudget(0.0)

    told = [at for at in range(3000) if budget.takes_change(at / 10)]

    assert told[:CHANGES_BURST] == list(range(CHANGES_BURST))
    assert len(told) <= CHANGES_BURST + 300 / CHANGE_PERIOD_S + 1
    assert len(told) >= CHANGES_BURST + 300 / CHANGE_PERIOD_S - 1


def test_reports_of_which_nothing_is_written_are_read_no_faster_than_a_node_has_a_reason_for() -> None:
    budget, now_s, read = EntryBudget(0.0), 0.0, 0
    while now_s < 60.0:
        now_s += budget.idle_rest_s(2000, now_s) + 1e-4
        read += 1

    assert read <= IDLE_BURST + 60.0 * IDLE_PER_S + 1
    honest = EntryBudget(0.0)
    assert not any(honest.idle_rest_s(2000, at / IDLE_PER_S) for at in range(3000))


def test_a_long_report_of_which_nothing_is_written_counts_as_several() -> None:
    budget = EntryBudget(0.0)

    rests_s = [budget.idle_rest_s(40 * IDLE_BYTES, 0.0) for _ in range(4)]

    assert rests_s == [0.0, 0.0, 0.0, 40 / IDLE_PER_S]


def test_what_is_left_out_is_counted_and_told_with_the_next_line() -> None:
    """[L6]"""
    now = [0.0]
    rarely = Rarely(60.0, now_s=lambda: now[0])

    assert rarely.may("a") == 0
    assert [rarely.may("a") for _ in range(5)] == [None] * 5
    assert rarely.may("b") == 0
    now[0] = 61.0
    assert rarely.may("a") == 5


def test_kinds_without_end_cost_no_memory_without_end() -> None:
    """[L6]"""
    rarely = Rarely(60.0, now_s=lambda: 0.0)

    told = [rarely.may(number) for number in range(2 * KINDS_MAX)]

    assert told.count(0) == KINDS_MAX
    assert len(rarely._told) == KINDS_MAX
