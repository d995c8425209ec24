"""What Slurm is told: the cycle's answer as priorities, holds, releases and requeues."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.slurm.action import Hold, Release, Requeue, SetNice, SetPriority
from farside.scheduler.slurm.decide import Decision, decide, failed, with_mark, without_mark
from farside.scheduler.slurm.job_memory import Memory, Past
from farside.scheduler.slurm.snapshot import HELD_MARK, PRIORITY_HIGH, PRIORITY_LOW, JobPhase, SlurmJob, Snapshot
from tests.slurm.made import NOW_S, TRAITS, groups, node, over, running, snapshot, waiting, ways

FULL = (running(1, ("gn1", 4)), running(2, ("gn2", 4)))
SRSF: dict[str, Any] = {"policy": "srsf"}
# Who has had less than 1000 GPU seconds goes before who has had more.
LAS: dict[str, Any] = {"policy": "las", "settings": {"limits_gpu_s": "1000"}}


def decided(seen: Snapshot, memory: Memory | None = None, **told: Any) -> Decision:
    return decide(seen, memory or Memory(), TRAITS, ways(seen, **told))


def obeyed(seen: Snapshot, decision: Decision) -> Snapshot:
    """What Slurm shows when it has done all of it."""
    given = {
        one.job_id: 0 if isinstance(one, Hold) else one.priority
        for one in decision.actions
        if not isinstance(one, Requeue | SetNice)
    }
    return replace(
        seen, jobs=tuple(replace(job, priority=given.get(job.job_id, job.priority)) for job in seen.jobs)
    )  # fmt: skip


def queue_at_slurm(seen: Snapshot) -> list[str]:
    jobs = [job for job in seen.jobs if job.phase is JobPhase.WAITING]
    return [job.job_id for job in sorted(jobs, key=lambda job: -job.priority)]


def test_waiting_jobs_get_priorities_in_the_policys_order() -> None:
    seen = snapshot(*FULL, waiting(3, limit_s=900), waiting(4, limit_s=300), waiting(5, limit_s=600))

    decision = decided(seen, **SRSF)

    assert decision.queue == ("4", "5", "3")
    assert queue_at_slurm(obeyed(seen, decision)) == ["4", "5", "3"]
    assert all(isinstance(action, SetPriority) for action in decision.actions)


def test_what_is_in_order_is_told_nothing() -> None:
    seen = snapshot(*FULL, waiting(3, limit_s=900), waiting(4, limit_s=300))

    assert decided(obeyed(seen, decided(seen, **SRSF)), **SRSF).actions == ()


def test_whom_the_cycle_starts_goes_before_whom_it_does_not() -> None:
    seen = snapshot(running(1, ("gn1", 4)), running(2, ("gn2", 3)), waiting(3, 4), waiting(4, 1))

    decision = decided(seen, policy="best-effort")

    assert [one.job_id for one in decision.starting] == ["4"]
    assert decision.queue == ("4", "3")


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("of another partition", {"partitions": ("other",)}),
        ("Slurm may put it into another one", {"partitions": ("gpu", "other")}),
        ("nobody can tell its partition", {"partitions": ()}),
        ("without GPUs", {"gpus": 0}),
        ("held by its user", {"priority": 0, "reason": "JobHeldUser"}),
        ("held by somebody else", {"priority": 0, "reason": "JobHeldAdmin"}),
        ("waits for another job", {"reason": "Dependency"}),
        ("begins later", {"reason": "BeginTime"}),
        ("at a limit of its account", {"reason": "AssocGrpGRES"}),
        ("larger than the cluster", {"gpus": 9}),
    ],
)
def test_a_job_is_left_alone(why: str, told: dict[str, Any]) -> None:
    seen = snapshot(*FULL, waiting(3, **{"gpus": 1, **told}))

    for is_gating in (False, True):
        decision = decided(seen, may_preempt=True, is_gating=is_gating, **LAS)
        assert decision.actions == (), why


# ---------------------------------------------------------------- preemption


def test_a_job_that_has_had_less_service_has_another_requeued() -> None:
    seen = snapshot(running(1, ("gn1", 4), since_s=900), running(2, ("gn2", 4), since_s=100), waiting(3, 4))

    decision = decided(seen, may_preempt=True, **LAS)

    assert decision.actions[0] == SetPriority(
        job_id="3", partition="gpu", priority=2_500_000_000, reason="first of 1 job by las"
    )
    assert [(one.job_id, one.winner) for one in decision.actions if isinstance(one, Requeue)] == [("1", "3")]


@pytest.mark.parametrize(
    ("why", "told", "ways_told"),
    [
        ("it is not allowed", {}, {"may_preempt": False}),
        ("Slurm may not requeue it", {"is_requeueable": False}, {"may_preempt": True}),
        ("suspended jobs keep their GPUs", {"phase": JobPhase.STUCK}, {"may_preempt": True}),
        ("it has only just started", {}, {"may_preempt": True, "min_run_s": 5000.0}),
    ],
)
def test_a_running_job_is_not_requeued(why: str, told: dict[str, Any], ways_told: dict[str, Any]) -> None:
    seen = snapshot(*(running(at, (f"gn{at}", 4), since_s=900, **told) for at in (1, 2)), waiting(3, 4))

    decision = decided(seen, **ways_told, **LAS)

    assert not [one for one in decision.actions if isinstance(one, Requeue)], why


def test_no_job_of_another_partition_on_the_same_nodes_is_requeued() -> None:
    foreign = running(1, ("gn1", 4), partitions=("other",))
    seen = snapshot(foreign, running(2, ("gn2", 4), partitions=("other",)), waiting(3, 4))

    decision = decided(seen, may_preempt=True, **LAS)

    assert not [one for one in decision.actions if isinstance(one, Requeue)]
    assert decision.starting == ()


def test_a_job_that_names_its_nodes_has_nobody_requeued() -> None:
    seen = snapshot(*FULL, waiting(3, 4, is_bound=True))

    assert not [one for one in decided(seen, may_preempt=True, **LAS).actions if isinstance(one, Requeue)]


def test_nobody_is_requeued_twice_for_a_job_that_slurm_does_not_start() -> None:
    seen = snapshot(*FULL, waiting(3, 4))
    first = decided(seen, may_preempt=True, **LAS)
    later = replace(obeyed(seen, first), at_s=NOW_S + 5)

    again = decided(later, first.memory, may_preempt=True, **LAS)

    assert [one for one in first.actions if isinstance(one, Requeue)]
    assert not [one for one in again.actions if isinstance(one, Requeue)]


def test_a_refused_requeue_may_be_tried_again() -> None:
    seen = snapshot(*FULL, waiting(3, 4))
    first = decided(seen, may_preempt=True, **LAS)
    refused = next(one for one in first.actions if isinstance(one, Requeue))

    again = decided(replace(seen, at_s=NOW_S + 5), failed(first.memory, refused), may_preempt=True, **LAS)

    assert refused in again.actions


def test_what_was_served_before_a_requeue_counts() -> None:
    seen = snapshot(running(1, ("gn1", 4), since_s=900), running(2, ("gn2", 4), since_s=900), waiting(3, 4))
    memory = decided(seen, **LAS).memory
    requeued = replace(seen.jobs[0], phase=JobPhase.WAITING, held=(), restarts=1, reason="None", start_s=math.nan)
    seen = snapshot(seen.jobs[1], requeued, waiting(3, 4, submit_s=NOW_S), at_s=NOW_S + 5, nodes=[
        node("gn1", "DOWN"), node("gn2", used=4)
    ])  # fmt: skip

    assert decided(seen, memory, **LAS).queue == ("3", "1")


@pytest.mark.parametrize(("earlier_s", "first"), [(0.0, "1"), (2.4e-7, "1"), (3.0, "2")])
def test_jobs_that_fell_since_the_last_turn_stand_as_they_fell_and_by_submission_if_together(
    earlier_s: float, first: str
) -> None:
    seen = snapshot(running(1, ("gn1", 4), since_s=10_000), running(2, ("gn2", 4), since_s=10_000))
    falling = Past(is_running=True, since_s=NOW_S - 10_000, change_at_s=NOW_S)
    second = replace(falling, place=0.0, change_at_s=NOW_S - earlier_s)
    memory = Memory(at_s=NOW_S - 5, jobs={"1": replace(falling, place=1.0), "2": second})

    places = {job_id: past.place for job_id, past in decided(seen, memory, **LAS).memory.jobs.items()}

    assert min(places, key=places.__getitem__) == first


def test_a_job_that_has_starved_goes_back_to_the_first_queue() -> None:
    seen = snapshot(running(1, ("gn1", 4)), running(2, ("gn2", 4)), waiting(3, 4))
    past = Past(executed_s=900.0, since_s=NOW_S - 2000, first_start_s=NOW_S - 5000, change_at_s=NOW_S - 1100)
    knob = {"policy": "las", "settings": {"limits_gpu_s": "1000", "promote_knob": "1"}}

    promoted = decided(seen, Memory(at_s=NOW_S - 5, jobs={"3": past}), **knob).memory.jobs["3"]

    assert (promoted.executed_s, promoted.waited_s, promoted.since_s) == (0.0, 0.0, NOW_S)
    assert promoted.held_before_s == 900.0
    assert promoted.change_at_s == math.inf


# ---------------------------------------------------------------- the gate


def test_a_gate_holds_who_has_no_room_and_lets_the_others_go() -> None:
    seen = snapshot(running(1, ("gn1", 4)), waiting(2, 4), waiting(3, 4, admin_comment="of a colleague"))

    decision = decided(seen, is_gating=True)

    assert decision.actions == (
        Hold(job_id="3", partition="gpu", comment=f"of a colleague {HELD_MARK}", reason="not its turn"),
        SetPriority(job_id="2", partition="gpu", priority=2_500_000_000, reason="first of 1 job by fifo"),
    )


def test_a_held_job_is_released_when_its_turn_comes_or_the_gate_is_gone() -> None:
    held = waiting(2, 4, priority=0, reason="JobHeldAdmin", admin_comment=f"note {HELD_MARK}")

    for is_gating in (True, False):
        decision = decided(snapshot(held), is_gating=is_gating)
        assert [(type(one), one.comment) for one in decision.actions if isinstance(one, Release)] == [(Release, "note")]


def test_a_mark_that_a_broken_release_left_is_taken_off() -> None:
    decision = decided(snapshot(waiting(2, 4, priority=2_500_000_000, admin_comment=HELD_MARK)))

    assert [(type(one), one.comment) for one in decision.actions if isinstance(one, Release)] == [(Release, "")]


def test_arrays_and_jobs_that_name_their_nodes_are_never_held() -> None:
    seen = snapshot(*FULL, waiting(3, 4, is_array=True), waiting(4, 4, is_bound=True))

    assert not [one for one in decided(seen, is_gating=True).actions if isinstance(one, Hold)]


def test_the_mark_leaves_the_rest_of_a_comment_alone() -> None:
    assert with_mark("") == HELD_MARK
    assert with_mark(HELD_MARK) == HELD_MARK
    assert without_mark(with_mark("a note")) == "a note"


# ---------------------------------------------------------------- bounds, nodes, partitions


def test_no_more_is_told_in_a_turn_than_allowed_and_the_rest_later() -> None:
    seen = snapshot(*FULL, *(waiting(at, limit_s=1000 - at) for at in range(3, 40)))
    decision = decided(seen, most_actions=10, **SRSF)
    assert (len(decision.actions), decision.left) == (10, 27)

    for _ in range(3):
        seen = obeyed(seen, decision)
        decision = decided(seen, decision.memory, most_actions=10, **SRSF)

    seen = obeyed(seen, decision)
    assert queue_at_slurm(seen) == [str(at) for at in reversed(range(3, 40))]


def test_nobody_is_requeued_for_a_job_that_has_not_its_place_yet() -> None:
    seen = snapshot(*FULL, waiting(3, 4), waiting(4, 4))

    decision = decided(seen, may_preempt=True, most_actions=1, **LAS)

    assert not [one for one in decision.actions if isinstance(one, Requeue)]


def test_a_node_that_is_drained_takes_nobody_and_one_that_sleeps_does() -> None:
    drained = snapshot(waiting(1, 4), nodes=[node("gn1", "IDLE", "DRAIN"), node("gn2", "DOWN")])
    asleep = snapshot(waiting(1, 4), nodes=[node("gn1", "IDLE", "POWERED_DOWN"), node("gn2", "DOWN")])

    assert decided(drained).starting == ()
    assert [one.job_id for one in decided(asleep).starting] == ["1"]


def test_a_job_on_a_drained_node_stays_where_it_is() -> None:
    seen = snapshot(
        running(1, ("gn1", 4)), waiting(2, 4), nodes=[node("gn1", "MIXED", "DRAIN", used=4), node("gn2", "DOWN")]
    )

    assert decided(seen, may_preempt=True, **LAS).starting == ()


def test_partitions_of_the_same_nodes_compete_and_others_do_not() -> None:
    partitions = {"a": ("gn1",), "b": ("gn1",), "c": ("gn2",)}
    seen = snapshot(
        waiting(1, 4, partitions=("a",)), waiting(2, 4, partitions=("b",)), waiting(3, 4, partitions=("c",)),
        partitions=partitions,
    )  # fmt: skip

    assert [one.job_id for one in decided(seen, partitions=("a", "b", "c")).starting] == ["1", "3"]


def test_a_partition_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no partition 'gpus'; did you mean 'gpu'"):
        groups(snapshot(), "gpus")


def test_partitions_that_share_some_of_their_nodes_are_refused() -> None:
    seen = snapshot(partitions={"a": ("gn1", "gn2"), "b": ("gn2",)})

    with pytest.raises(ConfigError, match="'b' and 'a' share gn2, but not all"):
        groups(seen, "a", "b")


# ---------------------------------------------------------------- whatever comes

_jobs = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5000), st.booleans(), st.booleans()), max_size=14)


def _world(told: list[tuple[int, int, bool, bool]]) -> Snapshot:
    """Jobs of some sizes; those that shall run do as long as there is room."""
    free = {"gn1": 4, "gn2": 4}
    jobs: list[SlurmJob] = []
    for at, (gpus, seconds, is_running, is_ours) in enumerate(told, 1):
        partitions = ("gpu",) if is_ours else ("other",)
        name = next((name for name, left in free.items() if left >= gpus), "")
        if is_running and name:
            free[name] -= gpus
            jobs.append(running(at, (name, gpus), since_s=float(seconds), partitions=partitions))
        else:
            jobs.append(waiting(at, gpus, limit_s=float(seconds), partitions=partitions))
    return snapshot(*jobs)


@given(_jobs, st.sampled_from(["fifo", "srsf", "las", "best-effort"]), st.booleans(), st.booleans())
def test_only_our_jobs_are_touched_and_never_without_room(
    told: list[tuple[int, int, bool, bool]], policy: str, may_preempt: bool, is_gating: bool
) -> None:
    seen = _world(told)
    by_id = {job.job_id: job for job in seen.jobs}

    decision = decided(seen, policy=policy, may_preempt=may_preempt, is_gating=is_gating)

    freed = [one for one in decision.actions if isinstance(one, Requeue)]
    assert all(by_id[one.job_id].partitions == ("gpu",) for one in decision.actions)
    assert all(by_id[one.job_id].phase is JobPhase.RUNNING for one in freed)
    assert all(
        PRIORITY_LOW < one.priority < PRIORITY_HIGH for one in decision.actions if isinstance(one, SetPriority)
    )  # fmt: skip
    held = sum(gpus for job in seen.jobs for _, gpus in job.held)
    gone = sum(by_id[one.job_id].gpus for one in freed)
    assert sum(one.gpus for one in decision.starting) <= 8 - held + gone


@given(_jobs, st.sampled_from(["fifo", "srsf", "las"]), st.integers())
def test_the_order_in_which_slurm_names_jobs_does_not_matter(
    told: list[tuple[int, int, bool, bool]], policy: str, seed: int
) -> None:
    seen = _world(told)
    shuffled = list(seen.jobs)
    random.Random(seed).shuffle(shuffled)

    one, other = decided(seen, policy=policy), decided(replace(seen, jobs=tuple(shuffled)), policy=policy)

    assert (one.actions, one.queue) == (other.actions, other.queue)


def test_over_is_over() -> None:
    assert decided(snapshot(over(running(1, ("gn1", 4)), NOW_S)), **LAS).queue == ()
