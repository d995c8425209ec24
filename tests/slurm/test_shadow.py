"""What Slurm did beside what would have been done, and the expected gain."""

from dataclasses import replace

import pytest

from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.slurm.decide import decide
from farside.scheduler.slurm.job_memory import Memory, recall
from farside.scheduler.slurm.shadow import (
    LEAST_JOBS,
    Gain,
    compared,
    ended_between,
    expected_gain,
    kept,
    told_gain,
)
from farside.scheduler.slurm.shadow_job import Ended
from tests.slurm.made import NOW_S, TRAITS, groups, over, running, snapshot, waiting, ways

SRSF = Rules(order=make_order("srsf", {}), placement=make_placement("consolidate", {}))


def ended(job_id: int, submit_s: float, held_s: float, *, start_s: float = 0.0, gpus: int = 4) -> Ended:
    return Ended(
        job_id=str(job_id), user="ann", partition="gpu", gpus=gpus, submit_s=submit_s, start_s=start_s or submit_s,
        end_s=(start_s or submit_s) + held_s, held_s=held_s, limit_s=held_s, is_requeueable=True,
    )  # fmt: skip


def test_what_slurm_started_is_said_beside_the_decision() -> None:
    seen = snapshot(running(1, ("gn1", 4)), waiting(2, 4, limit_s=60), waiting(3, 4, limit_s=30))
    decision = decide(seen, Memory(), TRAITS, ways(seen, policy="srsf"))
    later = snapshot(
        *(running(at, (name, 4), since_s=-1) for at, name in ((1, "gn1"), (2, "gn2"))), waiting(3, 4), at_s=NOW_S + 5
    )

    found = compared(decision.memory, decision, later)

    assert [(one.job_id, one.slurm, one.farside, one.reason) for one in found] == [
        ("2", "started it", "kept it waiting", "place 2 of 2")
    ]


def test_where_both_agree_it_says_so() -> None:
    seen = snapshot(running(1, ("gn1", 4)), waiting(2, 4))
    decision = decide(seen, Memory(), TRAITS, ways(seen))
    later = snapshot(running(1, ("gn1", 4)), running(2, ("gn2", 4), since_s=-1), at_s=NOW_S + 5)

    assert [(one.job_id, one.farside) for one in compared(decision.memory, decision, later)] == [("2", "too")]


def test_a_job_that_ended_is_kept_with_all_of_its_stints_also_those_before_it_was_promoted() -> None:
    job = running(1, ("gn1", 4), since_s=100)
    seen = snapshot(job)
    memory = decide(seen, Memory(), TRAITS, ways(seen)).memory
    past = replace(memory.jobs["1"], executed_s=50.0, held_before_s=30.0, first_start_s=NOW_S - 900)
    memory = replace(memory, jobs={"1": past})

    found = ended_between(memory, snapshot(over(job, NOW_S + 20), at_s=NOW_S + 25), groups(seen))

    assert [(one.held_s, one.start_s, one.end_s) for one in found] == [(30 + 50 + 120, NOW_S - 900, NOW_S + 20)]


def test_an_end_that_slurm_rounds_down_to_before_the_last_turn_counts() -> None:
    job = running(1, ("gn1", 4), since_s=100)
    seen = snapshot(job, at_s=NOW_S + 0.5)
    memory = decide(seen, Memory(), TRAITS, ways(seen)).memory

    found = ended_between(memory, snapshot(over(job, NOW_S), at_s=NOW_S + 1), groups(seen))

    assert [one.held_s for one in found] == [100]


def test_jobs_that_were_over_or_are_not_ours_are_not_kept() -> None:
    seen = snapshot(over(running(1, ("gn1", 4)), NOW_S - 5), over(running(2, ("gn1", 1), partitions=("other",)), NOW_S))
    memory = Memory(at_s=NOW_S - 1)

    assert ended_between(memory, seen, groups(seen)) == ()
    assert ended_between(Memory(), seen, groups(seen)) == ()


