"""The workloads that have a name: the paper's figures, and the traces that come with Farside."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from farside.errors import ConfigError
from farside.scheduler.sim.trace.bins import SCALED
from farside.scheduler.sim.trace.describe import offered_load
from farside.scheduler.sim.trace.format.source import builtin_names
from farside.scheduler.sim.trace.read import read_trace
from farside.scheduler.sim.trace.write import write_trace
from farside.scheduler.sim.workload.catalog import NAMES, TIRESIAS_480, WORKLOADS, named, tiresias_480

SEED = 1


@pytest.fixture(params=range(3))
def jobs(request: pytest.FixtureRequest) -> list[tuple[int, float, str, int, float]]:
    made = tiresias_480(np.random.default_rng(request.param)).jobs
    return [(e.job.gpus, e.duration_s, e.job.model, e.job.parameter_servers, e.job.submit_s) for e in made]


Jobs = list[tuple[int, float, str, int, float]]


def test_the_papers_jobs_have_its_gpus_models_and_parameter_servers(jobs: Jobs) -> None:
    assert Counter(gpus for gpus, *_ in jobs) == {1: 240, 2: 40, 4: 80, 8: 90, 16: 25, 32: 5}
    assert set(Counter(model for _, _, model, *_ in jobs).values()) == {48}
    assert all(servers == (gpus if gpus > 1 else 0) for gpus, _, _, servers, _ in jobs)


def test_the_papers_jobs_run_two_minutes_to_two_hours_and_come_every_half_minute(jobs: Jobs) -> None:
    submit_s = [at for *_, at in jobs]

    assert all(120 <= duration_s <= 7200 for _, duration_s, *_ in jobs)
    assert submit_s[0] == 0
    assert submit_s[-1] == pytest.approx(479 * 30, abs=1)
    gaps = np.diff(submit_s)
    assert gaps.std() == pytest.approx(30, rel=0.2)  # as a Poisson process has it


def test_the_bins_of_the_papers_jobs_are_as_near_its_table_as_its_gpus_allow(jobs: Jobs) -> None:
    table_pct = {"SS": 63.5, "SL": 12.5, "LS": 16.5, "LL": 7.5}

    bins = Counter(SCALED.of(gpus, duration_s) for gpus, duration_s, *_ in jobs)

    assert bins == {"SS": 302, "SL": 58, "LS": 82, "LL": 38}
    assert all(abs(bins[name] / 4.80 - share) < 0.6 for name, share in table_pct.items())
    # No split of 360 small and 120 large jobs is nearer to the table at its worst bin.
    worst = min(
        max(
            abs(count / 4.80 - share) for count, share in zip((s, 360 - s, x, 120 - x), table_pct.values(), strict=True)
        )
        for s in range(361)
        for x in range(121)
    )
    assert max(abs(bins[name] / 4.80 - share) for name, share in table_pct.items()) == pytest.approx(worst)


def test_the_papers_jobs_fit_what_the_text_says_of_their_lengths(jobs: Jobs) -> None:
    small_short = [duration_s for gpus, duration_s, *_ in jobs if SCALED.of(gpus, duration_s) == "SS"]
    gpu_s = sum(gpus * duration_s for gpus, duration_s, *_ in jobs)

    assert np.mean(small_short) == pytest.approx(268, abs=3)
    assert 0.75 < gpu_s / (60 * 27_400) < 0.95


def test_each_workload_that_has_a_name_comes_with_farside() -> None:
    assert set(builtin_names()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_with_farside_is_what_its_seed_gives(name: str, tmp_path: Path) -> None:
    write_trace(named(name, np.random.default_rng(SEED)), tmp_path / "made.csv")

    assert read_trace(tmp_path / "made.csv").jobs == read_trace(Path(f"builtin:{name}")).jobs


@pytest.mark.parametrize("name", WORKLOADS)
def test_recipes_offer_their_load(name: str) -> None:
    jobs = read_trace(Path(f"builtin:{name}")).jobs

    assert offered_load(jobs, WORKLOADS[name].cluster_gpus) == pytest.approx(WORKLOADS[name].load, abs=1e-6)


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(ConfigError, match=r"no workload 'philly'; did you mean 'philly-like'\?"):
        named("philly", np.random.default_rng(SEED))
    assert TIRESIAS_480 in NAMES


def test_a_trace_that_does_not_come_with_farside_is_told() -> None:
    with pytest.raises(ConfigError, match="no trace 'tiresias480' comes with Farside; did you mean 'tiresias-480'"):
        read_trace(Path("builtin:tiresias480"))
