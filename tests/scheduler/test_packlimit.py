"""PACKLIMIT from made-up histories whose truth is known."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import MODELS
from farside.scheduler.placement import slowdown_sample
from farside.scheduler.placement.packlimit import learn_packlimit
from farside.scheduler.placement.random import Random
from farside.scheduler.placement.skew import LARGEST_OF_THE_EVEN, PACKLIMIT, SMALLEST_OF_THE_SKEWED, Skew
from farside.scheduler.placement.slowdown_sample import HISTORY, OF_ONE_USER, Sample, SampleWindow
from farside.scheduler.sim.cluster import build_site
from farside.scheduler.sim.experiment import make_experiments
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.workload.catalog import named
from farside.scheduler.slowdown import SpreadSlowdown, spread_of
from farside.scheduler.state import Demand, Job, Node

GAP = (LARGEST_OF_THE_EVEN, SMALLEST_OF_THE_SKEWED)


def history(seed: int, *, jobs: int = 400, noise: float = 0.03, spread_share: float = 0.6) -> list[Sample]:
    """Jobs of Table 3.3's models, some spread, slowed as the stated effect has it, measured with an error."""
    rng, effect = random.Random(seed), SpreadSlowdown()
    found = []
    for _ in range(jobs):
        model = rng.choice(MODELS)
        spread = rng.uniform(0.3, 1.0) if rng.random() < spread_share else 0.0
        skewed = max(0.0, (model.skew - effect.even_skew) / (effect.full_skew - effect.even_skew))
        speed = 1 / (1 + (effect.largest_slowdown - 1) * skewed * spread)
        found.append(Sample(skew=model.skew, spread=spread, speed=speed * (1 + rng.gauss(0, noise))))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_the_gap_of_table_3_3_is_found(seed: int) -> None:
    learned = learn_packlimit(history(seed), current=0.9)

    assert learned.is_learned
    assert GAP[0] < learned.packlimit < GAP[1]


@pytest.mark.parametrize("spread_share", [0.05, 0.5, 1.0])
def test_it_is_found_however_many_jobs_were_spread(spread_share: float) -> None:
    learned = learn_packlimit(history(1, jobs=2000, spread_share=spread_share), current=0.9)

    assert GAP[0] < learned.packlimit < GAP[1]


def test_without_noise_it_is_the_middle_of_the_gap() -> None:
    exact = [Sample(skew=model.skew, spread=1.0, speed=0.7 if model.skew > PACKLIMIT else 1.0) for model in MODELS]

    learned = learn_packlimit(exact, current=0.9)

    assert learned.mistaken == 0
    assert learned.packlimit == pytest.approx(PACKLIMIT, abs=0.01)


def test_another_cluster_has_another_limit() -> None:
    """Where the network is worse, models of a skew of 8 % suffer too."""
    exact = [Sample(skew=model.skew, spread=1.0, speed=0.7 if model.skew > 0.08 else 1.0) for model in MODELS]

    learned = learn_packlimit(exact, current=PACKLIMIT)

    assert 0.053 < learned.packlimit < 0.086


def test_the_order_of_the_history_does_not_matter() -> None:
    jobs = history(3)

    assert learn_packlimit(jobs, current=0.5) == learn_packlimit(jobs[::-1], current=0.5)


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_with_one_kind_of_jobs_it_stays(speed: float) -> None:
    learned = learn_packlimit([Sample(skew=0.5, spread=1.0, speed=speed)] * 20, current=0.4)

    assert not learned.is_learned
    assert learned.packlimit == 0.4


def test_without_a_history_it_stays() -> None:
    assert learn_packlimit([], current=0.4).packlimit == 0.4


def test_where_skew_tells_nothing_it_stays() -> None:
    backwards = [Sample(skew=model.skew, spread=1.0, speed=0.7 if model.skew < 0.3 else 1.0) for model in MODELS]

    learned = learn_packlimit(backwards, current=0.4)

    assert not learned.is_learned
    assert learned.packlimit == 0.4
    assert "skew does not tell" in learned.reason


