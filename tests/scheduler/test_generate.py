"""Traces by chance: their figures are those of the recipe, and the same seed gives the same jobs."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.sim.trace.describe import describe, offered_load
from farside.scheduler.sim.workload.arrivals import ARRIVALS, Arrivals
from farside.scheduler.sim.workload.durations import PRESETS, BoundedPareto, Exponential, Lognormal, Service
from farside.scheduler.sim.workload.generate import MONDAY_S, Workload, draw, generate

RECIPE = Workload(jobs=5000)


def chance(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("load", [0.3, 0.8, 1.5])
def test_the_load_that_is_asked_for_is_offered(arrivals: str, load: float) -> None:
    trace = generate(replace(RECIPE, arrivals=ARRIVALS[arrivals], load=load), chance())

    assert offered_load(trace.jobs, RECIPE.cluster_gpus) == pytest.approx(load, rel=1e-6)
    assert trace.jobs[0].job.submit_s == MONDAY_S


def test_instead_of_a_load_the_time_between_jobs_may_be_asked_for() -> None:
    trace = generate(replace(RECIPE, interval_s=30.0), chance())

    assert trace.jobs[-1].job.submit_s - trace.jobs[0].job.submit_s == pytest.approx(30.0 * 4999)


def test_the_same_seed_gives_the_same_jobs_and_another_others() -> None:
    assert generate(RECIPE, chance(7)).jobs == generate(RECIPE, chance(7)).jobs
    assert generate(RECIPE, chance(7)).jobs != generate(RECIPE, chance(8)).jobs


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 300),
    st.sampled_from(sorted(ARRIVALS)),
    st.sampled_from(sorted(PRESETS)),
    st.floats(0.01, 10),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_every_recipe_gives_as_many_jobs_as_asked_in_order(
    jobs: int, arrivals: str, service: str, load: float, recurrence: float, seed: int
) -> None:
    recipe = replace(
        RECIPE, jobs=jobs, arrivals=ARRIVALS[arrivals], service=PRESETS[service], load=load, recurrence=recurrence
    )

    made = generate(recipe, chance(seed)).jobs

    assert [entry.job.sequence for entry in made] == list(range(jobs))
    assert all(before.job.submit_s <= after.job.submit_s for before, after in pairwise(made))
    assert all(entry.duration_s > 0 and entry.job.gpus <= 64 for entry in made)


@pytest.mark.parametrize(
    ("service", "median_s", "mean_s"),
    [
        (PRESETS["helios"], 222.0, 6652.0),  # the cut at one second lifts the median from 206 s
        (PRESETS["philly"], 1510.0, 28329.0),
        (PRESETS["tiresias"], 236.0, 499.6),
        (Lognormal(median_s=100.0, sigma=1.0), 100.0, 164.9),
        (Lognormal(median_s=100.0, sigma=0.0), 100.0, 100.0),
        (BoundedPareto(alpha=2.0, min_s=10.0, max_s=1e6), 14.1, 20.0),
        (Exponential(mean_s=100.0), 69.3, 100.0),
    ],
)
def test_durations_are_distributed_as_they_are_called(service: Service, median_s: float, mean_s: float) -> None:
    durations_s = service.quantile_s((np.arange(200_000) + 0.5) / 200_000)

    assert np.median(durations_s) == pytest.approx(median_s, rel=0.01)
    assert durations_s.mean() == pytest.approx(mean_s, rel=0.015)


def test_gpu_demands_come_as_often_as_the_mix_has_them() -> None:
    drawn = draw(replace(RECIPE, jobs=50_000, gpu_mix=((1, 7.0), (8, 3.0))), chance())

    assert (drawn.gpus == 8).mean() == pytest.approx(0.3, abs=0.01)


def test_working_hours_and_days_are_busier_than_nights_and_weekends() -> None:
    found = describe(generate(replace(RECIPE, jobs=50_000, arrivals=ARRIVALS["weekly"], interval_s=60.0), chance()))

    assert found.by_hour[15] > 4 * found.by_hour[4]
    assert found.by_day[1] > 1.7 * found.by_day[6]


def test_nothing_comes_in_hours_that_have_a_rate_of_nothing() -> None:
    nights_off = Arrivals(by_hour=(0.0,) * 8 + (1.0,) * 16)

    found = describe(
        generate(replace(RECIPE, arrivals=nights_off, interval_s=60.0, start_s=MONDAY_S + 10 * 3600), chance())
    )

    assert sum(found.by_hour[:8]) <= 1
    assert min(found.by_hour[8:]) > 100


def test_a_sweep_is_one_users_job_many_times_within_seconds() -> None:
    only_sweeps = Arrivals(burst_share=1.0, burst_jobs=20.0)

    jobs = generate(replace(RECIPE, arrivals=only_sweeps, interval_s=600.0), chance()).jobs

    close = [(a.job, b.job) for a, b in pairwise(jobs) if b.job.submit_s - a.job.submit_s < 1]
    same = [(a.user, a.name, a.gpus) == (b.user, b.name, b.gpus) for a, b in close]
    assert len(close) > 0.7 * len(jobs)
    assert sum(same) > 0.98 * len(same)


def test_a_name_that_recurs_tells_how_long_its_jobs_run() -> None:
    def spread_within(recurrence: float) -> float:
        drawn = draw(replace(RECIPE, recurrence=recurrence, growth=0.0), chance())
        kind = drawn.user * 100 + drawn.name * 10 + np.searchsorted([1, 2, 4, 8], drawn.gpus)
        logs = np.log(drawn.duration_s)
        within = [logs[kind == one].var() for one, count in Counter(kind.tolist()).items() if count > 20]
        return float(np.mean(within) / logs.var())

    assert spread_within(0.0) == pytest.approx(1.0, abs=0.05)
    assert spread_within(0.8) < 0.4
    assert spread_within(1.0) < 0.01


def test_large_jobs_run_longer_where_the_recipe_says_so() -> None:
    drawn = draw(replace(RECIPE, jobs=50_000, growth=0.5), chance())

    assert np.median(drawn.duration_s[drawn.gpus == 8]) > 3 * np.median(drawn.duration_s[drawn.gpus == 1])


def test_users_belong_to_one_virtual_cluster() -> None:
    jobs = generate(replace(RECIPE, vc_mix=(("a", 1.0), ("b", 3.0))), chance()).jobs

    assert Counter(entry.job.vc for entry in jobs)["b"] == pytest.approx(3750, abs=150)
    homes = {(entry.job.user, entry.job.vc) for entry in jobs}
    assert len(homes) == len({user for user, _ in homes})


@pytest.mark.parametrize(
    "change",
    [
        {"jobs": 0},
        {"gpu_mix": ()},
        {"gpu_mix": ((0, 1.0),)},
        {"gpu_mix": ((128, 1.0),)},
        {"vc_mix": ()},
        {"load": 0.0},
        {"load": -1.0},
        {"users": 0},
        {"recurrence": 1.5},
    ],
)
def test_a_recipe_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|too small"):
        replace(RECIPE, **change)  # type: ignore[arg-type]


def test_a_trace_of_more_than_a_century_is_refused() -> None:
    with pytest.raises(ConfigError, match="would last 431,995 years; ask for a higher load"):
        generate(replace(RECIPE, load=1e-7), chance())
