"""PACKLIMIT as the manager learns it: from what jobs tell of their iterations, kept by whatever is made anew."""

import math
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.agent.messages import IterationTimes
from farside.cli.cluster_table import job_lines
from farside.scheduler.domain import Rules
from farside.scheduler.manager.compare_simulation import recording, simulated
from farside.scheduler.manager.decider.past_use import start_of
from farside.scheduler.manager.model.event import JobStarted, TaskChanged, TaskPhase
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.view.view import Packlimit, show_job_in_full
from farside.scheduler.model_zoo import MODELS, find_model
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.placement.measured_speed import Slowed
from farside.scheduler.placement.packlimit import learn_packlimit
from farside.scheduler.placement.slowdown_sample import Sample
from farside.scheduler.slowdown import SpreadSlowdown
from tests.live.test_dispatch import line_of, report, told, world_with_a_job
from tests.live.world import World

ALONE_S = 0.5
NODES, GPUS = 2, 2


def by_skew(**more: str) -> Rules:
    return Rules(order=make_order("fifo", {}), placement=make_placement("skew", {"packlimit": "1", **more}))


def learning(jobs: int) -> World:
    return World(by_skew(relearn_jobs=str(jobs)), nodes=NODES, gpus=GPUS)


def slowdown_of(model: str) -> float:
    """Of a job with a machine for each GPU, as the simulator has it."""
    effect, found = SpreadSlowdown(), find_model(model)
    assert found is not None
    skewed = min(1.0, max(0.0, (found.skew - effect.even_skew) / (effect.full_skew - effect.even_skew)))
    return 1 + (effect.largest_slowdown - 1) * skewed


def submit(world: World, model: str, *, retries: int = 0) -> str:
    return world.submit(gpus=2, model=model, name=model, retries=retries)


def ends(world: World, job: str, *, code: int = 0, iterations: int = 50, told_s: float | None = None) -> None:
    """All its processes tell how long iterations took where they are, or ``told_s``, and end."""
    took_s = told_s or ALONE_S * (slowdown_of(world.job(job).spec.model) if len(world.job(job).places) > 1 else 1)
    world.runs(job)
    world.pass_s(100.0)
    for task in world.job(job).tasks:
        told_of = IterationTimes(count=iterations, median_s=took_s)
        world.task(task, TaskPhase.EXITED, exit_code=code, iterations=told_of)


def play(world: World, models: list[str]) -> None:
    """Each model once on one node, and then once on two, as each node has one GPU only, while the limit lets it."""
    for model in models:
        ends(world, submit(world, model))
    blockers = [world.submit(gpus=1, nodes=(f"n{at}",)) for at in range(NODES)]
    for job in blockers:
        world.runs(job)
    waiting = []
    for model in models:
        job = submit(world, model)
        if world.job(job).places:
            ends(world, job)
        else:
            waiting.append(job)
    for job in blockers:
        world.exits(job)
    for job in waiting:
        ends(world, job)


def run_spread(world: World, model: str, told_s: float) -> None:
    """A start of a model on two nodes, whose programs tell what they like."""
    blockers = [world.submit(gpus=1, nodes=(f"n{at}",)) for at in range(NODES)]
    for job in blockers:
        world.runs(job)
    job = submit(world, model)
    assert len(world.job(job).places) == NODES
    ends(world, job, told_s=told_s)
    for job in blockers:
        world.exits(job)


def limit(world: World) -> Packlimit:
    (found,) = world.decider.packlimits()
    return found


ALL = [model.name for model in MODELS]


# ---- what a start leaves in the log


def test_each_start_is_kept_with_where_it_was_and_how_long_its_iterations_took() -> None:
    world = learning(0)
    play(world, ["VGG16"])
    first, spread = "1", "4"

    starts = [show_job_in_full(world.job(job), world.now_s).ended_starts for job in (first, spread)]
    told_of = [[(one.nodes, one.is_spread, one.spread, one.iterations) for one in there] for there in starts]
    assert told_of == [[(1, False, 0.0, 50)], [(2, True, 1.0, 50)]]
    assert starts[1][0].iteration_s == pytest.approx(ALONE_S * slowdown_of("vgg16"))
    assert [entry.event.spread for entry in world.log if isinstance(entry.event, JobStarted)] == [0.0, None, None, 1.0]


