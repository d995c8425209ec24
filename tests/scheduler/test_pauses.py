"""Times in which nobody decides: jobs come and end, and the cycle runs when they are over."""

import pytest

from farside.scheduler.admission.rules import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.simulation import Simulation
from tests.support.traces import flat_cluster, trace

PAUSE = (10.0, 20.0)


def starts(policy: str, *rows: tuple[float, float, int], tick_s: float = 0.0) -> list[float]:
    """First starts of jobs (submit time, seconds, GPUs) on a node of four GPUs."""
    rules = Rules(order=make_order(policy, {}), placement=CountOnly())
    simulation = Simulation(flat_cluster(1, 4), rules, trace(list(rows)), pauses=(PAUSE,), tick_s=tick_s)
    return [run.start_s for run in simulation.run()]


def test_what_comes_in_a_pause_starts_at_its_end_in_the_order_of_the_policy() -> None:
    assert starts("sf", (11.0, 5.0, 4), (12.0, 5.0, 1)) == [25.0, 20.0]


def test_gpus_that_become_free_in_a_pause_are_given_away_at_its_end() -> None:
    assert starts("fifo", (0.0, 15.0, 4), (1.0, 5.0, 4)) == [0.0, 20.0]


def test_before_and_after_it_jobs_start_when_they_come() -> None:
    assert starts("fifo", (9.0, 1.0, 1), (20.0, 1.0, 1), (30.0, 1.0, 1)) == [9.0, 20.0, 30.0]


@pytest.mark.parametrize(("submit_s", "start_s"), [(3.0, 4.0), (9.0, 20.0)])
def test_a_tick_in_a_pause_comes_at_its_end(submit_s: float, start_s: float) -> None:
    assert starts("fifo", (submit_s, 1.0, 1), tick_s=4.0 if submit_s < 9 else 6.0) == [start_s]
