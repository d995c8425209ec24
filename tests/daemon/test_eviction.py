"""Batch eviction: who is asked, who goes, and the paper's figure."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eviction_curve import batch_success, random_success
from farside.daemon.slab.eviction import (
    MappedSlab,
    Victim,
    candidates,
    choose,
    is_asking_needed,
)


def slabs(*ages: float) -> tuple[MappedSlab, ...]:
    return tuple(MappedSlab(lease=number, leased_at_s=-age) for number, age in enumerate(ages))


def leases(victims: tuple[Victim, ...]) -> list[int]:
    return [victim.lease for victim in victims]


def test_e_plus_as_many_are_asked_unless_configured() -> None:
    mapped = slabs(*range(100))

    assert len(candidates(mapped, count=10, extra=-1, rng=random.Random(1))) == 20
    assert len(candidates(mapped, count=10, extra=3, rng=random.Random(1))) == 13
    assert len(candidates(mapped, count=80, extra=-1, rng=random.Random(1))) == 100


def test_nobody_is_asked_when_all_must_go() -> None:
    mapped = slabs(1, 2, 3)

    asked = candidates(mapped, count=3, extra=-1, rng=random.Random(1))

    assert asked == mapped
    assert not is_asking_needed(asked, 3)
    assert is_asking_needed(asked, 2)


def test_the_least_active_go() -> None:
    asked = slabs(1, 1, 1, 1)

    victims = choose(asked, {0: 30.0, 1: 0.5, 2: 100.0, 3: 2.0}, count=2)

    assert victims == (
        Victim(lease=1, reason="0.5 pages/s/GiB"),
        Victim(lease=3, reason="2.0 pages/s/GiB"),
    )


def test_silence_does_not_keep_a_slab() -> None:
    victims = choose(slabs(1, 1, 1), {0: 0.0, 2: 5.0}, count=1)

    assert victims == (Victim(lease=1, reason="activity not known"),)


def test_of_equally_active_slabs_the_oldest_goes() -> None:
    assert leases(choose(slabs(5, 9, 7), {0: 0.0, 1: 0.0, 2: 0.0}, count=2)) == [1, 2]


ACTIVITY = st.dictionaries(st.integers(0, 40), st.floats(0, 1e6), max_size=40)


@given(ages=st.lists(st.floats(0, 100), max_size=40), activity=ACTIVITY, count=st.integers(0, 50), data=st.data())
def test_the_order_of_candidates_does_not_matter(
    ages: list[float], activity: Mapping[int, float], count: int, data: st.DataObject
) -> None:
    asked = slabs(*ages)
    shuffled = tuple(data.draw(st.permutations(asked)))

    victims = choose(asked, activity, count=count)

    assert choose(shuffled, activity, count=count) == victims
    assert len(victims) == min(count, len(asked))


@given(ages=st.lists(st.floats(0, 100), min_size=1, max_size=40), activity=ACTIVITY, count=st.integers(0, 50))
def test_no_survivor_is_less_active_than_a_victim(ages: list[float], activity: Mapping[int, float], count: int) -> None:
    gone = set(leases(choose(slabs(*ages), activity, count=count)))
    kept = set(range(len(ages))) - gone

    assert all(activity.get(a, -1) <= activity.get(b, -1) for a in gone for b in kept)


@given(
    ages=st.lists(st.floats(0, 100), max_size=60),
    count=st.integers(0, 60),
    extra=st.integers(-1, 60),
    seed=st.integers(0, 9),
)
def test_candidates_are_mapped_slabs_each_once(ages: list[float], count: int, extra: int, seed: int) -> None:
    mapped = slabs(*ages)

    asked = candidates(mapped, count=count, extra=extra, rng=random.Random(seed))

    assert len(set(asked)) == len(asked)
    assert set(asked) <= set(mapped)
    assert asked == candidates(mapped[::-1], count=count, extra=extra, rng=random.Random(seed))


@pytest.mark.parametrize(("extra", "busy", "expected"), [(0, 0.5, 0.5**10), (10, 0.5, 0.588099), (10, 1.0, 0.0)])
def test_figure_2_7(extra: int, busy: float, expected: float) -> None:
    assert batch_success(10, extra, busy) == pytest.approx(expected, abs=1e-6)


def test_asking_nobody_more_is_random_eviction() -> None:
    for busy in (0.0, 0.1, 0.5, 0.9):
        assert batch_success(10, 0, busy) == pytest.approx(random_success(10, busy))


@given(busy=st.floats(0, 1), extra=st.integers(0, 20))
def test_asking_one_more_never_hurts(busy: float, extra: int) -> None:
    assert batch_success(10, extra + 1, busy) >= batch_success(10, extra, busy) - 1e-12


def test_the_policy_itself_does_as_well_as_the_formula_says() -> None:
    rng, busy, trials = random.Random(7), 0.4, 2000
    lucky = 0
    for _ in range(trials):
        mapped = slabs(*([1.0] * 200))
        activity = {slab.lease: 100.0 if rng.random() < busy else 0.0 for slab in mapped}
        asked = candidates(mapped, count=10, extra=5, rng=rng)
        lucky += all(activity[victim.lease] == 0 for victim in choose(asked, activity, count=10))

    assert lucky / trials == pytest.approx(batch_success(10, 5, busy), abs=0.04)
