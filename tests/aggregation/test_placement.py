"""Which Aggregators hold which tasks: nobody loses too much, nobody has too much work, whatever comes and goes."""

import copy
import dataclasses
import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autops_exact import least_aggregators
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement, Profile, Refused
from farside.scheduler.sharing.aggregation.printed import PrintedPlacement
from farside.scheduler.sim.aggregation.drawn import drawn_mix
from tests.aggregation.mixes import check, held

PAPER = Limits(cycle_multiple=1, period_tolerance=0.0)
CYCLES = Limits(cycle_multiple=4, period_tolerance=0.0)
# docs/aggregation.md has the table of 300; so many show the same.
MIXES = pytest.mark.parametrize("mixes", [60, pytest.param(300, marks=pytest.mark.long)])
ROUNDING = 1e-9

jobs = st.builds(
    lambda number, iteration_s, load, weights, servers: Profile(
        job=f"job{number}",
        iteration_s=iteration_s,
        tasks_s=tuple(iteration_s * load * weight / sum(weights) for weight in weights),
        servers=servers,
    ),
    st.integers(0, 30),
    st.floats(0.05, 20),
    st.floats(0.01, 2.5),
    st.lists(st.floats(0.01, 10), min_size=1, max_size=12),
    st.integers(1, 3),
)
steps = st.lists(st.one_of(jobs, st.integers(0, 30)), max_size=25)


def placed(profiles: list[Profile], make: Callable[[], Placement]) -> Placement:
    placement = make()
    for profile in profiles:
        assert placement.add(profile) is None
    return placement


def assert_sound(placement: Placement) -> None:
    load, losses = check(placement.profiles, held(placement))
    assert load <= placement.limits.capacity + ROUNDING
    assert all(share < placement.limits.loss_limit for share in losses.values())
    assert placement.losses() == pytest.approx(losses)


@pytest.mark.parametrize("limits", [PAPER, CYCLES, Limits(cycle_multiple=2, period_tolerance=0.0, loss_limit=0.3)])
@given(steps=steps)
def test_whatever_comes_and_goes_nobody_is_overloaded_and_nobody_loses_too_much(
    limits: Limits, steps: list[Profile | int]
) -> None:
    placement = Placement(limits)
    for step in steps:
        before = len(placement.aggregators)
        if isinstance(step, int):
            if f"job{step}" not in placement.profiles:
                continue
            placement.leave(f"job{step}")
            assert len(placement.aggregators) <= before
        elif step.job not in placement.profiles:
            was = copy.deepcopy(held(placement))
            answer = placement.add(step)
            if answer is not None:
                assert held(placement) == was
            assert len(placement.aggregators) <= before + step.servers
        assert_sound(placement)
    assert all(aggregator.tasks for aggregator in placement.aggregators.values())


@given(seed=st.integers(0, 10_000), names=st.permutations(range(8)))
def test_names_of_jobs_change_nothing_but_names(seed: int, names: list[int]) -> None:
    profiles = drawn_mix(random.Random(seed), jobs=8, tensors=(5,))
    renamed = [
        Profile(job=f"other{name}", iteration_s=one.iteration_s, tasks_s=one.tasks_s)
        for name, one in zip(names, profiles, strict=True)
    ]

    ours, theirs = (placed(each, lambda: Placement(CYCLES)) for each in (profiles, renamed))

    for one, other in zip(profiles, renamed, strict=True):
        assert ours.owners(one.job) == theirs.owners(other.job)


def test_recycling_twice_moves_nothing_the_second_time() -> None:
    placement = placed(drawn_mix(random.Random(7)), lambda: Placement(CYCLES))
    placement.recycle()
    was = copy.deepcopy(held(placement))

    assert placement.recycle() == ()
    assert held(placement) == was


def test_a_job_that_leaves_takes_aggregators_along_that_others_can_do_without() -> None:
    placement = Placement(CYCLES)
    for number in range(4):
        placement.add(Profile(job=f"job{number}", iteration_s=1.0, tasks_s=(0.3, 0.3)))
    assert len(placement.aggregators) == 3

    placement.leave("job1")

    assert len(placement.aggregators) == 2
    assert_sound(placement)


def test_the_first_job_keeps_the_servers_that_it_asked_for() -> None:
    placement = Placement(CYCLES)
    placement.add(Profile(job="first", iteration_s=1.0, tasks_s=(0.2, 0.1, 0.1, 0.1), servers=2))
    placement.add(Profile(job="second", iteration_s=1.0, tasks_s=(0.2, 0.1, 0.1, 0.1), servers=2))

    assert placement.owners("first") == (0, 1, 1, 0)
    assert len(placement.aggregators) == 2


def test_a_job_gets_one_core_of_an_aggregator_that_has_more_and_others_get_the_rest() -> None:
    placement = Placement(Limits(capacity=4.0, job_capacity=1.0))
    half = Profile(job="half", iteration_s=1.0, tasks_s=(0.1,) * 9)
    too_much = Profile(job="wide", iteration_s=1.0, tasks_s=(0.1,) * 24)

    for job in (half, dataclasses.replace(half, job="other")):
        assert placement.add(job) is None
    refused = placement.add(too_much)
    spread = placement.add(dataclasses.replace(too_much, servers=3))

    assert placement.owners("other") == placement.owners("half") == (0,) * 9
    assert isinstance(refused, Refused)
    assert "ask for servers=3" in refused.reason
    assert spread is None
    assert sorted(Counter(placement.owners("wide")).values()) == [4, 10, 10]
    placement.recycle()  # would put all of it on one
    assert len(placement.aggregators) == 3