def test_a_start_that_failed_and_was_forgiven_is_kept_as_well() -> None:
    world = learning(0)
    job = submit(world, "VGG16", retries=1)
    ends(world, job, code=1)
    assert (world.phase(job), world.job(job).start) == (Phase.STARTING, 2)
    world.runs(job)
    world.exits(job)

    shown = show_job_in_full(world.job(job), world.now_s).ended_starts
    assert [(one.start, one.iterations, one.iteration_s) for one in shown] == [(1, 50, ALONE_S), (2, 0, None)]
    lines = job_lines(msgspec.to_builtins(show_job_in_full(world.job(job), 0.0)), ())
    assert [line for line in lines if "median" in line] == [
        "  start 1   on 1 node, consolidated: 500 ms an iteration, median of 50"
    ]


def test_what_an_agent_says_of_iterations_comes_into_the_log_with_the_end_of_the_process() -> None:
    world = world_with_a_job()
    line, iterations = line_of(world), IterationTimes(count=3, median_s=0.25)

    events = line.reported(world.state, report(told("exited", exit_code=0, iterations=iterations)))

    assert [event.iterations for event in events if isinstance(event, TaskChanged)] == [iterations]


def test_processes_of_a_start_count_together() -> None:
    world = learning(0)
    job = world.submit(gpus=4, model="VGG16")
    world.runs(job)
    for task, (count, median_s) in zip(world.job(job).tasks, ((40, 0.5), (60, 0.7)), strict=True):
        world.task(task, TaskPhase.EXITED, exit_code=0, iterations=IterationTimes(count=count, median_s=median_s))

    (one,) = world.job(job).stints
    assert one.iterations == IterationTimes(count=40, median_s=0.6)
    assert (one.spread, one.skew, one.gpu_models) == (0.0, 0.743, ("H200",))
    assert start_of(world.job(job), one).user == world.job(job).user == "ann"


# ---- learned from that


def test_the_limit_goes_to_where_the_simulators_learner_puts_it() -> None:
    world = learning(20)
    play(world, ALL)

    samples = [Sample(skew=model.skew, spread=0.0, speed=1.0) for model in MODELS]
    samples += [Sample(skew=model.skew, spread=1.0, speed=1 / slowdown_of(model.name)) for model in MODELS]
    expected = learn_packlimit(samples, current=1.0)
    assert expected.is_learned
    assert limit(world).packlimit == pytest.approx(expected.packlimit, abs=1e-6)
    assert 0.146 < limit(world).packlimit < 0.61
    assert (limit(world).learned_from, limit(world).measured_starts, limit(world).spread_starts) == (20, 20, 10)


def test_it_is_the_same_after_a_restart_from_log_or_snapshot_and_after_a_node_has_joined() -> None:
    world = learning(20)
    play(world, ALL)
    before = limit(world)
    assert before.since_s is not None

    world.lead()
    after_restart = limit(world)
    world.lead(decode_state(encode_state(world.state)))
    after_snapshot = limit(world)
    world.join("n9", gpus=GPUS)

    assert before == after_restart == after_snapshot == limit(world)


def test_a_replay_of_the_log_comes_to_the_same_limit() -> None:
    world = learning(20)
    play(world, ALL)

    assert simulated(recording(world.log), world.rules).packlimits == world.decider.packlimits()


def test_a_replay_slows_spread_jobs_as_spread_starts_were_measured_to_be_slowed() -> None:
    world = learning(0)
    play(world, ["VGG16", "GoogleNet"])
    factor = slowdown_of("VGG16")

    found = recording(world.log)
    fidelity = simulated(found, world.rules)

    assert found.slowdown.over is not None
    assert (found.slowdown.over.spread, found.slowdown.over.starts) == (1.0, 1)
    assert found.slowdown.over.factor == pytest.approx(factor)
    assert found.slowdown.under == Slowed(factor=1.0, spread=1.0, starts=1)
    needs_s = {one.traced.job.job_id: one.traced.duration_s for one in found.jobs}
    assert (needs_s["1"], needs_s["6"]) == (100.0, 100.0)
    assert needs_s["5"] == pytest.approx(100.0 / factor)
    assert all(abs(one.error) < 1e-9 for one in fidelity.jobs)


