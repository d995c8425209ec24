"""What a place does to a job's speed: what the text says of Table 3.3's models, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import MODELS, find_model, model_bytes_of, skew_of
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.placement.fragments import Fragments
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.random import Random
from farside.scheduler.placement.skew import Skew
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.slowdown import NoSlowdown, SpreadSlowdown, spread_of
from farside.scheduler.state import Demand, Job, Node
from tests.support.nodes import Occupied, demands, occupied
from tests.support.traces import flat_cluster

SENSITIVE = {"VGG19", "VGG16", "VGG11", "AlexNet"}


def job(gpus: int, model: str, sequence: int = 0) -> Job:
    return Job(job_id=str(sequence), sequence=sequence, submit_s=0, gpus=gpus, model=model)


def ledger(*sizes: int) -> Ledger:
    return Ledger([Node(name=f"n{at}", gpus=gpus) for at, gpus in enumerate(sizes)])


ONE_EACH = tuple((at, 1) for at in range(8))


@pytest.mark.parametrize("model", [model.name for model in MODELS])
def test_only_vgg_and_alexnet_suffer_when_spread(model: str) -> None:
    speed = SpreadSlowdown().speed(job(8, model), ONE_EACH, ledger(*[4] * 8))

    assert (speed < 1) == (model in SENSITIVE)
    assert speed >= 1 / 1.67


def test_the_most_skewed_model_in_the_worst_place_is_1_67_times_as_slow() -> None:
    assert SpreadSlowdown().speed(job(8, "VGG11"), ONE_EACH, ledger(*[4] * 8)) == pytest.approx(1 / 1.67)


@pytest.mark.parametrize("model", sorted(SENSITIVE))
def test_on_the_fewest_machines_nobody_suffers(model: str) -> None:
    effect, cluster = SpreadSlowdown(), ledger(4, 4, 4)

    assert effect.speed(job(1, model), ((0, 1),), cluster) == 1
    assert effect.speed(job(4, model), ((2, 4),), cluster) == 1
    assert effect.speed(job(8, model), ((0, 4), (1, 4)), cluster) == 1
    assert effect.speed(job(10, model), ((0, 4), (1, 4), (2, 2)), cluster) == 1


def test_the_more_machines_the_slower() -> None:
    cluster = ledger(*[4] * 8)
    places = [((0, 4), (1, 4)), ((0, 4), (1, 3), (2, 1)), ((0, 3), (1, 3), (2, 2)), ((0, 2), (1, 2), (2, 2), (3, 2))]

    speeds = [SpreadSlowdown().speed(job(8, "VGG16"), place, cluster) for place in (*places, ONE_EACH)]

    assert speeds == sorted(speeds, reverse=True)
    assert len(set(speeds)) == len(speeds)


def test_what_cant_be_avoided_does_not_count() -> None:
    """Eight GPUs on nodes of one GPU each are consolidated as well as they can be."""
    assert spread_of(job(8, "VGG16"), ONE_EACH, ledger(*[1] * 8)) == 0


names = st.sampled_from([model.name for model in MODELS])
spreading: st.SearchStrategy[PlacementPolicy] = st.sampled_from([Fragments(), Random()])


@settings(deadline=None, max_examples=100)
@given(occupied(), demands(), names, spreading)
def test_every_place_has_a_speed(case: Occupied, demand: Demand, model: str, placement: PlacementPolicy) -> None:
    allocation = placement.place(case.ledger(), demand)

    if allocation is not None:
        speed = SpreadSlowdown().speed(job(demand.gpus, model), allocation, case.ledger())
        assert 1 / 1.67 - 1e-9 <= speed <= 1
        assert NoSlowdown().speed(job(demand.gpus, model), allocation, case.ledger()) == 1


def training_s(placement: PlacementPolicy) -> dict[str, float]:
    """Four jobs of eight GPUs each on eight nodes of four, as in Figure 3.3; every model in turn."""
    found = {}
    for model in MODELS:
        jobs = [TraceJob(job=job(8, model.name, at), duration_s=1000.0) for at in range(4)]
        rules = Rules(order=Fifo(), placement=placement, slowdown=SpreadSlowdown())
        runs = Simulation(flat_cluster(8, 4), rules, jobs).run()
        found[model.name] = max(run.held_s for run in runs)
    return found


def test_tiresias_placement_is_up_to_1_67_times_as_fast_as_chance() -> None:
    tiresias, chance = training_s(Skew()), training_s(Random(seed=1))

    gain = {name: chance[name] / tiresias[name] for name in tiresias}
    assert all(1 <= factor <= 1.67 for factor in gain.values())
    assert {name for name, factor in gain.items() if factor > 1.05} == SENSITIVE
    assert max(gain.values()) > 1.3


def test_table_3_3_agrees_with_itself() -> None:
    for model in MODELS:
        assert model.largest_tensor_bytes / model.model_bytes == pytest.approx(model.skew, abs=0.001)
        assert model.large_tensors < model.tensors


@pytest.mark.parametrize(
    ("written", "name"),
    [("vgg16", "VGG16"), ("VGG-11", "VGG11"), ("inception_v3", "Inception3"), ("Resnet 152", "ResNet152")],
)
def test_a_model_is_found_however_it_is_written(written: str, name: str) -> None:
    model = find_model(written)

    assert model is not None
    assert model.name == name
    assert skew_of(job(8, written)) == model.skew
    assert model_bytes_of(job(8, written)) == model.model_bytes


def test_what_was_measured_goes_before_the_table() -> None:
    measured = Job(job_id="0", sequence=0, submit_s=0, gpus=8, model="vgg16", skew=0.2, model_bytes=7)

    assert skew_of(measured) == 0.2
    assert model_bytes_of(measured) == 7
    assert skew_of(job(8, "bert")) == 0
