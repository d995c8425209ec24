"""A log as a trace: what the simulator makes of jobs that really ran, and how far it is off."""

import pytest

from farside.errors import FarsideError
from farside.scheduler.manager.compare_simulation import (
    PAPER_APART_PCT,
    Compared,
    Fidelity,
    OrderCount,
    recording,
    simulated,
)
from farside.scheduler.manager.model.event import (
    CancelRequested,
    DrainRequested,
    HistoryForgotten,
    HoldRequested,
    NodesReserved,
    ReleaseRequested,
    ReservationCancelled,
)
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.predict.learned_times import LearnedTimes
from tests.live.world import World, rules


def run_for(world: World, job: str, seconds: float) -> None:
    world.runs(job)
    world.pass_s(seconds)
    world.exits(job)
    assert world.phase(job) is Phase.DONE


def replayed(world: World) -> Fidelity:
    return simulated(recording(world.log), world.rules)


def test_a_job_that_ran_alone_is_predicted_to_the_second() -> None:
    world = World(rules())
    job = world.submit(4)

    run_for(world, job, 50.0)

    assert [(one.job_id, one.jct_s, one.predicted_s) for one in replayed(world).jobs] == [(job, 50.0, 50.0)]


def test_a_queue_is_waited_in_as_it_really_was() -> None:
    world = World(rules(), nodes=1)
    first = world.submit(4)
    world.pass_s(10.0)
    second = world.submit(4)
    run_for(world, first, 50.0)
    run_for(world, second, 20.0)

    found = replayed(world)

    assert [(one.jct_s, one.predicted_s) for one in found.jobs] == [(60.0, 60.0), (70.0, 70.0)]
    assert (found.mean_error, found.median_error) == (0.0, 0.0)


def ordered(*jobs: tuple[float, float, float], partition: str = "") -> tuple[Compared, ...]:
    """Jobs by when they were ready, when they started, and when they did in the simulation."""
    return tuple(
        Compared(
            job_id=str(at), gpus=1, jct_s=1.0, predicted_s=1.0, partition=partition, submit_s=submit_s, start_s=start_s,
            predicted_start_s=said_s,
        )
        for at, (submit_s, start_s, said_s) in enumerate(jobs)
    )  # fmt: skip


def order_of(*jobs: Compared) -> OrderCount:
    return Fidelity(jobs=jobs, preemptions=0, predicted_preemptions=0).order


def test_pairs_of_jobs_that_waited_together_and_swapped_are_counted() -> None:
    found = order_of(*ordered((0.0, 5.0, 5.0), (1.0, 7.0, 6.0), (2.0, 6.0, 7.0)))

    assert found == OrderCount(pairs=3, swapped=1)
    assert found.error == pytest.approx(1 / 3)


def test_jobs_that_never_waited_at_one_time_are_no_pair_whatever_happened() -> None:
    assert order_of(*ordered((0.0, 9.0, 1.0), (2.0, 2.0, 2.0))).pairs == 0


def test_jobs_that_started_at_one_instant_have_no_order() -> None:
    assert order_of(*ordered((0.0, 6.0, 5.0), (1.0, 5.0, 5.0))).pairs == 0
    assert order_of(*ordered((0.0, 5.0, 5.0), (1.0, 5.0, 6.0))) == OrderCount(pairs=1, swapped=0)


def test_a_job_that_starts_at_once_goes_before_those_that_wait() -> None:
    assert order_of(*ordered((0.0, 3.0, 5.0), (2.0, 4.0, 2.0))) == OrderCount(pairs=1, swapped=1)


def test_jobs_of_two_partitions_wait_in_two_queues() -> None:
    assert order_of(*ordered((0.0, 6.0, 5.0), partition="a"), *ordered((1.0, 5.0, 6.0), partition="b")).pairs == 0


def test_a_replay_has_the_order_of_its_jobs() -> None:
    world = World(rules(), nodes=1)
    first, *waiting = world.submit(4), world.submit(4), world.submit(4)
    for job in (first, *waiting):
        run_for(world, job, 10.0)

    assert replayed(world).order == OrderCount(pairs=1, swapped=0)


