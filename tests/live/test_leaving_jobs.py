"""What a job has behind it while it leaves its GPUs: one that was preempted waits in the plan already."""

import pytest

from farside.scheduler.manager.model.event import CancelRequested, JobPromoted, StopCause
from farside.scheduler.manager.model.record import Phase
from tests.live.world import World, rules


def leaving() -> tuple[World, str]:
    """A world in which a job that had run for 100 s has just been told to stop for another one."""
    world = World(rules("las", limits_gpu_s="350"), nodes=1)
    job = world.submit(4)
    world.runs(job)
    world.pass_s(100.0)
    world.submit(4)
    assert world.job(job).stop_cause is StopCause.PREEMPTED
    return world, job


def gone(world: World, job: str, *, after_s: float) -> None:
    world.pass_s(after_s)
    world.exits(job, 143, cause="preempted")
    assert world.phase(job) is Phase.WAITING


def past(world: World, job_id: str) -> tuple[float, float]:
    """t_J and delta_J as the scheduler process has them."""
    domain = world.decider.domain
    (row,) = (row for row, job in domain.jobs.items() if job.job_id == job_id)
    figures = domain.roster.figures([row], world.now_s)
    return float(figures.executed_s[0]), float(figures.waited_s[0])


def test_the_seconds_of_leaving_are_waited_but_count_as_held() -> None:
    world, job = leaving()

    gone(world, job, after_s=30.0)

    assert past(world, job) == (100.0, 30.0)
    assert world.job(job).held_s == 130.0


@pytest.mark.parametrize("away_s", [0.0, 20.0])
def test_a_scheduler_process_that_starts_afterwards_counts_as_the_one_before_did(away_s: float) -> None:
    world, job = leaving()
    gone(world, job, after_s=30.0)

    world.now_s += away_s
    world.lead()

    assert past(world, job) == (100.0, 30.0 + away_s)


def test_a_scheduler_process_that_starts_meanwhile_counts_as_the_one_before_did() -> None:
    world, job = leaving()
    world.pass_s(10.0)

    world.lead()

    assert past(world, job) == (100.0, 10.0)
    gone(world, job, after_s=20.0)
    assert past(world, job) == (100.0, 30.0)


def test_one_that_is_promoted_meanwhile_has_nothing_behind_it_but_what_it_waits_since() -> None:
    world, job = leaving()
    world.pass_s(10.0)

    world.tell(JobPromoted(job_id=job, reason="it starved"))
    gone(world, job, after_s=20.0)
    world.lead()

    assert past(world, job) == (0.0, 20.0)
    assert world.job(job).held_s == 130.0


def test_one_that_is_cancelled_is_expected_to_end_by_its_limit_also_after_a_restart() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(4, time_limit_s=3600.0)
    world.runs(job)
    world.pass_s(3540.0)
    world.tell(CancelRequested(job_id=job, by="ann"))
    world.settle()
    assert world.phase(job) is Phase.STOPPING
    waits = world.submit(4, time_limit_s=60.0)
    before = world.decider.foresee(waits, world.now_s)

    world.lead()

    assert before is not None
    assert world.decider.foresee(waits, world.now_s) == before
