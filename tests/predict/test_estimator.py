"""A service inside a simulation: it knows what has ended, and nothing else."""

import math
from dataclasses import replace

import pytest

from farside.errors import ConfigError
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.sim.cluster import build_site
from farside.scheduler.sim.estimator import Estimation, Learner, past_of
from farside.scheduler.sim.experiment import Experiment, Outcome, Scene, make_experiments, run_experiment
from farside.scheduler.sim.trace.job import TraceJob
from tests.predict.log import nameless, repeating

GPUS = 16


def scene(jobs: list[TraceJob]) -> Scene:
    return Scene(site=build_site(nodes=2, gpus_per_node=8), jobs=tuple(jobs), labels=("",) * len(jobs))


def qssf(**settings: str) -> Experiment:
    return make_experiments(("qssf",), settings)[0]


def run(jobs: list[TraceJob], history: list[TraceJob] | None = None, **settings: str) -> Outcome:
    made = qssf(**settings)
    spec = replace(made.estimator, history=past_of(history or []))
    return run_experiment(replace(made, estimator=spec), scene(jobs))


@pytest.mark.parametrize(
    "estimator", ["model", *(pytest.param(name, marks=pytest.mark.long) for name in ("rolling", "gpus"))]
)
def test_what_has_not_ended_yet_decides_nothing(estimator: str) -> None:
    jobs = repeating(900, gpus=GPUS)
    whole = run(jobs, estimator=estimator, update_every_s="3600")
    cut_s = jobs[600].job.submit_s
    ends_s = whole.results.end_s.tolist()
    # Those that had not ended run on, and those that had not come are other jobs of other users.
    scrambled = [
        job
        if end_s <= cut_s
        else replace(job, duration_s=job.duration_s + 1e6)
        if job.job.submit_s <= cut_s
        else replace(job, duration_s=1.0 + at % 977, job=replace(job.job, user="other", name=f"x{at}"))
        for at, (job, end_s) in enumerate(zip(jobs, ends_s, strict=True))
    ]

    other = run(scrambled, estimator=estimator, update_every_s="3600")

    early = [at for at, start_s in enumerate(whole.results.start_s.tolist()) if start_s <= cut_s]
    assert len(early) > 500
    assert [whole.results.start_s[at] for at in early] == [other.results.start_s[at] for at in early]


def test_history_is_only_what_had_come_and_ended() -> None:
    jobs = nameless(50)
    until_s = jobs[30].job.submit_s

    past = past_of(jobs, until_s)

    assert 0 < len(past) < 31
    assert all(job.submit_s + ran_s <= until_s for job, ran_s in past)


def test_a_learner_that_is_asked_again_says_the_same_and_counts_the_job_once() -> None:
    learner = Learner(GpuTimeParams(), RollingParams())
    jobs = nameless(1)
    first_gpu_s = learner.predicted_gpu_s(jobs[0].job, 0.0)

    again_gpu_s = learner.predicted_gpu_s(jobs[0].job, 60.0)

    assert again_gpu_s == first_gpu_s
    assert sum(learner.summary(jobs).sources.values()) == 1


@pytest.mark.long
def test_with_history_the_model_is_used_from_the_first_job_and_orders_better_than_gpus() -> None:
    jobs = repeating(5000, gpus=GPUS)
    history, later = jobs[:4000], jobs[4000:]

    by_model, by_gpus = (run(later, history, estimator=name) for name in ("model", "gpus"))

    assert by_model.estimation is not None
    assert by_gpus.estimation is not None
    assert by_model.estimation.sources.get("model", 0) == len(later)
    assert by_model.estimation.quality.spearman > by_gpus.estimation.quality.spearman


@pytest.mark.long
def test_where_only_chance_decides_it_does_exactly_as_the_number_of_gpus() -> None:
    jobs = nameless(1200)

    assert run(jobs, estimator="model").digest == run(jobs, estimator="gpus").digest


def test_history_gives_the_guard_its_cut() -> None:
    learner = Learner(GpuTimeParams(), RollingParams(), past_of(nameless(600)))

    primed = learner.primed(Qssf())

    assert isinstance(primed, Qssf)
    assert primed.cut.short_gpu_s > 0


def test_an_oracle_stays_what_it_was() -> None:
    jobs = nameless(60)

    found = run(jobs, error_factor="2", patience_s="inf")

    assert isinstance(found.estimation, Estimation)
    assert (found.estimation.sources, found.estimation.fits) == ({"oracle": 60}, 0)
    assert not math.isnan(found.estimation.quality.saving)


def test_an_oracles_setting_is_none_of_a_model_and_the_other_way_round() -> None:
    with pytest.raises(ConfigError, match="error_factor: no part of this run has such a setting"):
        qssf(estimator="model", error_factor="2")
    with pytest.raises(ConfigError, match="similarity: no part of this run has such a setting"):
        qssf(similarity="0.8")
    with pytest.raises(ConfigError, match="similarity: must be above 0 and at most 1"):
        qssf(estimator="rolling", similarity="1.5")


def test_an_unknown_estimator_is_told() -> None:
    with pytest.raises(ConfigError, match="estimator: must be oracle or model or rolling or gpus, is 'magic'"):
        qssf(estimator="magic")


def test_a_policy_that_expects_nothing_has_no_learner() -> None:
    (fifo,) = make_experiments(("fifo",), {"estimator": "model"})

    assert run_experiment(fifo, scene(nameless(30))).estimation is None
