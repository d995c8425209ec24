"""The whole cluster's Aggregators: clusters of them, their number over time, and jobs that wait."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Profile, Refused
from farside.scheduler.sharing.aggregation.pool import Pool, PoolSettings, Waits
from farside.scheduler.sim.aggregation.drawn import drawn_mix
from tests.aggregation.mixes import check, held

LIMITS = Limits(cycle_multiple=4, period_tolerance=0.0)


def job(name: str, *tasks_s: float, servers: int = 1) -> Profile:
    return Profile(job=name, iteration_s=1.0, tasks_s=tasks_s, servers=servers)


def pool(**settings: int) -> Pool:
    return Pool(LIMITS, PoolSettings(**settings))


def test_what_becomes_empty_is_kept_until_the_period_ends() -> None:
    one = pool()
    one.arrive(0, job("a", 0.9))
    one.arrive(0, job("b", 0.9))
    assert (one.used, one.held) == (2, 2)

    one.leave(10, "a")
    assert (one.used, one.held) == (1, 2)
    # Of 300 s the second was needed for 10: two on average, rounded up.
    one.end_period(300)
    assert one.held == 2
    one.end_period(600)

    assert (one.used, one.held) == (1, 1)


def test_an_aggregator_in_reserve_is_used_before_a_new_one() -> None:
    one = pool()
    one.arrive(0, job("a", 0.9))
    one.arrive(0, job("b", 0.9))
    one.leave(1, "a")

    one.arrive(2, job("c", 0.9))

    assert (one.used, one.held) == (2, 2)


def test_a_job_that_lacks_few_aggregators_waits_for_the_period_and_one_that_lacks_many_does_not() -> None:
    one = pool(on_demand_min=2)

    assert isinstance(one.arrive(0, job("small", 0.9)), Waits)
    assert one.leave(1, "small") == []
    assert one.arrive(2, job("large", 0.9, 0.9, servers=2)) is None
    answer = one.arrive(3, job("small", 0.9))
    assert isinstance(answer, Waits)
    assert "at the end of the period" in answer.reason
    assert one.end_period(300) == ["small"]
    assert one.held == 3


def test_a_job_is_admitted_only_if_all_its_servers_could_be_given() -> None:
    one = pool(servers_max=3)
    one.arrive(0, job("a", 0.3, 0.3, servers=2))

    answer = one.arrive(1, job("b", 0.1, servers=2))
    behind = one.arrive(2, job("c", 0.1))

    assert isinstance(answer, Waits)
    assert "1 of 3 Aggregators are free" in answer.reason
    assert isinstance(behind, Waits)
    assert "1 jobs that came before it" in behind.reason
    assert one.leave(3, "a") == ["b", "c"]


def test_a_job_that_never_fits_is_refused_and_holds_up_nobody() -> None:
    one = pool(servers_max=2, cluster_max=4)

    assert isinstance(one.arrive(0, job("wide", 0.1, servers=3)), Refused)
    assert isinstance(one.arrive(0, job("wider", 0.1, servers=5)), Refused)
    assert isinstance(one.arrive(0, job("big", 1.5)), Refused)
    assert one.arrive(0, job("a", 0.5)) is None


def test_a_job_is_whole_in_the_cluster_that_it_fits_best() -> None:
    one = pool(cluster_max=1)
    one.arrive(0, job("a", 0.5))
    one.arrive(0, job("b", 0.8))
    assert len(one.clusters) == 2

    one.arrive(0, job("c", 0.1))
    one.arrive(0, job("d", 0.3))

    assert one.placed()["c"] is one.placed()["b"]
    assert one.placed()["d"] is one.placed()["a"]


@pytest.mark.parametrize("wrong", [{"cluster_max": 0}, {"servers_max": 0}, {"on_demand_min": 0}])
def test_a_setting_out_of_bounds_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PoolSettings(**wrong)


@given(
    seed=st.integers(0, 1000),
    cluster_max=st.integers(1, 4),
    servers_max=st.integers(1, 12),
    exits=st.lists(st.integers(0, 11), max_size=20),
)
def test_no_pool_gives_more_than_it_has_and_no_cluster_is_unsound(
    seed: int, cluster_max: int, servers_max: int, exits: list[int]
) -> None:
    one = Pool(LIMITS, PoolSettings(cluster_max=cluster_max, servers_max=servers_max, on_demand_min=1))
    jobs = drawn_mix(random.Random(seed), tensors=(6,))
    for at_s, profile in enumerate(jobs):
        one.arrive(at_s, profile)
    for at_s, number in enumerate(exits, len(jobs)):
        one.leave(at_s, jobs[number].job)
        if at_s % 3 == 0:
            one.end_period(at_s)
        assert one.used == sum(len(cluster.aggregators) for cluster in one.clusters)
        assert one.used <= servers_max
        for cluster in one.clusters:
            assert 0 < len(cluster.aggregators) <= cluster_max
            load, losses = check(cluster.profiles, held(cluster))
            assert load <= 1 + 1e-9
            assert all(loss < LIMITS.loss_limit for loss in losses.values())
        assert one.placed().keys() == {name for cluster in one.clusters for name in cluster.profiles}
