"""What preemptions cost, as it follows from the log, and what is made of it."""

import math

from farside.scheduler.manager.model.event import TaskPhase
from farside.scheduler.manager.model.preemption_times import PreemptionTimes, as_settings
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.sim.experiment import make_experiments
from tests.live.world import World, rules


def preempted(pause_s: float, *, gpus: int = 4, nodes: int = 1) -> tuple[World, str, str]:
    """A world in which a long job was stopped for a short one, and took so long to go; both ids."""
    world = World(rules("las", limits_gpu_s="10"), nodes=nodes)
    long = world.submit(gpus)
    world.runs(long)
    world.pass_s(100.0)
    short = world.submit(gpus)
    assert world.phase(long) is Phase.STOPPING
    world.pass_s(pause_s)
    world.exits(long, 143, cause="preempted")
    return world, long, short


def resume(world: World, long: str, short: str, *, running_after_s: float) -> None:
    world.runs(short)
    world.exits(short)
    assert world.phase(long) is Phase.STARTING
    world.pass_s(running_after_s)
    world.runs(long)


def test_a_pause_is_from_the_decision_to_stop_until_no_process_is_left() -> None:
    world, long, _ = preempted(pause_s=7.0)

    assert world.job(long).pause_s == 7.0
    assert world.state.preemption_times.pause_s(4) == 7.0


def test_a_resume_is_from_the_decision_to_start_again_until_all_processes_run() -> None:
    world, long, short = preempted(pause_s=1.0)

    resume(world, long, short, running_after_s=3.0)

    assert world.job(long).resume_s == 3.0
    assert world.state.preemption_times.resume_s(4) == 3.0


def test_a_first_start_is_timed_but_is_no_resume() -> None:
    world = World(rules())
    job = world.submit(1)
    world.pass_s(2.0)

    world.runs(job)

    assert world.job(job).resume_s == 2.0
    assert math.isnan(world.state.preemption_times.resume_s(1))


def test_a_job_that_says_when_it_makes_progress_has_resumed_only_then() -> None:
    world, long, short = preempted(pause_s=1.0)
    resume(world, long, short, running_after_s=3.0)

    world.pass_s(10.0)
    world.task(world.job(long).tasks[0], TaskPhase.RUNNING, is_ready=True)
    world.pass_s(10.0)
    world.task(world.job(long).tasks[0], TaskPhase.RUNNING, is_ready=True)

    assert world.job(long).resume_s == 13.0
    assert world.state.preemption_times.resume_s(4) == 13.0


def test_times_are_kept_apart_by_size_and_stand_in_for_sizes_that_were_never_measured() -> None:
    preemption_times = PreemptionTimes()
    preemption_times.resumes["one_s"].add(2.0)
    preemption_times.resumes["many_s"].add(8.0)
    preemption_times.resumes["many_s"].add(10.0)

    assert (preemption_times.resume_s(1), preemption_times.resume_s(64), preemption_times.resume_s(4)) == (
        2.0,
        9.0,
        20 / 3,
    )
    assert math.isnan(preemption_times.pause_s(1))


def test_a_job_that_resumed_is_left_alone_until_it_has_made_progress_for_as_long_as_others() -> None:
    world, long, short = preempted(pause_s=1.0)
    resume(world, long, short, running_after_s=30.0)
    world.rules = world.decider.domain.rules
    again = world.submit(4)
    assert world.phase(long) is Phase.STOPPING  # nobody is left alone: min_run_s is 0, and it resumed 30 s ago
    world.exits(long, 143, cause="preempted")
    world.runs(again)
    world.exits(again)
    world.runs(long)

    last = world.submit(4)

    assert (world.phase(long), world.phase(last)) == (Phase.RUNNING, Phase.WAITING)
    world.pass_s(29.9)
    assert world.phase(long) is Phase.RUNNING
    world.pass_s(0.2)
    assert world.phase(long) is Phase.STOPPING


def test_a_brain_that_starts_again_knows_the_same() -> None:
    world, long, short = preempted(pause_s=7.0)
    resume(world, long, short, running_after_s=3.0)
    before = world.state.preemption_times

    world.lead()

    assert world.state.preemption_times == before


def test_the_simulator_takes_what_was_measured_as_it_is_exported() -> None:
    world, long, short = preempted(pause_s=7.0)
    resume(world, long, short, running_after_s=3.0)

    settings = as_settings(world.state.preemption_times)
    (experiment,) = make_experiments(["las"], settings)

    assert settings == {"cost": "helios", "one_s": "10.000", "few_s": "10.000", "many_s": "10.000"}
    assert experiment.preemption_cost.name == "helios"


def test_nothing_measured_is_nothing_exported() -> None:
    assert as_settings(PreemptionTimes()) == {}