def test_what_a_preemption_cost_is_no_work_and_is_charged_again_where_the_simulator_preempts() -> None:
    world = World(rules("las", limits_gpu_s="40"), nodes=1)
    long = world.submit(4)
    world.runs(long)
    world.pass_s(100.0)
    short = world.submit(4)
    world.pass_s(5.0)  # the pause
    world.exits(long, 143, cause="preempted")
    run_for(world, short, 8.0)
    world.pass_s(3.0)  # the resume
    run_for(world, long, 60.0)

    found = recording(world.log)
    fidelity = simulated(found, world.rules)

    assert [one.traced.duration_s for one in found.jobs] == [160.0, 8.0]
    assert (fidelity.preemptions, fidelity.predicted_preemptions) == (1, 1)
    by_id = {one.job_id: one for one in fidelity.jobs}
    assert (by_id[long].jct_s, by_id[long].predicted_s) == (176.0, 176.0)
    # It had to wait for the long one to go; the simulator charges that to the long one.
    assert (by_id[short].jct_s, by_id[short].predicted_s) == (13.0, 8.0)


def test_a_job_is_ready_when_its_predecessors_have_ended() -> None:
    world = World(rules())
    first = world.submit(1)
    after = world.submit(1, after=(first,))
    run_for(world, first, 30.0)
    run_for(world, after, 5.0)

    assert [one.jct_s for one in replayed(world).jobs] == [30.0, 5.0]


def test_a_job_that_was_held_is_ready_when_it_is_released() -> None:
    world = World(rules())
    first, held = world.submit(8), world.submit(1)
    world.does(HoldRequested(job_id=held, by="ann"))
    run_for(world, first, 30.0)
    world.pass_s(7.0)
    world.does(ReleaseRequested(job_id=held, by="ann"))
    run_for(world, held, 5.0)

    assert [one.jct_s for one in replayed(world).jobs] == [30.0, 5.0]


def test_a_job_that_was_held_stands_where_its_submission_put_it_in_the_simulation_too() -> None:
    world = World(rules(), nodes=1)
    running, held = world.submit(4), world.submit(4)
    world.runs(running)
    world.does(HoldRequested(job_id=held, by="ann"))
    world.pass_s(5.0)
    later = world.submit(4)
    world.pass_s(5.0)
    world.release(held)
    world.exits(running)
    run_for(world, held, 20.0)
    run_for(world, later, 5.0)

    found = replayed(world)

    assert [(one.job_id, one.jct_s, one.predicted_s) for one in found.jobs[1:]] == [
        (later, 30.0, 30.0),
        (held, 20.0, 20.0),
    ]


def test_nodes_that_took_no_jobs_then_take_none_in_the_simulation() -> None:
    world = World(rules())
    world.does(DrainRequested(node="n1", reason="", by="root"))
    first, second = world.submit(4), world.submit(4)
    run_for(world, first, 30.0)
    run_for(world, second, 30.0)

    assert [one.predicted_s for one in replayed(world).jobs] == [30.0, 60.0]


def test_jobs_that_never_ran_or_have_not_ended_are_left_out_and_counted() -> None:
    world = World(rules(), nodes=1)
    done = world.submit(4)
    never = world.submit(4)
    world.does(CancelRequested(job_id=never, by="ann"))
    run_for(world, done, 10.0)
    world.submit(4)

    found = recording(world.log)

    assert [one.traced.job.job_id for one in found.jobs] == [done]
    assert found.left_out == {"never started": 1, "not over yet": 1}


def test_a_job_that_has_not_ended_holds_its_gpus_in_the_simulation_too() -> None:
    world = World(rules(), nodes=1)
    endless = world.submit(3)
    world.runs(endless)
    first, second = world.submit(1), world.submit(1)
    run_for(world, first, 30.0)
    run_for(world, second, 20.0)

    found = recording(world.log)

    assert [one.traced.job.job_id for one in found.jobs] == [first, second]
    assert [one.predicted_s for one in simulated(found, world.rules).jobs] == [30.0, 50.0]


def test_jobs_that_the_manager_has_forgotten_are_replayed_from_the_log() -> None:
    world = World(rules(), nodes=1)
    first = world.submit(4)
    run_for(world, first, 10.0)
    world.does(HistoryForgotten(before_s=world.now_s + 1.0))
    second = world.submit(4)
    run_for(world, second, 20.0)

    assert first not in world.state.jobs
    assert [one.traced.job.job_id for one in recording(world.log).jobs] == [first, second]


