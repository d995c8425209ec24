"""A job's way through the manager, one behaviour each, with no clock and no processes."""

from collections.abc import Iterator, Sequence

import pytest
from msgspec import structs

from farside.agent.messages import NOT_STARTED, PROLOG, TIME_LIMIT, EndKind
from farside.errors import LocalProtocolError
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain
from farside.scheduler.manager.decider import planner
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    AllocationReleased,
    CancelRequested,
    DrainRequested,
    HoldRequested,
    JobAllocated,
    JobStarted,
    JobStopping,
    NodeLost,
    ReleaseRequested,
    TaskPhase,
    UndrainRequested,
)
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import Ranks
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.view import show_job_in_full
from farside.scheduler.state import Action, Preempt, Start
from tests.live.world import World, rules


def test_a_job_starts_at_once_where_gpus_are_free() -> None:
    world = World(rules())

    job = world.submit(2)

    assert world.phase(job) is Phase.STARTING
    assert [(task.node, task.gpus) for task in world.job(job).tasks] == [("n0", (0, 1))]


def test_a_job_runs_when_all_its_processes_do_and_is_done_when_all_have_ended_well() -> None:
    world = World(rules())
    job = world.submit(8, ranks=Ranks.GPU)
    tasks = world.job(job).tasks

    for task in tasks[:-1]:
        world.task(task, TaskPhase.RUNNING)
    before = world.phase(job)
    world.task(tasks[-1], TaskPhase.RUNNING)
    during = world.phase(job)
    world.exits(job)

    assert (before, during, world.phase(job)) == (Phase.STARTING, Phase.RUNNING, Phase.DONE)
    assert world.job(job).exit_code == 0


def test_a_gang_starts_with_all_its_gpus_or_not_at_all() -> None:
    world = World(rules())
    small = world.submit(1)

    gang = world.submit(8)

    assert world.phase(gang) is Phase.WAITING
    world.exits(small)
    assert world.phase(gang) is Phase.STARTING
    assert sum(len(task.gpus) for task in world.job(gang).tasks) == 8


def test_one_process_that_fails_ends_the_others_and_then_the_job_with_its_exit_code() -> None:
    world = World(rules())
    job = world.submit(8)
    world.runs(job)

    world.task(world.job(job).tasks[0], TaskPhase.EXITED, exit_code=3)

    assert world.phase(job) is Phase.STOPPING
    world.task(world.job(job).tasks[1], TaskPhase.EXITED, signal=15, exit_code=None, cause="task_failed")
    assert (world.phase(job), world.job(job).exit_code) == (Phase.FAILED, 3)
    assert "rank 0 on n0 ended with exit code 3" in world.job(job).reason


def test_a_failed_job_is_started_again_as_often_as_it_asked_for() -> None:
    world = World(rules())
    job = world.submit(1, retries=1)

    world.exits(job, 1)
    again = world.job(job)
    world.exits(job, 1)

    assert (again.phase, again.start) == (Phase.STARTING, 2)
    assert world.phase(job) is Phase.FAILED


def test_a_waiting_job_that_is_cancelled_never_starts() -> None:
    world = World(rules())
    first = world.submit(8)
    job = world.submit(8)

    world.does(CancelRequested(job_id=job, by="ann"))
    world.exits(first)

    assert (world.phase(job), world.job(job).start) == (Phase.CANCELLED, 0)


def test_a_running_job_that_is_cancelled_holds_its_gpus_until_its_processes_have_gone() -> None:
    world = World(rules())
    job = world.submit(8)
    world.runs(job)
    other = world.submit(8)

    world.does(CancelRequested(job_id=job, by="ann"))
    between = world.phase(other)
    world.exits(job, 143, cause="cancelled")

    assert (between, world.phase(job), world.phase(other)) == (Phase.WAITING, Phase.CANCELLED, Phase.STARTING)