def test_jobs_placed_at_random_teach_it() -> None:
    effect, nodes = SpreadSlowdown(), [Node(name=f"n{at}", gpus=4) for at in range(15)]
    samples = []
    for seed in range(200):
        job = Job(job_id=str(seed), sequence=seed, submit_s=0, gpus=8, model=MODELS[seed % 10].name)
        ledger = Ledger(nodes)
        allocation = Random(seed=seed).place(ledger, Demand(gpus=8))
        assert allocation is not None
        samples.append(
            Sample(
                skew=MODELS[seed % 10].skew,
                spread=spread_of(job, allocation, ledger),
                speed=effect.speed(job, allocation, ledger),
            )
        )

    assert GAP[0] < learn_packlimit(samples, current=0.9).packlimit < GAP[1]


# ---------------------------------------------------------------------- in a simulation


def run_480(settings: Mapping[str, str]) -> tuple[Simulation, float]:
    """The paper's workload under 2D-LAS with a place's effect; the placement's domain afterwards, and average JCT."""
    jobs = named("tiresias-480", np.random.default_rng(1)).jobs
    (experiment,) = make_experiments(("las",), {"effect": "spread", **settings}, placement="skew")
    simulation = experiment.simulation(build_site(nodes=15, gpus_per_node=4), jobs)
    runs = simulation.run()
    return simulation, sum(run.end_s - job.job.submit_s for run, job in zip(runs, jobs, strict=True)) / len(jobs)


def packlimit_of(simulation: Simulation) -> float:
    placement = simulation.domains[""].rules.placement
    assert isinstance(placement, Skew)
    return placement.packlimit


def test_a_limit_that_is_far_too_high_is_mended_by_what_the_clusters_jobs_went_through() -> None:
    simulation, average_s = run_480({"packlimit": "1", "relearn_jobs": "20"})
    _, unmended_s = run_480({"packlimit": "1"})

    assert GAP[0] < packlimit_of(simulation) < GAP[1]
    assert average_s < unmended_s


def test_it_stays_as_given_unless_it_is_asked_to_learn() -> None:
    simulation, _ = run_480({"packlimit": "1"})

    assert packlimit_of(simulation) == 1.0
    assert not simulation.domains[""].history.samples


def test_where_nobody_is_slowed_it_stays() -> None:
    simulation, _ = run_480({"packlimit": "0.9", "relearn_jobs": "20", "effect": "none"})

    assert packlimit_of(simulation) == 0.9
    assert simulation.domains[""].history.samples


def test_it_is_time_to_learn_after_each_so_many_jobs() -> None:
    placement = Skew(packlimit=0.9, relearn_jobs=100)
    jobs = history(2)

    assert placement.learn(jobs[:99], 99) is placement
    assert placement.learn(jobs[:100], 100).packlimit < 0.9
    assert placement.learn(jobs[:101], 101) is placement


# ---------------------------------------------------------------------- whose samples count


def test_who_tells_much_pushes_out_own_samples_alone() -> None:
    window = SampleWindow()
    others = [Sample(skew=0.1, spread=1.0, speed=1.0, user=f"u{at % 10}") for at in range(5 * OF_ONE_USER)]
    flood = [Sample(skew=0.2, spread=1.0, speed=1 / (2 + at), user="eve") for at in range(3 * HISTORY)]
    for one in (*others, *flood):
        window.add(one)

    assert [*window] == [*others, *flood[-OF_ONE_USER:]]
    assert window.seen == len(others) + len(flood)


def test_of_samples_that_nobody_told_and_of_many_users_the_newest_count() -> None:
    for users in ([""], [f"u{at}" for at in range(HISTORY)]):
        window = SampleWindow()
        samples = [Sample(skew=0.1, spread=at / 3000, speed=1.0, user=users[at % len(users)]) for at in range(3000)]
        for one in samples:
            window.add(one)

        assert [*window] == samples[-HISTORY:]


@given(st.lists(st.sampled_from(["", "ann", "bob", "eve"]), max_size=60))
def test_one_more_sample_pushes_out_the_oldest_of_its_user_or_of_all(users: list[str]) -> None:
    expected: list[tuple[str, float]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slowdown_sample, "HISTORY", 8)
        patch.setattr(slowdown_sample, "OF_ONE_USER", 3)
        window = SampleWindow()
        for at, user in enumerate(users):
            own = [one for one in expected if one[0] == user]
            if user and len(own) == 3:
                expected.remove(own[0])
            elif len(expected) == 8:
                del expected[0]
            expected.append((user, float(at)))
            window.add(Sample(skew=0.1, spread=float(at), speed=1.0, user=user))

            assert [(one.user, one.spread) for one in window] == expected
