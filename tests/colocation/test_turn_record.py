"""Processor time of turns, as an executor averages it and tells it."""

from typing import Any

import pytest

from farside.agent import messages as m
from farside.agent.training.subtask import phase_of
from farside.agent.training.turn_record import DROPPED_ITERATIONS, Clocks, TurnRecord, job_record, row_of

MS = 1_000_000
TOOK_MS = {"PULL": 3, "COMP": 28, "PUSH": 2}
BETWEEN_MS = 1


class Node:
    """A node with job `a`, and `b`, which takes so much of the processors in each turn of the other."""

    def __init__(self, *, other_ms: int = 4, processors: int = 1) -> None:
        self.record = TurnRecord()
        self.spent = {"a": 7 * MS, "b": 50 * MS}
        self.other_ms, self.processors, self.now_ns = other_ms, processors, MS

    def clocks(self) -> Clocks:
        return Clocks(spent_ns=dict(self.spent), processors=self.processors)

    def turn(self, position: int, *, seen: bool = True) -> None:
        clocks = self.clocks() if seen else None
        self.record.asked("a", position, self.now_ns, clocks)
        self.spent["a"] += BETWEEN_MS * MS
        self.record.granted("a", position, self.now_ns, self.clocks() if seen else None, has_lease=True)
        took_ms = TOOK_MS[phase_of(position)]
        self.now_ns += (took_ms + self.other_ms) * MS
        self.spent["a"] += took_ms * MS
        self.spent["b"] += self.other_ms * MS
        self.record.done("a", position, self.now_ns, self.clocks() if seen else None)

    def iterations(self, first: int, count: int, **more: Any) -> m.ProcessorUse | None:
        for position in range(3 * first, 3 * (first + count)):
            self.turn(position, **more)
        return self.record.jobs["a"].processor


def test_an_iteration_has_its_own_processor_time_and_what_others_took_while_it_computed() -> None:
    node = Node()
    assert node.iterations(0, DROPPED_ITERATIONS) is None

    found = node.iterations(DROPPED_ITERATIONS, 1)

    # Between two turns a millisecond, three times: it is no computing.
    assert found == m.ProcessorUse(comp_s=0.028, rest_s=0.008, others_s=0.004, processors=1)
    assert found is not None
    assert found.updates_s(0.01) == 0.008
    assert m.work_s(0.032, None, found) == pytest.approx(0.028)


def test_a_new_value_moves_the_averages_by_a_fifth() -> None:
    node = Node(other_ms=0)
    node.iterations(0, 9)
    node.other_ms = 10

    found = node.iterations(9, 1)

    assert found is not None
    assert (found.others_s, found.rest_s) == pytest.approx((0.002, 0.008))


def test_what_was_not_seen_is_not_guessed_and_a_job_that_left_begins_anew() -> None:
    node = Node()
    assert node.iterations(0, 9, seen=False) is None
    assert node.iterations(9, 1) is None  # nobody knows what came before its first turn
    assert node.iterations(10, 1) is not None

    node.record.left("a")
    node.spent["a"] = 0
    assert node.iterations(11, 1) is None
    assert node.iterations(12, 1) is not None


def test_a_process_in_the_place_of_another_has_no_time_of_that() -> None:
    node = Node()
    node.iterations(0, 9)
    before = node.record.jobs["a"].processor
    node.spent["a"] = node.spent["b"] = 0  # both have started again, and their clocks as well

    assert node.iterations(9, 1) == before


def test_rows_of_a_trace_say_what_the_executor_knows() -> None:
    node = Node()
    node.iterations(0, 12)
    node.spent.pop("a")  # it can't be seen any more
    node.record.asked("a", 36, node.now_ns, node.clocks())
    node.record.granted("a", 36, node.now_ns, node.clocks(), has_lease=True)
    node.record.done("a", 36, node.now_ns + MS, node.clocks())

    rows = [row_of(turn) for turn in node.record.trace(0, 100)[1]]

    assert rows[4] == ["a", 4, "COMP", 53 * MS, 53 * MS, 85 * MS, True, [28 * MS, MS, 4 * MS, 1]]
    assert rows[-1][7] is None
    assert job_record(rows).status == node.record.jobs["a"].status


def test_where_a_processor_is_idle_for_updates_they_hold_nobody_up() -> None:
    one_of_two = m.ProcessorUse(comp_s=0.1, rest_s=0.02, others_s=0.01, processors=2)
    both = m.ProcessorUse(comp_s=0.19, rest_s=0.02, others_s=0.01, processors=2)

    assert (one_of_two.leaves_processor(0.1), both.leaves_processor(0.1)) == (True, False)
    assert (m.work_s(0.1, None, one_of_two), m.work_s(0.1, None, both)) == pytest.approx((0.1, 0.095))
    assert m.work_s(0.1, None, m.ProcessorUse(comp_s=1.0, others_s=9.0)) == pytest.approx(0.001)
    assert m.work_s(0.1, None, None) == 0.1
