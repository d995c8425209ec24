"""Estimates over restarts: each scheduler process learns from the log, and ranks waiting jobs by what it learned."""

from farside.scheduler.manager.restarted_times import RestartedTimes
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job


def job(number: int, *, name: str = "train") -> Job:
    return Job(job_id=str(number), sequence=number, submit_s=float(number), gpus=1, user="ann", name=name)


def test_after_a_restart_waiting_jobs_are_expected_as_the_next_process_does_that_has_read_the_log() -> None:
    made: list[LearnedTimes] = []

    def make() -> LearnedTimes:
        made.append(LearnedTimes())
        return made[-1]

    times = RestartedTimes(make(), make, (50.0,))
    for number in (1, 2, 3):
        times.predicted_gpu_s(job(number), float(number))
    before = times.learn(JobEnded(at_s=40.0, job=job(1), ran_s=30.0))
    again = times.learn(JobEnded(at_s=60.0, job=job(2), ran_s=20.0))

    next_one = LearnedTimes()
    for number in (1, 2, 3):
        next_one.predicted_gpu_s(job(number), float(number))
    next_one.learn(JobEnded(at_s=40.0, job=job(1), ran_s=30.0))
    assert len(made) == 2
    assert 3 not in before
    assert again == {3: next_one.predicted_gpu_s(job(3), 3.0)}
    assert times.predicted_gpu_s(job(4), 61.0) != times.predicted_gpu_s(job(3), 61.0)


def test_without_a_restart_it_is_one_estimator() -> None:
    times, alone = RestartedTimes(LearnedTimes(), LearnedTimes), LearnedTimes(fits_at_once=True)
    for number in (1, 2, 3):
        assert times.predicted_gpu_s(job(number), 1.0 * number) == alone.predicted_gpu_s(job(number), 1.0 * number)
        ended = JobEnded(at_s=10.0 * number, job=job(number), ran_s=5.0)
        assert times.learn(ended) == alone.learn(ended)
    assert times.remaining_s(job(4), 1.0) == alone.remaining_s(job(4), 1.0)