def test_nodes_that_were_reserved_are_reserved_in_the_simulation() -> None:
    world = World(rules(), nodes=1)
    world.does(
        NodesReserved(nodes=("n0",), begin_s=world.now_s + 5.0, end_s=world.now_s + 40.0, reason="disks", by="root")
    )
    job = world.submit(4)
    world.pass_s(50.0)
    run_for(world, job, 10.0)

    (one,) = replayed(world).jobs

    assert one.start_s - one.submit_s == pytest.approx(40.0, abs=0.1)
    assert one.predicted_start_s == pytest.approx(one.start_s, abs=0.1)


def test_a_reservation_that_was_cancelled_ends_then_in_the_simulation() -> None:
    world = World(rules(), nodes=1)
    world.does(
        NodesReserved(nodes=("n0",), begin_s=world.now_s + 5.0, end_s=world.now_s + 4000.0, reason="disks", by="root")
    )
    job = world.submit(4)
    world.pass_s(20.0)
    world.does(ReservationCancelled(reservation_id="m1", by="root"))
    run_for(world, job, 10.0)

    (one,) = replayed(world).jobs

    assert (one.start_s - one.submit_s, one.predicted_start_s) == (20.0, one.start_s)


def test_a_job_is_expected_to_take_what_was_expected_when_it_was_submitted_though_it_was_held_then() -> None:
    """By the time that it was ready, others of its name had shown that they run long."""
    world = World(rules("qssf"), nodes=1, gpus=1, make_times=LearnedTimes)
    for _ in range(2):
        run_for(world, world.submit(name="test"), 10.0)
    test = world.submit(name="test")
    held = world.submit(name="train")
    world.does(HoldRequested(job_id=held, by="ann"))
    run_for(world, test, 10.0)
    assert world.phase(held) is Phase.HELD
    for _ in range(3):
        run_for(world, world.submit(name="train"), 1000.0)
    running = world.submit(name="other")
    world.runs(running)
    world.pass_s(1.0)
    other = world.submit(name="other")
    world.release(held)
    world.pass_s(10.0)
    world.exits(running)
    run_for(world, held, 5.0)
    run_for(world, other, 5.0)

    found = simulated(recording(world.log), world.rules, LearnedTimes)

    assert (found.order.pairs, found.order.swapped) == (1, 0)
    assert [one.predicted_s for one in found.jobs] == pytest.approx([one.jct_s for one in found.jobs])


def test_lists_of_queues_that_a_new_scheduler_process_made_anew_are_made_anew_in_the_simulation() -> None:
    """The first job stood before the second, as it was preempted last; by how long they waited it is the other way."""
    world = World(rules("las", limits_gpu_s="100"), nodes=1)

    def gives_way(loser: str, winner: str) -> None:
        assert world.phase(loser) is Phase.STOPPING
        world.exits(loser, 143, cause="preempted")
        world.runs(winner)

    first = world.submit(4)
    world.runs(first)
    world.pass_s(30.0)
    second = world.submit(4)
    gives_way(first, second)
    world.pass_s(25.5)  # until it is in the second queue as well
    gives_way(second, first)
    world.pass_s(5.0)
    third = world.submit(4)
    gives_way(first, third)
    world.pass_s(10.0)
    world.lead()
    world.pass_s(15.5)
    gives_way(third, second)
    for job, seconds in ((second, 40.0), (first, 30.0), (third, 20.0)):
        if job != second:
            world.runs(job)
        world.pass_s(seconds)
        world.exits(job)
        assert world.phase(job) is Phase.DONE

    found = simulated(recording(world.log), world.rules)

    assert [one.predicted_s for one in found.jobs] == pytest.approx([one.jct_s for one in found.jobs], abs=2.0)


def test_a_log_without_jobs_is_one_clear_line() -> None:
    with pytest.raises(FarsideError, match="no job of this log has run to its end"):
        replayed(World(rules()))


def test_the_paper_s_simulator_and_testbed_are_seven_percent_apart() -> None:
    assert round(PAPER_APART_PCT, 1) == 7.1
