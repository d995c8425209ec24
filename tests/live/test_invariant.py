"""The checker of logs: it must find what is planted, and nothing in a sound log."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    CancelRequested,
    DrainRequested,
    Entry,
    Event,
    JobAllocated,
    JobEnded,
    JobRequeued,
    JobStarted,
    JobStopping,
    LimitExtended,
    NodeAllocation,
    NodeJoined,
    NodeLost,
    NodesReserved,
    ReleaseRequested,
    SchedulerTookLead,
    ServiceChanged,
    StopCause,
    TaskAllocation,
    TaskChanged,
    TaskPhase,
    UndrainRequested,
)
from farside.scheduler.manager.model.record import GONE
from tests.live.facts import joined
from tests.live.test_versions import RECORDED
from tests.live.test_versions import entries as recorded_log
from tests.live.world import World, rules


def sound_log() -> list[Entry]:
    world = World(rules())
    for _ in range(4):
        world.submit(4)
    for job in ("1", "2", "3", "4"):
        world.runs(job)
        world.exits(job)
    return world.log


def eventful_log() -> list[Entry]:
    """A log with several scheduler processes, a node lost under a job, and jobs that are preempted and cancelled."""
    world = World(rules("srtf"), nodes=2)
    first = world.submit(8, time_limit_s=9000.0)
    world.runs(first)
    world.lead()
    world.pass_s(100.0)
    second = world.submit(8, time_limit_s=10.0)
    world.exits(first, 0, "preempted")
    world.runs(second)
    world.exits(second)
    world.runs(first)
    world.does(NodeLost(node="n1", reason="silent"))
    for task in world.job(first).tasks[:1]:
        world.task(task, TaskPhase.EXITED, exit_code=143, cause="node_lost")
    world.join("n1", boot_id="boot-2")
    world.runs(first)
    world.does(CancelRequested(job_id=first, by="ann"))
    world.exits(first, 143, "cancelled")
    third = world.submit(4, time_limit_s=10.0)
    world.runs(third)
    world.exits(third)
    return world.log


LOGS = {"made": sound_log(), "eventful": eventful_log(), **{before.name: recorded_log(before) for before in RECORDED}}


def carries_nothing(event: Event) -> bool:
    """Whether a log without it might be that of a cluster where it did not happen."""
    is_step = isinstance(event, TaskChanged) and event.phase not in GONE
    is_end_of_services = isinstance(event, JobStopping) and event.cause is StopCause.WORK_DONE
    asked = ReleaseRequested | DrainRequested | UndrainRequested | NodesReserved | LimitExtended | ServiceChanged
    return is_step or is_end_of_services or isinstance(event, asked)


def planted(kind: type[Event], change: Event) -> list[str]:
    """What is found where the first event of a kind is another."""
    log = sound_log()
    at = next(at for at, entry in enumerate(log) if isinstance(entry.event, kind))
    log[at] = replace(log[at], event=change)
    return [what.split(": ", 1)[1] for what in violations(log)]


def renumbered(entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entry, seq=at + 1) for at, entry in enumerate(entries)]


def test_a_sound_log_has_no_violations() -> None:
    assert list(violations(sound_log(), is_complete=True)) == []


@pytest.mark.parametrize("name", LOGS)
def test_each_entry_that_is_missing_is_noticed_by_the_gap_that_it_leaves(name: str) -> None:
    log = LOGS[name]

    assert list(violations(log, is_complete=True)) == []
    for at in range(len(log)):
        assert list(violations([*log[:at], *log[at + 1 :]], is_complete=True)), log[at]


@pytest.mark.parametrize("name", LOGS)
def test_each_entry_that_is_missing_without_a_gap_is_noticed_by_what_follows_from_it(name: str) -> None:
    log = LOGS[name]

    for at, entry in enumerate(log):
        found = list(violations(renumbered([*log[:at], *log[at + 1 :]]), is_complete=True))
        assert bool(found) is not carries_nothing(entry.event), entry


def test_the_eventful_log_has_what_it_is_made_for() -> None:
    kinds = {type(entry.event) for entry in LOGS["eventful"]}

    assert kinds >= {JobRequeued, JobStopping, NodeLost, CancelRequested, SchedulerTookLead, JobEnded}


def test_a_log_that_begins_in_the_middle_is_told() -> None:
    assert next(iter(violations(sound_log()[5:]))).endswith("entry 6: does not follow entry 0")


def test_a_process_that_nobody_decided_on_is_found() -> None:
    found = planted(
        TaskChanged, change=TaskChanged(node="n0", job_id="1", rank=1, start=1, phase=TaskPhase.RUNNING)
    )  # fmt: skip

    assert found[0] == "node n0 reports a process of job 1, start 1, rank 1, that was not started there"


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ((NodeAllocation(node="n1", gpus=4),), "job 1 was started on other GPUs than it was given"),
        ((NodeAllocation(node="n0", gpus=3),), "job 1 was started on other GPUs than it was given"),
    ],
)
def test_a_start_that_is_not_where_its_place_was_is_found(places: tuple[NodeAllocation, ...], says: str) -> None:
    assert says in planted(JobAllocated, change=JobAllocated(job_id="1", places=places, reason=""))


def test_a_start_on_a_node_that_never_joined_is_found() -> None:
    change = joined("other")

    assert "job 1 was started on node n0, which never joined" in planted(NodeJoined, change=change)


def test_an_end_with_a_process_that_is_not_gone_is_found() -> None:
    log = sound_log()
    at = next(
        at for at, entry in enumerate(log)
        if isinstance(entry.event, TaskChanged) and entry.event.phase is TaskPhase.EXITED
    )  # fmt: skip

    found = list(violations(renumbered([*log[:at], *log[at + 1 :]])))

    assert found[0].endswith("job 1 was taken from its nodes, and its process 0 on n0 is not gone")


def test_an_end_that_nobody_asked_for_is_found() -> None:
    log = [entry for entry in eventful_log() if not isinstance(entry.event, CancelRequested)]

    found = list(violations(renumbered(log)))

    assert any(what.endswith("job 1 is cancelled, and nobody asked for it") for what in found)


def test_a_brain_that_never_took_the_lead_is_found() -> None:
    second = SchedulerTookLead(generation=2, holder="test", counts_lent=True)
    log = [entry for entry in eventful_log() if entry.event != second]

    assert any("was decided by generation 2 when 1 led" in what for what in violations(renumbered(log)))


def test_a_planted_double_booking_is_found() -> None:
    log = sound_log()
    starts = [at for at, entry in enumerate(log) if isinstance(entry.event, JobStarted)]
    second = log[starts[1]]
    assert isinstance(second.event, JobStarted)
    stolen = replace(second.event, tasks=(TaskAllocation(rank=0, node="n0", gpus=(3,)),))  # the first job has it
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