def test_a_held_job_waits_until_it_is_released() -> None:
    world = World(rules())
    first = world.submit(8)
    job = world.submit(1)
    world.does(HoldRequested(job_id=job, by="ann"))
    world.exits(first)
    held = world.phase(job)

    world.does(ReleaseRequested(job_id=job, by="ann"))

    assert (held, world.phase(job)) == (Phase.HELD, Phase.STARTING)


def test_a_hold_that_crosses_the_decision_to_place_a_job_wins() -> None:
    world = World(rules("las", limits_gpu_s="10"), nodes=1)
    first = world.submit(4)
    world.runs(first)
    world.pass_s(100.0)
    second = world.submit(4)  # takes the place of the first, which has still to go
    placed = world.phase(second)

    world.does(HoldRequested(job_id=second, by="ann"))

    assert (placed, world.phase(second)) == (Phase.ALLOCATED, Phase.HELD)


def test_a_job_over_its_time_limit_is_stopped() -> None:
    world = World(rules())
    job = world.submit(1, time_limit_s=60.0)
    world.runs(job)

    world.pass_s(59.0)
    before = world.phase(job)
    world.pass_s(1.0)
    world.exits(job, 143, cause="time_limit")

    assert (before, world.phase(job)) == (Phase.RUNNING, Phase.TIMED_OUT)


def test_the_winner_of_a_preemption_starts_when_the_victim_has_gone_and_not_before() -> None:
    world = World(rules("las", limits_gpu_s="10"), nodes=1)
    victim = world.submit(4)
    world.runs(victim)
    world.pass_s(100.0)  # 400 GPU seconds: it has fallen to the second queue

    winner = world.submit(4)

    assert (world.phase(victim), world.phase(winner)) == (Phase.STOPPING, Phase.ALLOCATED)
    world.exits(victim, 143, cause="preempted")
    assert (world.phase(victim), world.phase(winner)) == (Phase.WAITING, Phase.STARTING)
    assert world.job(victim).preemptions == 1
    world.exits(winner)
    assert (world.phase(victim), world.job(victim).start) == (Phase.STARTING, 2)


def test_a_victim_that_had_to_be_killed_is_said_to_have_lost_its_progress() -> None:
    world = World(rules("las", limits_gpu_s="10"), nodes=1)
    victim = world.submit(4, grace_s=5.0)
    world.runs(victim)
    world.pass_s(100.0)
    world.submit(4)

    world.task(world.job(victim).tasks[0], TaskPhase.EXITED, signal=9, cause="preempted")

    assert "did not end within 5 s and was killed" in world.job(victim).reason


def test_a_job_that_had_to_be_killed_at_its_time_limit_is_said_to_be() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(4, time_limit_s=60.0, grace_s=5.0)
    world.runs(job)
    world.pass_s(60.0)

    world.task(world.job(job).tasks[0], TaskPhase.EXITED, signal=9, cause="time_limit")

    assert (world.phase(job), world.job(job).exit_code) == (Phase.TIMED_OUT, 137)
    assert world.job(job).reason == (
        "it has held its GPUs for its time limit of 1 min; it did not end within 5 s and was killed"
    )


@pytest.mark.parametrize(
    ("kind", "words", "phase"),
    [
        (EndKind.TIME_LIMIT, "it ran for a minute", Phase.TIMED_OUT),
        (EndKind.OTHER, f"{TIME_LIMIT} in its own words", Phase.FAILED),
        (None, f"{TIME_LIMIT} of 60 s", Phase.TIMED_OUT),  # an older agent, or an older log
    ],
)
def test_what_an_agent_ended_a_task_for_is_its_kind_and_only_without_one_its_words(
    kind: EndKind | None, words: str, phase: Phase
) -> None:
    world = World(rules(), nodes=1)
    job = world.submit(4, time_limit_s=60.0)

    world.task(world.job(job).tasks[0], TaskPhase.EXITED, exit_code=1, cause=words, kind=kind)

    assert world.phase(job) is phase