def test_short_jobs_behind_long_ones_gain_by_shortest_first() -> None:
    seen = snapshot()
    long = [ended(at, NOW_S + at, 1000.0, start_s=NOW_S + 10 + 1000 * (at // 2)) for at in range(6)]
    short = [ended(at, NOW_S + at, 10.0, start_s=NOW_S + 3100) for at in range(6, 12)]

    gain = expected_gain([*long, *short], groups(seen), seen, SRSF, may_preempt=False, requeue_cost_s=0.0)

    assert gain is not None
    assert gain.jobs == 12
    assert gain.policy.wait_s < gain.control.wait_s * 0.6
    assert gain.control.wait_s == pytest.approx(gain.slurm.wait_s, rel=0.1)
    assert "of 12 jobs: slurm " in told_gain(gain)
    assert "srsf (simulated)" in told_gain(gain)


def test_no_gain_is_promised_by_run_times_that_nobody_knew() -> None:
    seen = snapshot()
    long = [ended(at, NOW_S + at, 1000.0) for at in range(6)]
    short = [ended(at, NOW_S + at, 10.0) for at in range(6, 12)]
    alike = [replace(one, limit_s=2000.0) for one in (*long, *short)]

    gain = expected_gain(alike, groups(seen), seen, SRSF, may_preempt=False, requeue_cost_s=0.0)

    assert gain is not None
    assert gain.policy.wait_s == gain.control.wait_s


def test_without_the_gate_jobs_pass_the_first_in_line_as_slurm_starts_them() -> None:
    """Strict FIFO was promised, which `run` brings with the gate alone."""
    seen = snapshot()
    jobs = [ended(1, NOW_S, 1000.0, gpus=1), ended(2, NOW_S + 1, 10.0, gpus=8)]
    jobs += [ended(at, NOW_S + at, 10.0, gpus=1) for at in range(3, 13)]
    strict = replace(SRSF, order=make_order("fifo", {}))

    def gain(*, is_gating: bool) -> Gain:
        found = expected_gain(
            jobs, groups(seen), seen, strict, may_preempt=False, requeue_cost_s=0.0, is_gating=is_gating
        )
        assert found is not None
        return found

    assert gain(is_gating=False).policy.wait_s == gain(is_gating=False).control.wait_s
    assert gain(is_gating=True).policy.wait_s > 10 * gain(is_gating=True).control.wait_s
    assert gain(is_gating=False).policy.name == "fifo"


def test_a_job_that_waited_for_another_is_promised_no_start_before_that() -> None:
    seen = snapshot()
    jobs = [ended(at, NOW_S, 10.0, start_s=NOW_S + 500, gpus=1) for at in range(12)]
    after = [replace(one, eligible_s=NOW_S + 500.0) for one in jobs]

    gain = expected_gain(after, groups(seen), seen, SRSF, may_preempt=False, requeue_cost_s=0.0)

    assert gain is not None
    assert gain.policy.wait_s >= 500.0


def test_when_a_job_could_have_started_first_is_kept_over_holds_and_requeues() -> None:
    comes = waiting(1, 1, submit_s=NOW_S - 100, eligible_s=float("nan"), reason="Dependency")
    ready = replace(comes, eligible_s=NOW_S - 60, reason="Priority")
    again = replace(
        running(1, ("gn1", 1), since_s=10.0, submit_s=NOW_S - 100, eligible_s=NOW_S - 20), restarts=1
    )  # fmt: skip
    memory = Memory()
    for at_s, job in ((NOW_S - 90, comes), (NOW_S - 55, ready), (NOW_S, again)):
        memory = recall(memory, [job], at_s)

    (one,) = ended_between(memory, snapshot(over(again, NOW_S + 5), at_s=NOW_S + 6), groups(snapshot()))

    assert one.ready_s == NOW_S - 60


@pytest.mark.parametrize(("restarts", "ready_s"), [(0, NOW_S - 60), (1, NOW_S - 100)])
def test_of_a_job_that_nobody_saw_before_slurm_tells_when_it_could_start_unless_it_was_requeued(
    restarts: int, ready_s: float
) -> None:
    job = running(1, ("gn1", 1), since_s=10.0, submit_s=NOW_S - 100, eligible_s=NOW_S - 60, restarts=restarts)
    memory = recall(Memory(), [job], NOW_S)

    (one,) = ended_between(memory, snapshot(over(job, NOW_S + 5), at_s=NOW_S + 6), groups(snapshot()))

    assert one.ready_s == ready_s


def test_a_requeue_costs_what_it_is_said_to_cost() -> None:
    seen = snapshot()
    # Long ones hold all; then short ones come. Preempting helps them, unless it loses more than it gains.
    long = [ended(at, NOW_S, 1000.0) for at in range(2)]
    short = [ended(at, NOW_S + 100, 10.0, start_s=NOW_S + 1000) for at in range(2, 12)]

    def policy_s(cost_s: float) -> float:
        gain = expected_gain([*long, *short], groups(seen), seen, SRSF, may_preempt=True, requeue_cost_s=cost_s)
        assert gain is not None
        return gain.policy.completion_s

    assert policy_s(0.0) < policy_s(500.0)


def test_too_few_jobs_tell_nothing() -> None:
    seen = snapshot()
    few = [ended(at, NOW_S + at, 10.0) for at in range(LEAST_JOBS - 1)]

    assert expected_gain(few, groups(seen), seen, SRSF, may_preempt=False, requeue_cost_s=0.0) is None


def test_only_the_newest_are_kept() -> None:
    jobs = [ended(at, NOW_S, 10.0) for at in range(5)]

    assert list(kept({"0": jobs[0]}, jobs[1:], 3)) == ["2", "3", "4"]