def test_where_nobody_tells_of_iterations_a_replay_slows_nobody() -> None:
    world = learning(0)
    job = submit(world, "VGG16")
    world.runs(job)
    world.pass_s(10.0)
    world.exits(job)

    found = recording(world.log)

    assert (found.slowdown.over, found.slowdown.under, found.jobs[0].traced.duration_s) == (None, None, 10.0)


def test_jobs_that_wait_when_it_is_learned_go_by_it() -> None:
    world = learning(4)
    play(world, ["GoogleNet"])
    ends(world, submit(world, "VGG16"))
    blockers = [world.submit(gpus=1, nodes=(f"n{at}",)) for at in range(NODES)]
    for job in blockers:
        world.runs(job)
    spread, waiting = submit(world, "VGG16"), submit(world, "VGG16")
    assert (len(world.job(spread).places), world.phase(waiting)) == (2, Phase.WAITING)

    ends(world, spread)

    # By the limit of before it would have started on both nodes.
    assert 0.146 < limit(world).packlimit < 0.743
    assert world.phase(waiting) is Phase.WAITING
    world.exits(blockers[0])
    assert (world.phase(waiting), world.job(waiting).nodes) == (Phase.STARTING, ("n0",))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=6), st.integers(2, 5))
def test_whatever_ran_a_successor_knows_the_same(models: list[str], relearn_jobs: int) -> None:
    world = learning(relearn_jobs)
    play(world, models)
    before = limit(world)

    world.lead()

    assert limit(world) == before
    assert simulated(recording(world.log), world.rules).packlimits == (before,)


def test_where_it_is_not_asked_to_learn_nothing_is_learned() -> None:
    world = learning(0)
    play(world, ALL)

    assert (limit(world).packlimit, limit(world).measured_starts) == (1.0, 0)


def test_times_that_no_iteration_takes_teach_nothing_and_break_nothing() -> None:
    world = learning(2)
    ends(world, submit(world, "VGG16"), told_s=5e-324)

    run_spread(world, "VGG16", 4e9)

    assert (limit(world).measured_starts, limit(world).slowdown_under) == (0, None)
    assert world.decider.why(submit(world, "VGG16"), world.now_s, str)
    assert recording(world.log).slowdown.under is None
    assert show_job_in_full(world.job("1"), world.now_s).ended_starts[0].iteration_s is None


# ---- in words


def test_with_too_few_starts_it_says_that_the_limit_is_as_configured() -> None:
    world = learning(100)
    play(world, ["VGG16"])
    job = submit(world, "VGG16")

    lines = world.decider.why(job, world.now_s, str)

    assert limit(world).since_s is None
    assert lines[-2] == (
        "the limit of 100.0% is as configured: 2 measured starts, 1 of them spread, of which 2 could be compared; "
        "it is learned after each 100, once some were slowed and some were not"
    )
    assert lines[-1] == (
        "an iteration of spread starts took 1.64 times as long as consolidated for models not over the limit "
        "(median of 1 start)"
    )


def test_once_learned_it_says_since_when_and_from_how_many() -> None:
    world = learning(20)
    play(world, ALL)
    job = submit(world, "VGG16")

    *_, learned, lost = world.decider.why(job, world.now_s, lambda at_s: f"<{at_s:g}>")

    since_s = limit(world).since_s
    assert since_s is not None
    assert not math.isnan(since_s)
    words = rf"the limit of \d+\.\d% was learned at <{since_s:g}> from 20 starts that could be compared"
    assert re.fullmatch(words, learned)
    over = r"took 1\.\d+ times as long as consolidated for models over the limit \(median of 4 starts\), 1\.00 times"
    assert re.search(over, lost)
