"""What a preemption costs, against what the papers say of theirs."""

import pytest

from farside.scheduler.model_zoo import MODELS
from farside.scheduler.preemption_cost import ModelCost, NoCost, SteppedCost
from farside.scheduler.state import Job

# §3.5.1: how many jobs of how many GPUs; every model has as many.
DISTRIBUTED = {2: 40, 4: 80, 8: 90, 16: 25, 32: 5}
# §3.5.2.4: seconds and preemptions under Tiresias-L, Tiresias-G and SRTF.
TOTALS = ((13724, 221), (17425, 297), (18057, 316))


def job(gpus: int, model: str) -> Job:
    return Job(job_id="0", sequence=0, submit_s=0, gpus=gpus, model=model)


def mean_cost_s() -> float:
    """Of the workload's jobs of several GPUs, all equally likely to be preempted."""
    cost = ModelCost()
    total_s = sum(
        count * cost.preemption_s(job(gpus, model.name)) for gpus, count in DISTRIBUTED.items() for model in MODELS
    )
    return total_s / sum(DISTRIBUTED.values()) / len(MODELS)


def test_the_papers_preemptions_cost_what_it_says_on_average() -> None:
    seconds, preemptions = map(sum, zip(*TOTALS, strict=True))

    assert mean_cost_s() == pytest.approx(seconds / preemptions, rel=0.005)


@pytest.mark.parametrize(("seconds", "preemptions"), TOTALS)
def test_each_policys_total_is_met_within_six_percent(seconds: float, preemptions: int) -> None:
    assert preemptions * mean_cost_s() == pytest.approx(seconds, rel=0.06)


def test_every_model_costs_between_57_and_62_seconds() -> None:
    costs_s = [ModelCost().preemption_s(job(gpus, model.name)) for gpus in (1, 2, 4, 8, 32) for model in MODELS]

    assert all(57 < cost_s < 62 for cost_s in costs_s)


def test_a_larger_model_costs_more_and_so_do_more_workers_on_a_machine() -> None:
    cost = ModelCost()

    assert cost.preemption_s(job(4, "vgg19")) > cost.preemption_s(job(4, "googlenet"))
    assert cost.preemption_s(job(4, "vgg19")) > cost.preemption_s(job(1, "vgg19"))
    assert cost.preemption_s(job(32, "vgg19")) == cost.preemption_s(job(4, "vgg19"))  # machines read at once


def test_storage_of_another_speed_costs_accordingly() -> None:
    slow = ModelCost(storage_bytes_per_s=1e8, fixed_s=10)
    measured = Job(job_id="0", sequence=0, submit_s=0, gpus=1, model_bytes=10**9)

    assert slow.preemption_s(measured) == pytest.approx(10 + 20)


@pytest.mark.parametrize(("gpus", "cost_s"), [(1, 7), (2, 30), (8, 30), (9, 60), (64, 60)])
def test_helios_charges_by_steps(gpus: int, cost_s: float) -> None:
    assert SteppedCost().preemption_s(job(gpus, "")) == cost_s
    assert NoCost().preemption_s(job(gpus, "")) == 0
