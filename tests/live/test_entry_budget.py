"""What a node may write into the log [M5]: one whose facts flap is damped, one that writes without end is slowed."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from farside.agent import messages as m
from farside.agent import protocol
from farside.agent.gpu_share import PARTS_MAX
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


def largest_report() -> m.Report:
    """All that an honest node may have to say though nothing is new: what changes at once is in the log after it."""
    gpus = tuple(
        m.Gpu(
            index=at, model="NVIDIA H100 80GB HBM3", healthy=True, uuid=f"GPU-{UUID(int=at)}",
            parts=tuple(f"MIG-{UUID(int=7 * at + part)}" for part in range(PARTS_MAX)),
            memory_bytes=85_520_809_984, memory_used_bytes=81_234_567_168, busy_pct=100.0, power_w=699.123,
        )
        for at in range(m.GPUS_MAX)
    )  # fmt: skip
    loans = tuple(
        m.Loan(borrower=f"node-{at:04}.cluster.example.org", bytes=1 << 40, slabs=16384) for at in range(m.LOANS_MAX)
    )
    peaks = tuple((pct, 86_400.123 - 1000 * pct) for pct in range(m.LOAD_PCT_MAX, 0, -1))
    loads = tuple(
        m.TaskLoad(task_id=f"1234567_{at}.511", start=1, age_s=1.234, watched_s=86_400.567, peaks=peaks)
        for at in range(m.GPUS_MAX)
    )
    full = Raw(json.dumps("x" * (m.SERVICE_BYTES_MAX - 2)).encode())
    services = {f"service-{at}": full for at in range(m.SERVICES_BYTES_MAX // m.SERVICE_BYTES_MAX)}
    return m.Report(
        seq=1, at_s=1e9, headroom_bytes=1 << 40, psi=m.Psi(), gpus=gpus, tasks=(), loans=loans, loads=loads,
        lids=tuple(range(m.LIDS_MAX)), services=services,
    )  # fmt: skip


def test_an_honest_node_with_all_that_a_node_may_have_is_never_paced_however_often_it_reports() -> None:
    """One of 30 KB that reported four times a second, as its donor took memory back for a job, was read late."""
    budget, size_bytes = EntryBudget(0.0), len(protocol.encode(largest_report()))

    assert size_bytes > 100_000
    assert not any(budget.idle_rest_s(size_bytes, at / IDLE_PER_S) for at in range(3000))


def test_what_is_left_out_is_counted_and_told_with_the_next_line() -> None:
    """[L6]"""
    now = [0.0]
    rarely = Rarely(60.0, now_s=lambda: now[0])

    assert rarely.may("a") == 0
    assert [rarely.may("a") for _ in range(5)] == [None] * 5
    assert rarely.may("b") == 0
    now[0] = 61.0
    assert rarely.may("a") == 5


@pytest.mark.long
def test_kinds_without_end_cost_no_memory_without_end() -> None:
    """[L6]"""
    rarely = Rarely(60.0, now_s=lambda: 0.0)

    told = [rarely.may(number) for number in range(2 * KINDS_MAX)]

    assert told.count(0) == KINDS_MAX
    assert len(rarely._told) == KINDS_MAX