def test_words_of_older_agents_have_a_kind() -> None:
    found = [EndKind.of_text(f"{start}x") for start in (NOT_STARTED, PROLOG, TIME_LIMIT, "")]

    assert found == [EndKind.NOT_EXECUTED, EndKind.UNPREPARED, EndKind.TIME_LIMIT, EndKind.OTHER]


def test_a_program_that_cannot_be_executed_is_said_to_be_that_and_not_one_that_ran() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(4)

    cause = f"{NOT_STARTED}train: No such file or directory"
    world.task(world.job(job).tasks[0], TaskPhase.EXITED, exit_code=127, cause=cause)

    assert (world.phase(job), world.job(job).exit_code) == (Phase.FAILED, 127)
    assert world.job(job).reason == f"rank 0 on n0 {cause}"


def test_a_victim_that_was_done_before_the_signal_reached_it_is_done() -> None:
    world = World(rules("las", limits_gpu_s="10"), nodes=1)
    victim = world.submit(4)
    world.runs(victim)
    world.pass_s(100.0)
    world.submit(4)

    world.exits(victim, 0)

    assert world.phase(victim) is Phase.DONE


def test_a_job_on_a_lost_node_starts_elsewhere_and_its_old_gpus_stay_taken() -> None:
    world = World(rules())
    job = world.submit(4)
    world.runs(job)
    old = world.job(job).tasks[0]

    world.does(NodeLost(node="n0", reason="not heard of for 60 s"))

    assert (world.job(job).tasks[0].node, world.job(job).start) == ("n1", 2)
    world.join("n0")  # the same boot: what ran there may run on
    other = world.submit(4)
    assert world.phase(other) is Phase.ALLOCATED
    world.task(old, TaskPhase.EXITED, exit_code=143, cause="an old start")
    assert world.phase(other) is Phase.STARTING


def test_a_node_that_booted_has_nothing_of_before() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(4)
    world.runs(job)

    world.join("n0", boot_id="boot-2")

    assert (world.phase(job), world.job(job).start) == (Phase.STARTING, 2)


def test_nothing_starts_on_a_node_that_drains_and_what_runs_there_runs_on() -> None:
    world = World(rules(), nodes=1)
    first = world.submit(2)
    world.runs(first)

    world.does(DrainRequested(node="n0", reason="a new fan", by="root"))
    second = world.submit(2)
    drained = world.phase(first), world.phase(second), world.state.nodes["n0"].state
    world.does(UndrainRequested(node="n0", by="root"))

    assert drained == (Phase.RUNNING, Phase.WAITING, "draining")
    assert world.phase(second) is Phase.STARTING


def test_a_job_whose_node_could_not_be_prepared_starts_elsewhere_and_that_is_no_failure_of_its_own() -> None:
    world = World(rules())
    job = world.submit(1)
    world.does(DrainRequested(node="n0", reason="prolog: no scratch", by="node n0"))

    world.task(world.job(job).tasks[0], TaskPhase.EXITED, cause="prolog: no scratch")

    assert (world.phase(job), world.job(job).nodes, world.job(job).failures) == (Phase.STARTING, ("n1",), 0)
    assert any("node n0 could not be prepared: prolog: no scratch" in str(entry.event) for entry in world.log)


def test_a_job_waits_for_those_that_it_comes_after() -> None:
    world = World(rules())
    first = world.submit(1)
    second = world.submit(1, after=(first,))
    before = world.phase(second)

    world.exits(first)

    assert (before, world.phase(second)) == (Phase.WAITING, Phase.STARTING)


def test_a_job_whose_predecessor_failed_is_cancelled_with_the_reason() -> None:
    world = World(rules())
    first = world.submit(1)
    second = world.submit(1, after=(first,))

    world.exits(first, 1)

    assert world.phase(second) is Phase.CANCELLED
    assert world.job(second).reason == f"job {first}, which it waits for, ended as failed"


def test_an_array_is_many_jobs() -> None:
    world = World(rules())

    world.submit(1, count=10)

    phases = [world.phase(f"1_{at}") for at in range(10)]
    assert phases == [Phase.STARTING] * 8 + [Phase.WAITING] * 2