def test_a_job_whose_members_are_on_one_node_is_aggregated_there() -> None:
    placement = Placement(CYCLES)
    placement.add(Profile(job="wide", iteration_s=1.0, tasks_s=(0.5, 0.2), servers=2))
    near = Profile(job="near", iteration_s=1.0, tasks_s=(0.1, 0.1))

    placement.add(near, near=1)

    # The best fit would have been the other one.
    assert placement.owners("near") == (1, 1)


def test_a_job_is_kept_from_an_aggregator_that_it_did_badly_on() -> None:
    placement = Placement(CYCLES)
    placement.add(Profile(job="first", iteration_s=1.0, tasks_s=(0.2,)))

    placement.add(Profile(job="second", iteration_s=1.0, tasks_s=(0.2,)), forbidden=(0,))

    assert placement.owners("second") == (1,)


def test_a_task_larger_than_an_aggregator_is_refused_with_the_reason() -> None:
    placement = Placement(CYCLES)
    placement.add(Profile(job="first", iteration_s=1.0, tasks_s=(0.5,)))

    answer = placement.add(Profile(job="big", iteration_s=1.0, tasks_s=(1.2, 0.1), servers=9))

    assert isinstance(answer, Refused)
    assert "largest task takes 1.2 CPU seconds an iteration of 1 s" in answer.reason
    assert len(placement.aggregators) == 1


def test_a_job_that_asks_for_too_few_servers_is_told_how_many_it_needs() -> None:
    answer = Placement(CYCLES).add(Profile(job="big", iteration_s=1.0, tasks_s=(0.9, 0.9, 0.9), servers=1))

    assert isinstance(answer, Refused)
    assert "ask for servers=3" in answer.reason


def test_a_job_waits_where_its_servers_can_not_be_had() -> None:
    placement = Placement(CYCLES)
    placement.add(Profile(job="first", iteration_s=1.0, tasks_s=(0.8,)))

    answer = placement.add(Profile(job="second", iteration_s=1.0, tasks_s=(0.5,)), new_max=0)

    assert isinstance(answer, Refused)
    assert "0 of its 1 servers can be had" in answer.reason


@MIXES
def test_mixes_need_few_aggregators_and_none_is_overloaded_also_after_exits(mixes: int) -> None:
    counts: dict[int, list[int]] = {1: [], 4: []}
    for seed in range(mixes):
        profiles = drawn_mix(random.Random(seed))
        for multiple, found in counts.items():
            limits = Limits(cycle_multiple=multiple, period_tolerance=0.0)
            placement = placed(profiles, lambda limits=limits: Placement(limits))  # type: ignore[misc]
            found.append(len(placement.aggregators))
            assert_sound(placement)
            for one in profiles[:6]:
                placement.leave(one.job)
                assert_sound(placement)
    assert statistics.mean(counts[1]) <= 6.2
    assert statistics.mean(counts[4]) <= 4.8


@MIXES
def test_the_printed_rule_overloads_aggregators_and_breaks_its_own_limit(mixes: int) -> None:
    overloaded, at_limit = 0, list[int]()
    for seed in range(mixes):
        placement = placed(drawn_mix(random.Random(seed)), lambda: PrintedPlacement(PAPER))
        load, losses = check(placement.profiles, held(placement))
        overloaded += load > 1 + ROUNDING
        at_limit.append(sum(share >= PAPER.loss_limit for share in losses.values()))

    assert overloaded > 0.4 * mixes
    assert statistics.mean(at_limit) > 3


def test_the_printed_rule_breaks_the_limit_when_a_job_leaves() -> None:
    placement = PrintedPlacement(PAPER)
    for iteration_s in (12.0, 6.0, 4.0):
        placement.add(Profile(job=f"of {iteration_s:g}", iteration_s=iteration_s, tasks_s=(0.1,)))
    corrected = placed(list(placement.profiles.values()), lambda: Placement(PAPER))
    assert placement.losses() == corrected.losses() == {"of 12": 0, "of 6": 0, "of 4": 0}

    placement.leave("of 12")
    corrected.leave("of 12")

    assert placement.losses()["of 4"] == pytest.approx(1 / 3)
    assert corrected.losses()["of 4"] == 0


@pytest.mark.parametrize("mixes", [15, pytest.param(40, marks=pytest.mark.long)])
def test_small_mixes_need_at_most_15_percent_more_than_an_exact_solvers_bound(mixes: int) -> None:
    ratios = []
    for seed in range(mixes):
        profiles = drawn_mix(random.Random(seed), jobs=6, tensors=(8,))
        ours = len(placed(profiles, lambda: Placement(CYCLES)).aggregators)
        bound = least_aggregators(profiles, CYCLES)
        assert ours >= bound
        ratios.append(ours / bound)

    assert statistics.mean(ratios) <= 1.15


def test_a_job_that_would_lose_exactly_the_limit_gets_a_place_of_its_own_whatever_the_last_bits_say() -> None:
    """1 - 0.9 / 1.0 is 0.09999999999999998, and 1 - 0.99 / 1.1 is 0.10000000000000009: both lose a tenth."""
    for long_s, short_s in ((1.0, 0.9), (1.1, 0.99)):
        placement = Placement(Limits(loss_limit=0.1, period_tolerance=0.0, cycle_multiple=1))
        for job, iteration_s in (("a", long_s), ("b", short_s)):
            placement.add(Profile(job=job, iteration_s=iteration_s, tasks_s=(0.01,), servers=1))

        assert placement.losses() == {"a": 0.0, "b": 0.0}
