"""What is remembered of a job from turn to turn."""

import math
from dataclasses import replace

from farside.scheduler.slurm.job_memory import Memory, Past, recall
from farside.scheduler.slurm.snapshot import JobPhase
from tests.slurm.made import NOW_S, over, running, waiting


def executed_s(past: Past, now_s: float) -> float:
    """Seconds that it has held GPUs in all, since it was submitted or last promoted."""
    return past.executed_s + (max(0.0, now_s - past.since_s) if past.is_running else 0.0)


def test_a_running_job_that_is_seen_first_has_run_since_slurm_says() -> None:
    memory = recall(Memory(), [running(1, ("gn1", 2), since_s=300)], NOW_S)

    assert executed_s(memory.jobs["1"], NOW_S) == 300


def test_service_before_a_requeue_counts() -> None:
    job = running(1, ("gn1", 2), since_s=300)
    memory = recall(Memory(), [job], NOW_S)
    requeued = replace(job, phase=JobPhase.WAITING, held=(), restarts=1, start_s=math.nan)
    memory = recall(memory, [requeued], NOW_S + 5)
    again = replace(requeued, phase=JobPhase.RUNNING, held=(("gn2", 2),), start_s=NOW_S + 100)
    memory = recall(memory, [again], NOW_S + 160)

    past = memory.jobs["1"]
    assert executed_s(past, NOW_S + 160) == 300 + 60
    assert past.waited_s == (NOW_S - 300 - job.submit_s) + 100
    assert past.first_start_s == NOW_S - 300


def test_a_requeue_between_two_turns_is_noticed_by_its_count() -> None:
    job = running(1, ("gn1", 2), since_s=300)
    memory = recall(Memory(), [job], NOW_S)
    memory = recall(memory, [replace(job, restarts=1, start_s=NOW_S + 20)], NOW_S + 50)

    assert executed_s(memory.jobs["1"], NOW_S + 50) == 300 + 30


def test_a_job_that_is_over_is_forgotten() -> None:
    memory = recall(Memory(), [running(1, ("gn1", 2)), waiting(2)], NOW_S)

    assert recall(memory, [waiting(2)], NOW_S + 5).jobs.keys() == {"2"}
    assert over(running(1, ("gn1", 2)), NOW_S).phase is JobPhase.OVER


def test_a_clock_of_slurms_that_is_ahead_gives_no_negative_times() -> None:
    memory = recall(Memory(), [waiting(1, submit_s=NOW_S + 3, eligible_s=NOW_S + 3)], NOW_S)
    memory = recall(memory, [running(1, ("gn1", 1), since_s=-9.0)], NOW_S + 1)

    past = memory.jobs["1"]
    assert past.waited_s >= 0
    assert executed_s(past, NOW_S + 1) == 0
