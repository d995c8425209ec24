"""Each decision in the log names what brought it about: an entry, or a timer."""

from farside.scheduler.manager.model.event import (
    CancelRequested,
    Entry,
    Event,
    JobAllocated,
    JobEnded,
    JobStarted,
    JobStopping,
    JobSubmitted,
    NodeJoined,
    TaskChanged,
)
from farside.scheduler.manager.view.view import show_entry
from tests.live.world import World, rules


def last(world: World, kind: type[Event]) -> Entry:
    return next(entry for entry in reversed(world.log) if isinstance(entry.event, kind))


def cause_of(world: World, kind: type[Event]) -> Event:
    """The event that the last of a kind names as its cause."""
    word, seq = last(world, kind).cause.split()
    assert word == "entry"
    return world.log[int(seq) - 1].event


def test_a_job_is_placed_because_it_was_submitted_and_starts_because_it_was_placed() -> None:
    world = World(rules())

    job_id = world.submit(2)

    assert isinstance(cause_of(world, JobAllocated), JobSubmitted)
    started_by = cause_of(world, JobStarted)
    assert isinstance(started_by, JobAllocated)
    assert started_by.job_id == job_id


def test_of_two_jobs_that_are_placed_together_each_starts_because_of_its_own_place() -> None:
    world = World(rules())

    world.submit(1, count=2)

    starts = [entry for entry in world.log if isinstance(entry.event, JobStarted)]
    causes = [world.log[int(entry.cause.split()[1]) - 1].event for entry in starts]
    assert len(starts) == 2
    for start, cause in zip(starts, causes, strict=True):
        assert isinstance(start.event, JobStarted)
        assert isinstance(cause, JobAllocated)
        assert cause.job_id == start.event.job_id


def test_a_job_that_waited_is_placed_because_another_ended() -> None:
    world = World(rules(), nodes=1, gpus=4)
    first = world.submit(4)
    world.submit(4)
    world.runs(first)

    world.exits(first)

    placed_by = cause_of(world, JobAllocated)
    assert isinstance(placed_by, JobEnded)
    assert placed_by.job_id == first
    assert isinstance(cause_of(world, JobEnded), TaskChanged)


def test_a_job_that_waited_is_placed_because_a_node_joined() -> None:
    world = World(rules(), nodes=1, gpus=4)
    world.submit(8)

    world.join("n1")

    assert isinstance(cause_of(world, JobAllocated), NodeJoined)


def test_a_job_stops_because_it_was_cancelled() -> None:
    world = World(rules())
    job_id = world.submit()
    world.runs(job_id)

    world.does(CancelRequested(job_id=job_id, by="ann"))

    assert isinstance(cause_of(world, JobStopping), CancelRequested)


def test_what_follows_from_time_alone_names_its_timer() -> None:
    world = World(rules())
    job_id = world.submit(time_limit_s=60.0)
    world.runs(job_id)

    world.pass_s(61.0)

    assert last(world, JobStopping).cause == "timer time_limit"


def test_a_job_that_comes_to_the_limit_of_its_queue_is_stopped_by_a_timer() -> None:
    world = World(rules("las", limits_gpu_s="10"), nodes=1, gpus=4)
    first, second = world.submit(4), world.submit(4)
    world.runs(first)

    world.pass_s(3.0)

    stopped = last(world, JobStopping)
    assert isinstance(stopped.event, JobStopping)
    assert (stopped.event.job_id, stopped.event.winner, stopped.cause) == (first, second, "timer threshold")


def test_a_log_of_an_older_version_is_shown_as_it_is() -> None:
    world = World(rules())
    world.submit()

    old = Entry(seq=9, at_s=1.0, generation=1, cause="cycle", event=last(world, JobAllocated).event)

    assert show_entry(old).cause == "cycle"
