"""Time slicing: turns worked out by hand, and what it promises to those who wait."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Preempt, Start
from tests.support.traces import flat_cluster, trace


class Turns:
    """Every start and stop as (time, job, whether it starts)."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, bool]] = []

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        for action in actions:
            self.seen.append((now_s, domain.jobs[action.row].job_id, isinstance(action, Start)))
            assert isinstance(action, Start | Preempt)


def simulate(rows: list[tuple[float, float, int]], *, gpus: int, order: Timeshare) -> tuple[list[float], Turns]:
    turns = Turns()
    rules = Rules(order=order, placement=CountOnly())
    runs = Simulation(flat_cluster(1, gpus), rules, trace(rows), observers=(turns,)).run()
    return [run.end_s for run in runs], turns


def test_three_jobs_take_turns_on_one_gpu() -> None:
    ends, turns = simulate([(0.0, 25.0, 1), (0.0, 15.0, 1), (3.0, 10.0, 1)], gpus=1, order=Timeshare(quantum_s=10.0))

    starts = [(at, job) for at, job, is_start in turns.seen if is_start]
    assert starts == [(0, "0"), (10, "1"), (20, "2"), (30, "0"), (40, "1"), (45, "0")]
    assert ends == [50, 45, 30]


def test_nobody_is_disturbed_while_nobody_waits() -> None:
    ends, turns = simulate([(0.0, 1000.0, 1), (0.0, 1000.0, 1)], gpus=2, order=Timeshare(quantum_s=10.0))

    assert ends == [1000, 1000]
    assert len(turns.seen) == 2


def test_who_has_used_its_slice_makes_room_at_once_for_who_comes() -> None:
    ends, _ = simulate([(0.0, 100.0, 1), (55.0, 5.0, 1)], gpus=1, order=Timeshare(quantum_s=10.0))

    assert ends == [105, 60]


STREAM = [(float(5 * at), 20.0, 2) for at in range(200)]  # 2 GPUs for 20 s every 5 s: all of 8 GPUs, for 1000 s


@pytest.mark.parametrize(("is_strict", "is_soon"), [(True, True), (False, False)])
def test_a_gang_has_its_turn_within_a_slice_if_the_first_in_line_is_never_passed(
    is_strict: bool, is_soon: bool
) -> None:
    order = Timeshare(quantum_s=15.0, is_strict=is_strict)

    _, turns = simulate([*STREAM, (101.0, 10.0, 8)], gpus=8, order=order)

    start_s = next(at for at, job, _ in turns.seen if job == "200")
    assert (start_s <= 101.0 + 15.0 + 1.0) == is_soon


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50), st.sampled_from([1, 1, 2, 4, 8])), max_size=20),
    st.sampled_from([3.0, 7.0]),
    st.booleans(),
)
def test_every_turn_but_the_last_is_a_slice_at_least(
    rows: list[tuple[int, int, int]], quantum_s: float, is_strict: bool
) -> None:
    jobs = [(float(submit), float(duration), gpus) for submit, duration, gpus in rows]

    _, turns = simulate(jobs, gpus=8, order=Timeshare(quantum_s=quantum_s, is_strict=is_strict))

    began: dict[str, float] = {}
    for at, job, is_start in turns.seen:
        if is_start:
            began[job] = at
        else:
            assert at - began[job] >= quantum_s
