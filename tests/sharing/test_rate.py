"""What is planned for a rate, and when rates count as changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.rate import (
    Cause,
    RateSettings,
    Tracked,
    kept,
    planned,
    planned_rate,
    poisson_bound,
    poisson_quantile,
    tick,
    tracked,
)

SETTINGS = RateSettings()


def run(state: Tracked, counts: list[int], *, since_s: float = 0.0, drops: int = 0) -> tuple[Tracked, list[Cause]]:
    causes: list[Cause] = []
    for at, count in enumerate(counts):
        now_s = since_s + (at + 1) * SETTINGS.tick_s
        state, cause = tick(state, {"a": count}, {"a": drops}, now_s, SETTINGS)
        if cause is not None:
            causes.append(cause)
            state = planned(state, now_s, SETTINGS, cause)
    return state, causes


@pytest.mark.parametrize(("rate", "expected"), [(0, 0), (100, 125), (200, 235), (600, 660)])
def test_a_rate_is_planned_with_room_for_what_a_second_may_bring(rate: float, expected: float) -> None:
    assert planned_rate(rate) == pytest.approx(expected)


@given(rate=st.floats(1e-6, 549.0))
def test_small_rates_end_and_count_that_nothing_may_come(rate: float) -> None:
    # The authors' code leaves out P(0) and never ends below 4.6 requests a second.
    assert planned_rate(rate) > rate


@given(mean=st.floats(0.01, 500), share=st.floats(0.5, 0.9999))
def test_a_quantile_never_falls_with_its_share(mean: float, share: float) -> None:
    assert poisson_quantile(mean, share) >= poisson_quantile(mean, share / 2)


def test_bounds_of_large_rates_go_on_from_those_of_small_ones() -> None:
    assert poisson_bound(551.0, 1e4) == pytest.approx(poisson_bound(549.0, 1e4), rel=0.01)


def test_a_steady_rate_changes_nothing() -> None:
    _, causes = run(tracked({"a": 100.0}), [50] * 200)

    assert causes == []


@pytest.mark.parametrize("rate", [5.0, 20.0, 60.0, 200.0])
def test_a_steady_rate_leads_to_few_plans(rate: float) -> None:
    # Each may be another plan, whose executors start beside those that serve. The mean of two seconds alone led to one
    # in two to three periods.
    periods = 720
    counts = np.random.default_rng(7).poisson(
        rate * SETTINGS.tick_s, round(periods * SETTINGS.period_s / SETTINGS.tick_s)
    )

    _, causes = run(tracked({"a": rate}), [int(count) for count in counts])

    assert len(causes) < periods / 4


def test_a_step_is_seen_within_a_second() -> None:
    state, causes = run(tracked({"a": 100.0}), [50] * 12)
    assert causes == []

    _, causes = run(state, [110, 110], since_s=6.0)

    assert causes == ["burst"]


def test_a_step_that_no_half_second_shows_alone_is_a_burst_within_seconds() -> None:
    # Planned are 34.65 requests a second for 22 that are asked for; 44 come, with no drop yet.
    state, _ = run(tracked({"a": 22.0}), [11] * 12)

    state, causes = run(state, [22, 23, 24, 21, 25, 23, 22, 24, 23, 23, 24, 23], since_s=6.0)

    assert causes == ["burst"]
    assert state.targets["a"] >= 44


@pytest.mark.parametrize("rate", [1.0, 5.0, 20.0, 100.0, 1000.0])
def test_chance_alone_hardly_ever_looks_like_a_step(rate: float) -> None:
    rng = np.random.default_rng(5)

    _, causes = run(tracked({"a": rate}), [int(one) for one in rng.poisson(rate / 2, 7200)])

    assert causes.count("burst") <= 2, "in an hour"


def test_one_busy_half_second_is_no_burst() -> None:
    _, causes = run(tracked({"a": 100.0}), [50] * 12 + [110] + [50] * 6)

    assert causes == []


def test_early_plans_come_at_most_every_five_seconds() -> None:
    # Each plan follows the rate, so only a rate that doubles again is a burst again.
    _, causes = run(tracked({"a": 100.0}), [50] * 12 + [110] * 4 + [500] * 30)

    assert causes.count("burst") == 2


def test_drops_ask_for_a_plan_before_the_period_ends() -> None:
    state, _ = run(tracked({"a": 100.0}), [50] * 12)

    _, causes = run(state, [50], since_s=6.0, drops=4)

    assert causes == ["drops"]


def test_a_plan_that_was_made_while_rates_still_rose_is_followed_by_another_one_after_five_seconds() -> None:
    """The step comes with drops: by then a single half second has it, which may be chance at so few requests."""
    before, _ = run(tracked({"a": 10.0}), [5] * 12)

    state, causes = run(before, [10], since_s=6.0, drops=4)
    assert causes == ["drops"]
    assert state.targets["a"] < 15

    state, causes = run(state, [10] * 20, since_s=6.5)
    assert causes == ["rise"]
    assert state.targets["a"] == 20


def test_a_step_that_was_no_change_yet_is_looked_at_again_in_two_seconds() -> None:
    """Not in five: nothing that the decision changed has to come to rest."""
    before, _ = run(tracked({"a": 10.0}), [5] * 12)
    state, causes = run(before, [10], since_s=6.0, drops=4)
    assert causes == ["drops"]

    state, causes = run(kept(state, 6.5, SETTINGS), [10] * 4, since_s=6.5)

    assert causes == ["rise"]
    assert state.targets["a"] == 20


def test_a_first_plan_for_a_step_has_all_of_it_also_for_models_that_no_burst_is_seen_of() -> None:
    counts = {"a": [50] * 20 + [100] * 2, "b": [15] * 20 + [30] * 2}
    state = tracked({"a": 100.0, "b": 30.0})
    for at in range(22):
        came = {name: of[at] for name, of in counts.items()}
        state, cause = tick(state, came, {}, (at + 1) * SETTINGS.tick_s, SETTINGS)
        assert (cause == "burst") == (at == 21)

    assert planned(state, 11.0, SETTINGS, "burst").targets == {"a": 200.0, "b": 60.0}


def test_a_decision_of_a_period_that_changes_nothing_is_not_looked_at_again() -> None:
    state = planned(tracked({"a": 100.0}), 20.0, SETTINGS, "period")

    assert kept(state, 20.0, SETTINGS) == state


def test_what_rose_for_a_moment_only_is_not_planned_for_again() -> None:
    before, _ = run(tracked({"a": 100.0}), [50] * 12)

    _, causes = run(before, [110, 110, *[50] * 20], since_s=6.0)

    assert causes == ["burst"]


def test_a_rise_that_nobody_could_plan_for_at_once_is_told_until_somebody_does() -> None:
    state, _ = run(tracked({"a": 10.0}), [5] * 12)
    state, _ = run(state, [10], since_s=6.0, drops=4)

    causes = []
    for at in range(14):
        state, cause = tick(state, {"a": 10}, {"a": 0}, 7.0 + 0.5 * at, SETTINGS)
        causes.append(cause)

    assert causes == [*[None] * 9, *["rise"] * 5]


@pytest.mark.parametrize(
    ("count", "drops", "found_at_s", "cause"),
    [(25, 0, 20.0, "period"), (90, 0, 5.0, "burst"), (50, 4, 5.0, "drops")],
)
def test_a_cause_that_is_found_while_a_change_is_made_is_told_until_a_plan_may_follow(
    count: int, drops: int, found_at_s: float, cause: Cause
) -> None:
    state, told_at_s = tracked({"a": 100.0}), list[float]()

    for at in range(1, 61):
        state, seen = tick(state, {"a": count}, {"a": drops}, at * SETTINGS.tick_s, SETTINGS)
        if seen == cause:
            told_at_s.append(at * SETTINGS.tick_s)

    assert told_at_s == [found_at_s + at * SETTINGS.tick_s for at in range(len(told_at_s))]
    assert told_at_s[-1] == 30.0


def test_a_rate_that_falls_is_followed_by_the_slow_average_at_the_end_of_a_period() -> None:
    state, causes = run(tracked({"a": 100.0}), [25] * 40)

    assert causes == ["period"]
    assert 50 < state.targets["a"] < 90


def test_a_model_that_is_not_asked_for_is_counted_as_well() -> None:
    state = tracked({"a": 100.0, "b": 1.0})

    state, _ = tick(state, {"a": 50}, {}, 0.5, SETTINGS)

    assert state.models["b"].slow < 1.0
