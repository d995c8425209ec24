"""The checker of logs: it must find what is planted, and nothing in a sound log."""

from collections.abc import Sequence
from dataclasses import replace

from farside.scheduler.live.event import Entry, JobEnded, JobStarted, TaskChanged, TaskPlace
from farside.scheduler.live.invariant import violations
from tests.live.world import World, rules


def sound_log() -> list[Entry]:
    world = World(rules())
    for _ in range(4):
        world.submit(4)
    for job in ("1", "2", "3", "4"):
        world.runs(job)
        world.exits(job)
    return world.log


def renumbered(entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entry, seq=at + 1) for at, entry in enumerate(entries)]


def test_a_sound_log_has_no_violations() -> None:
    assert list(violations(sound_log(), is_complete=True)) == []


def test_a_planted_double_booking_is_found() -> None:
    log = sound_log()
    starts = [at for at, entry in enumerate(log) if isinstance(entry.event, JobStarted)]
    second = log[starts[1]]
    assert isinstance(second.event, JobStarted)
    stolen = replace(second.event, tasks=(TaskPlace(rank=0, node="n0", gpus=(3,)),))  # the first job has it
    log[starts[1]] = replace(second, event=stolen)

    found = list(violations(log))

    assert any("GPU 3 of n0 is given to job 2, and job 1 holds it" in what for what in found)


def test_a_start_that_is_written_twice_is_found() -> None:
    log = sound_log()
    at = next(at for at, entry in enumerate(log) if isinstance(entry.event, JobStarted))

    found = list(violations(renumbered([*log[: at + 1], *log[at:]])))

    assert any("job 1 was started twice" in what for what in found)


def test_a_lost_report_of_an_end_is_found_as_soon_as_the_gpu_is_given_again() -> None:
    log = sound_log()
    kept = [entry for entry in log if not (isinstance(entry.event, TaskChanged) and entry.event.job_id == "1")]

    assert any("job 1 holds it" in what for what in violations(renumbered(kept)))


def test_a_job_that_never_ended_is_found_in_a_log_that_should_be_complete() -> None:
    log = [entry for entry in sound_log() if not (isinstance(entry.event, JobEnded) and entry.event.job_id == "4")]

    assert list(violations(renumbered(log), is_complete=True)) == ["job 4 was lost: it never ended"]


def test_a_decision_of_a_brain_that_has_lost_the_lead_is_found() -> None:
    world = World(rules())
    world.submit(1)
    world.lead()
    late = next(entry for entry in world.log if isinstance(entry.event, JobStarted))

    found = list(violations([*world.log, replace(late, seq=len(world.log) + 1)]))

    assert any("was decided by generation 1 when 2 led" in what for what in found)
