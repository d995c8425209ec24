"""Policies on made series: what they keep, and that they know nothing of the future."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.catalog import POLICIES, Question, prepare
from farside.scheduler.energy.ces import Ces, CesSettings
from farside.scheduler.energy.helios_policy import Outlook, Paper, PaperSettings
from farside.scheduler.energy.simple_policies import AllOn, KeepRecent
from farside.scheduler.sim.energy.replay import Played, figures, play
from farside.scheduler.sim.energy.saving import Power, co2_kg_a_year, kwh_a_year
from tests.support.busy_nodes import series_of, wandering

STEP_S = 600.0


def keep(buffer_nodes: float, hours: float = 1 / 6) -> KeepRecent:
    return KeepRecent(buffer_nodes=buffer_nodes, keep_s=hours * 3600, step_s=STEP_S)


def ces(series: NodeSeries, **told: float) -> Ces:
    return Ces(settings=CesSettings(**told), step_s=STEP_S, total=float(series.total[0]))  # type: ignore[arg-type]


def test_nobody_sleeps_without_a_policy() -> None:
    came = figures(play(AllOn(), wandering(2), 0, 288))

    assert (came.sleeping_nodes, came.wakeups_per_day, came.short_nodes) == (0, 0, 0)
    assert came.utilisation_before == came.utilisation_after


def test_vanilla_keeps_what_is_busy_and_its_buffer() -> None:
    played = play(keep(2), series_of([10, 10, 5, 5]), 0, 4)

    # What falls asleep at the end of an interval sleeps in the next.
    assert played.powered.tolist() == [100, 12, 12, 7]


def test_missing_nodes_are_woken_at_once_with_the_buffer() -> None:
    played = play(keep(2), series_of([10, 10, 15, 15]), 0, 4)

    assert played.short.tolist() == [0, 0, 3, 0]
    assert played.woken.tolist() == [0, 0, 5, 0]
    assert played.powered.tolist() == [100, 12, 17, 17]


def test_a_boot_that_takes_longer_leaves_jobs_without_nodes_for_longer() -> None:
    series = series_of([10, 10, 15, 15, 15, 15])

    came = figures(play(keep(2), series, 0, 6, boot_s=1500), boot_s=1500)

    assert (came.short_intervals, came.short_nodes) == (3, 9)
    assert came.wakeups_per_day == pytest.approx(1 / (6 / 144))
    assert came.delayed_node_s == 9 * 600


def test_nodes_that_join_come_awake() -> None:
    series = series_of([10, 10, 30, 30])
    series.total[2:] = 125

    played = play(keep(0), series, 0, 4)

    assert played.powered.tolist() == [100, 10, 35, 30]
    assert played.short.tolist() == [0, 0, 0, 0]


def test_nodes_that_leave_do_not_sleep_twice() -> None:
    series = series_of([10, 10, 10])
    series.total[1:] = 12

    played = play(keep(0), series, 0, 3)

    assert played.powered.tolist() == [100, 10, 10]


def test_the_two_line_rule_remembers_for_as_long_as_it_was_told() -> None:
    played = play(keep(1, hours=0.5), series_of([9, 5, 5, 5, 5]), 0, 5)

    assert played.powered.tolist() == [100, 10, 10, 10, 6]


def falling_paper(series: NodeSeries, near: float, **told: float) -> Paper:
    count = len(series)
    outlook = Outlook(near=np.full(count, near), far=np.full(count, near))
    return Paper(settings=PaperSettings(buffer_nodes=2, **told), outlook=outlook, step_s=STEP_S)  # type: ignore[arg-type]


def test_the_paper_sleeps_only_when_both_trends_fall() -> None:
    series = series_of([20, 20, 20, 10, 10])

    falls = play(falling_paper(series, near=5), series, 0, 5)
    rises = play(falling_paper(series, near=15), series, 0, 5)

    assert falls.powered.tolist() == [100, 22, 22, 22, 12]
    assert rises.powered.tolist() == [100, 22, 22, 22, 22]


def test_the_paper_holds_after_a_wake_up() -> None:
    series = series_of([10, 30, 10, 10, 10, 5])

    held = play(falling_paper(series, near=0, hold_s=1800), series, 0, 6)

    assert held.powered.tolist() == [100, 32, 32, 32, 32, 32]
    assert held.reasons[2] == "held after a wake-up"


def test_the_paper_cuts_nothing_that_is_not_worth_it() -> None:
    series = series_of([20, 20, 20, 18, 18])

    played = play(falling_paper(series, near=0, cut_nodes=5), series, 0, 5)

    assert played.powered.tolist() == [100, 22, 22, 22, 22]


def scrambled(series: NodeSeries, step: int, seed: int) -> NodeSeries:
    """The same past, another future."""
    active = series.active.copy()
    np.random.default_rng(seed).shuffle(active[step:])
    return series_of(np.clip(active + np.where(np.arange(len(active)) >= step, 7, 0), 0, 100))


CAUSAL: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("none", {}),
    ("vanilla", {}),
    ("rule", {"buffer_nodes": "5"}),
    ("rule", {"wakeups_per_day": "1"}),
    ("ces", {"wakeups_per_day": "1"}),
    ("ces", {"short_nodes_per_day": "3"}),
    ("ces", {"wakeups_per_day": "1", "forecast": "true"}),
    ("paper", {"buffer_nodes": "5"}),
    ("paper", {"buffer_nodes": "5", "features": "lags"}),
)


def decisions(name: str, told: Mapping[str, str], series: NodeSeries) -> Played:
    question = Question(series=series, train_to=1000, begin=1300, end=len(series))
    return play(prepare(name, told, question).policy, series, question.begin, question.end)


@pytest.mark.parametrize(
    ("name", "told"), CAUSAL, ids=lambda value: value if isinstance(value, str) else str(dict(value))
)
def test_decisions_do_not_depend_on_the_future(name: str, told: Mapping[str, str]) -> None:
    series, cut = wandering(14), 1700

    here, elsewhere = decisions(name, told, series), decisions(name, told, scrambled(series, cut, seed=5))

    assert here.powered[: cut - 1300].tolist() == elsewhere.powered[: cut - 1300].tolist()
    assert here.active[cut - 1300 :].tolist() != elsewhere.active[cut - 1300 :].tolist()


def test_the_artifacts_features_do_look_ahead() -> None:
    series, cut = wandering(14), 1700

    here, elsewhere = (
        decisions("paper", {"buffer_nodes": "5", "features": "artifact"}, one)
        for one in (series, scrambled(series, cut, seed=5))
    )

    assert here.powered[: cut - 1300].tolist() != elsewhere.powered[: cut - 1300].tolist()


@settings(max_examples=25, deadline=None)
@given(
    demand=st.lists(st.integers(0, 100), min_size=20, max_size=400),
    name=st.sampled_from(["ces", "rule", "vanilla", "none"]),
    boot_s=st.sampled_from([0.0, 300.0, 2000.0]),
)
def test_busy_nodes_are_always_on_and_never_more_than_there_are(demand: list[int], name: str, boot_s: float) -> None:
    series = series_of([float(value) for value in demand])
    question = Question(series=series, train_to=5, begin=10, end=len(series))

    played = play(prepare(name, {}, question).policy, series, question.begin, question.end, boot_s=boot_s)

    assert (played.powered >= played.active).all()
    assert (played.powered <= played.total).all()
    assert (played.short <= played.active).all()
    assert ((played.short > 0) | (played.woken == 0)).all()  # nobody is woken whom nobody needs


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.parametrize("asked", [0.5, 1.0, 2.0])
def test_ces_keeps_to_the_wake_ups_that_it_was_told(seed: int, asked: float) -> None:
    series = wandering(42, seed=seed)

    came = figures(play(ces(series, wakeups_per_day=asked), series, 14 * 144, 42 * 144))

    assert asked / 1.5 <= came.wakeups_per_day <= asked * 1.5


def test_ces_keeps_to_the_nodes_short_that_it_was_told() -> None:
    series = wandering(42)

    came = figures(play(ces(series, short_nodes_per_day=4), series, 14 * 144, 42 * 144))

    assert 4 / 1.6 <= came.short_nodes / came.days <= 4 * 1.6


@pytest.mark.long
def test_more_risk_lets_more_nodes_sleep() -> None:
    series = wandering(28)

    asleep = [
        figures(play(ces(series, wakeups_per_day=asked), series, 2016, 4032)).sleeping_nodes for asked in (0.25, 1, 4)
    ]

    assert asleep == sorted(asleep)


def test_no_risk_keeps_every_node_on() -> None:
    series = wandering(7)

    assert figures(play(ces(series, wakeups_per_day=0), series, 500, 1008)).sleeping_nodes == 0


def test_ces_promises_nothing_before_it_has_seen_a_day() -> None:
    played = play(ces(wandering(3)), wandering(3), 0, 432)

    assert played.powered[:200].tolist() == [100.0] * 200
    assert played.reasons[0] == "too little is known yet to promise anything"
    assert played.powered[-1] < 100


@pytest.mark.parametrize(
    ("name", "told", "message"),
    [
        ("cse", {}, "did you mean 'ces'"),
        ("ces", {"wakeups": "1"}, "did you mean 'wakeups_per_day'"),
        ("ces", {"wakeups_per_day": "-1"}, "must be at least 0"),
        ("ces", {"committee": "0"}, "at least 1"),
        ("ces", {"half_life_s": "1"}, "at least an hour"),
        ("paper", {"features": "tea"}, "causal or lags or artifact"),
        ("none", {"buffer_nodes": "3"}, "it has none"),
    ],
)
def test_a_wrong_name_or_setting_gets_one_line(name: str, told: Mapping[str, str], message: str) -> None:
    question = Question(series=wandering(3), train_to=300, begin=300, end=432)

    with pytest.raises(ConfigError, match=message):
        prepare(name, told, question)


def test_a_forecast_without_a_past_is_refused_and_says_why() -> None:
    question = Question(series=wandering(3), train_to=100, begin=300, end=432)

    with pytest.raises(ConfigError, match="before --train-to"):
        prepare("paper", {}, question)


def test_every_policy_says_whether_a_forecast_is_used() -> None:
    question = Question(series=wandering(10), train_to=1000, begin=1000, end=1440)

    used = {name: prepare(name, {}, question).judge().is_used for name in POLICIES}

    assert used == {"ces": False, "paper": True, "rule": False, "vanilla": False, "none": False}


def test_the_papers_four_clusters_save_what_it_says() -> None:
    nodes = 5.0 + 20.5 + 20.0 + 34.0  # Table 5: Venus, Earth, Saturn, Uranus

    assert kwh_a_year(nodes, Power()) == pytest.approx(1.65e6, rel=0.02)
    assert co2_kg_a_year(nodes, Power(kg_co2_per_kwh=0.5)) == pytest.approx(0.825e6, rel=0.02)


def test_a_window_without_intervals_has_no_figures() -> None:
    with pytest.raises(ValueError, match="nothing between"):
        figures(play(AllOn(), wandering(1), 10, 10))
