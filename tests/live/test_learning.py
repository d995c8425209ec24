"""What a policy has learned from the jobs that ended outlives the domain in which they ran."""

import pytest

from farside.scheduler.manager.decider.decide import Decider
from farside.scheduler.manager.decider.past_use import histories_of
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.event import CancelRequested, NodeChanged, TaskPhase
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.order.gittins import Gittins
from tests.live.facts import gpus
from tests.live.world import World, rules


@pytest.fixture
def world() -> World:
    return World(rules("gittins", first_fit_jobs="3"), nodes=1, gpus=4)


def samples(world: World) -> list[float]:
    order = world.decider.domain.rules.order
    assert isinstance(order, Gittins)
    return [float(sample) for sample in order.distribution.samples]


def run_to_their_ends(world: World, *lengths_s: float) -> None:
    for length_s in lengths_s:
        job_id = world.submit(2)
        world.runs(job_id)
        world.pass_s(length_s)
        world.exits(job_id)


def test_gittins_knows_what_it_learned_when_a_node_joins(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0, 30.0)
    domain = world.decider.domain

    world.join("n1")

    assert world.decider.domain is not domain
    assert samples(world) == [20.0, 40.0, 60.0]


def test_gittins_goes_on_to_learn_in_the_new_domain(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0, 30.0)
    world.join("n1")

    run_to_their_ends(world, 5.0)

    assert samples(world) == [10.0, 20.0, 40.0, 60.0]


def test_gittins_knows_the_same_after_a_restart(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0, 30.0, 5.0)
    before = samples(world)

    world.lead()

    assert samples(world) == before


def test_a_job_that_never_ran_teaches_nothing(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0)
    too_wide = world.submit(5)

    world.does(CancelRequested(job_id=too_wide, by="ann"))

    assert samples(world) == []


def test_a_job_that_ends_before_the_new_domain_is_built_is_learned_from(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0)
    job_id = world.submit(2)
    world.runs(job_id)
    world.pass_s(30.0)
    (task,) = world.job(job_id).tasks
    larger = NodeChanged(node="n0", headroom_bytes=1 << 36, gpus=gpus(5, "H200"))

    world.tell(larger)
    world.task(task, TaskPhase.EXITED, exit_code=0)

    assert samples(world) == [20.0, 40.0, 60.0]


def test_gittins_knows_what_it_learned_when_a_node_is_resized(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0, 30.0)
    before, domain = samples(world), world.decider.domain

    world.does(NodeChanged(node="n0", headroom_bytes=1 << 36, gpus=gpus(8, "H200")))

    assert world.decider.domain is not domain
    assert samples(world) == before


def test_gittins_of_another_leader_knows_the_same(world: World) -> None:
    run_to_their_ends(world, 10.0, 20.0, 30.0, 5.0)
    state = LiveState()
    for entry in world.log:
        apply(state, entry)

    other = Decider(world.rules, state, world.now_s)

    order = other.domain.rules.order
    assert isinstance(order, Gittins)
    assert [float(sample) for sample in order.distribution.samples] == samples(world)
    assert other.domain.history.ended_gpu_s == world.decider.domain.history.ended_gpu_s


def test_of_more_jobs_than_count_a_restart_finds_the_same_newest_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("order.gittins", "admission.history"):
        monkeypatch.setattr(f"farside.scheduler.{module}.KEPT_JOBS", 4)
    run_to_their_ends(world, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)
    before, history = samples(world), world.decider.domain.history

    world.lead()

    assert before == samples(world) == [80.0, 100.0, 120.0, 140.0]
    again = world.decider.domain.history
    assert (again.ended_gpu_s, again.ended_jobs) == (history.ended_gpu_s, 7)
    assert len(again.ended_gpu_s) == 4


def test_a_co_located_job_is_no_sample_after_a_restart_either() -> None:
    state = LiveState()
    for at, is_colocated in enumerate((True, False)):
        state.jobs[str(at)] = LiveJob(
            job_id=str(at), sequence=at, spec=JobSpec(argv=("true",), gpus=2, colocate=is_colocated), user="ann",
            uid=-1, submit_s=0.0, phase=Phase.DONE, since_s=10.0, held_s=10.0, end_s=10.0,
        )  # fmt: skip

    assert histories_of(rules("gittins"), state)[""].ended_gpu_s == [20.0]
