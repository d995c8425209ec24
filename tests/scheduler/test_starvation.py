"""What PROMOTEKNOB does, and for whom it does nothing."""

import math

import pytest

from farside.scheduler.domain import Rules
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.simulation import Run, Simulation
from tests.support.traces import flat_cluster, trace

GPUS = 32


def stream(until_s: float) -> list[tuple[float, float, int]]:
    """4 GPUs for 100 s every 10 s, a quarter more than the cluster has. None of them ever leaves Q1."""
    return [(float(at), 100.0, 4) for at in range(0, int(until_s), 10)]


def last_job(order: OrderPolicy, rows: list[tuple[float, float, int]]) -> Run:
    """What becomes of the job that stands last in the rows."""
    jobs = trace(rows)
    runs = Simulation(flat_cluster(4, 8), Rules(order=order, placement=CountOnly()), jobs).run()
    return next(run for run, job in zip(runs, jobs, strict=True) if job.job.job_id == str(len(rows) - 1))


@pytest.mark.parametrize("within", ["running_first", "start_time"])
@pytest.mark.parametrize("until_s", [1_000.0, 4_000.0, 16_000.0])
@pytest.mark.parametrize("knob", [0.5, 1.0, 8.0, math.inf])
def test_a_gang_that_never_started_starves_whatever_the_knob(within: str, until_s: float, knob: float) -> None:
    """It is in Q1, where promotion would put it, and 16 GPUs are never free at once. [tiresias §3.3.2.3]"""
    order = Las(within="running_first" if within == "running_first" else "start_time", promote_knob=knob)

    gang = last_job(order, [*stream(until_s), (105.0, 60.0, 16)])

    assert gang.start_s > until_s


def test_a_fixed_limit_or_an_index_does_not_help_it_either() -> None:
    for order in (Las(starve_limit_s=60.0), Gittins(promote_knob=1.0, first_fit_jobs=1)):
        assert last_job(order, [*stream(4_000.0), (105.0, 60.0, 16)]).start_s > 4_000.0


def test_a_gang_that_was_demoted_is_helped_by_the_knob() -> None:
    """It runs alone for 300 s, which takes it to Q2; then the stream comes. Promoted, it stands in Q1 once more."""
    later = [(submit_s + 300.0, duration_s, gpus) for submit_s, duration_s, gpus in stream(8_000.0)]
    rows = [*later, (0.0, 500.0, GPUS)]

    starved, promoted = (last_job(Las(promote_knob=knob), rows) for knob in (math.inf, 1.0))

    assert starved.end_s > 8_300.0
    assert promoted.preemptions >= 1
    assert promoted.end_s <= starved.end_s