def test_jobs_of_two_managers_meet_at_different_ports_unless_they_were_submitted_at_the_same_time() -> None:
    ports = set[int]()
    for later_s in (0.0, 1.0, 500.0):
        world = World(rules())
        world.now_s += later_s
        ports.add(world.job(world.submit(1)).master_port)

    assert len(ports) == 3


def test_two_jobs_that_start_together_meet_at_different_ports() -> None:
    world = World(rules())

    world.submit(1, count=8)

    assert len({job.master_port for job in world.state.jobs.values()}) == 8


def test_a_report_of_a_process_that_nobody_started_changes_nothing() -> None:
    world = World(rules())
    job = world.submit(1)

    world.task(structs.replace(world.job(job).tasks[0], start=7), TaskPhase.EXITED, exit_code=0)

    assert world.phase(job) is Phase.STARTING


def test_a_late_report_does_not_bring_a_process_back() -> None:
    world = World(rules())
    job = world.submit(1)
    task = world.job(job).tasks[0]
    world.task(task, TaskPhase.EXITED, exit_code=0)

    world.task(task, TaskPhase.RUNNING)

    assert world.phase(job) is Phase.DONE


def test_a_brain_that_starts_again_decides_nothing_twice() -> None:
    world = World(rules("las", limits_gpu_s="10"))
    for _ in range(6):
        world.submit(4)
    world.runs("1")
    before = len([entry for entry in world.log if isinstance(entry.event, JobStarted)])

    world.lead()

    assert len([entry for entry in world.log if isinstance(entry.event, JobStarted)]) == before
    assert list(violations(world.log)) == []


def test_a_brain_that_starts_again_gives_way_as_the_old_one_would() -> None:
    world = World(rules("las", limits_gpu_s="1000"), nodes=1)
    old = world.submit(4)
    world.runs(old)
    world.pass_s(200.0)
    world.lead()
    young = world.submit(4)
    early = world.phase(young)

    world.pass_s(51.0)  # 251 s of 4 GPUs: past its limit

    assert early is Phase.WAITING
    assert world.phase(young) is Phase.ALLOCATED
    assert isinstance(world.log[-2].event, JobStopping)


def test_a_decision_that_does_not_fit_the_log_is_an_error() -> None:
    world = World(rules())
    world.submit(1)
    started = next(entry for entry in world.log if isinstance(entry.event, JobStarted))
    world.tell(started.event)
    state = LiveState()
    for entry in world.log[:-1]:
        apply(state, entry)

    with pytest.raises(LocalProtocolError, match="does not fit: job 1 is starting"):
        apply(state, world.log[-1])


@pytest.mark.parametrize("retries", [0, 2])
def test_a_job_that_failed_for_good_is_shown_with_that_failure_too(retries: int) -> None:
    world = World(rules())
    job = world.submit(1, retries=retries)
    for _ in range(retries + 1):
        world.exits(job, 1)

    assert world.phase(job) is Phase.FAILED
    assert show_job_in_full(world.job(job), world.now_s).failures == retries + 1


def test_a_job_that_is_given_a_place_and_loses_it_in_the_same_cycle_waits_and_is_never_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, cycles = World(rules(), nodes=1), 0

    def giving_and_taking(domain: Domain, now_s: float, lenders: Sequence[Domain]) -> Iterator[Action]:
        nonlocal cycles
        for action in run_cycle(domain, now_s, lenders):
            yield action
            if isinstance(action, Start) and not cycles:
                cycles += 1
                domain.lose(action.row, now_s)
                yield Preempt(row=action.row, winner=-1, reason="another goes first")

    monkeypatch.setattr(planner, "run_cycle", giving_and_taking)

    job = world.submit(4)

    events = [entry.event for entry in world.log if getattr(entry.event, "job_id", "") == job]
    assert [type(event) for event in events] == [JobAllocated, AllocationReleased, JobAllocated, JobStarted]
    assert world.job(job).phase is Phase.STARTING
