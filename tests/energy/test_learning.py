"""CES with a forecast that learns as it goes: the replay's decisions, what is known when, and what goes wrong."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError, Unavailable
from farside.scheduler.energy import catalog
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.catalog import Question, make_online, prepare
from farside.scheduler.energy.ces import FADING_S, MEMORY_S, Ces, CesSettings
from farside.scheduler.energy.forecast import forecast_max
from farside.scheduler.energy.forecast_features import causal_features, causal_row
from farside.scheduler.energy.forecast_lesson import Learned, Lesson, learned_from, needed_steps
from farside.scheduler.energy.learning_policy import LearningCes, recall
from farside.scheduler.energy.online_forecast import OnlineForecast
from farside.scheduler.energy.policy import EnergyPolicy, Seen, Target
from farside.scheduler.power.wanted_nodes import Occupancy, PolicyDemand
from farside.scheduler.settings import from_settings
from farside.scheduler.sim.energy.replay import play
from tests.support.busy_nodes import series_of, wandering

STEP_S, TOTAL = 600.0, 100
AHEAD = {"forecast": "true", "wake_ahead": "true", "forecast_s": "2h"}


class Told:
    """A policy, and what it said."""

    def __init__(self, policy: EnergyPolicy) -> None:
        self._policy = policy
        self.targets: list[Target] = []

    def watch(self, seen: Seen) -> None:
        self._policy.watch(seen)

    def target(self, powered: float) -> Target:
        self.targets.append(self._policy.target(powered))
        return self.targets[-1]


class LearningTold(LearningCes):
    """The same, of one that learns."""

    targets: list[Target]

    def target(self, powered: float) -> Target:
        self.targets.append(super().target(powered))
        return self.targets[-1]


def learning(told: dict[str, str], series: NodeSeries) -> LearningTold:
    policy = LearningTold(from_settings(CesSettings, told, of="ces"), total=TOTAL, step_s=STEP_S)
    policy.targets = []
    policy.begin(series.start_s)
    return policy


def replayed(told: dict[str, str], series: NodeSeries, train_to: int, begin: int) -> list[Target]:
    """What `farside energy replay` decides from ``begin`` on."""
    question = Question(series=series, train_to=train_to, begin=begin, end=len(series))
    policy = Told(prepare("ces", told, question).policy)
    play(policy, series, begin, len(series))
    return policy.targets


def lived(policy: LearningTold, series: NodeSeries, known: int, each: Callable[[], object] = int) -> list[Target]:
    """What is decided interval by interval from when ``known`` are over, by a demand whose fleet obeys at once."""
    active = series.active.tolist()
    demand = PolicyDemand(policy, step_s=STEP_S, past=active[:known])
    powered = float(TOTAL)

    def wish(steps: float, busy: float) -> None:
        demand.wish(Occupancy(now_s=steps * STEP_S, busy=int(busy), lacking=0, powered=int(powered), total=TOTAL))

    def obey(busy: float) -> None:
        nonlocal powered
        powered = min(TOTAL, max(busy, policy.targets[-1].nodes))

    wish(0, 0)
    if known:
        obey(active[known - 1])
    for step, busy in enumerate(active[known:]):
        wish(step + 0.5, busy)
        wish(step + 1, 0)
        obey(busy)
        each()
    return policy.targets


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    known=st.integers(450, 1000),
    peaks=st.lists(st.tuples(st.integers(0, 1143), st.integers(0, TOTAL)), max_size=8),
    asked=st.sampled_from(["0.5", "2", "8"]),
    more=st.sampled_from([AHEAD, {"forecast": "true", "forecast_s": "1h"}, {"forecast": "true"}]),
)
def test_live_it_decides_step_by_step_what_the_replay_decides(
    seed: int, known: int, peaks: list[tuple[int, int]], asked: str, more: dict[str, str]
) -> None:
    busy = wandering(8, seed=seed).active[: known + 144]
    for at, nodes in peaks:
        busy[at % len(busy)] = nodes
    series, told = series_of(busy, TOTAL), {"wakeups_per_day": asked, **more}
    policy = learning(told, series)
    trained_to = max(policy.needed, round(known * 0.8))

    live = lived(policy, series, known)

    assert policy.forecast.is_fitted
    assert live == replayed(told, series, trained_to, known - 1)


def test_what_begins_without_a_past_decides_as_the_replay_from_its_first_interval_on() -> None:
    series, told = wandering(4), {"wakeups_per_day": "2", **AHEAD}
    policy = learning(told, series)

    def fit_when_due() -> None:
        lesson = policy.lesson()
        if lesson is not None:
            policy.take(learned_from(lesson))

    live = lived(policy, series, 0, fit_when_due)

    assert live == replayed(told, series, policy.needed, 0)
    assert policy.forecast.is_fitted


def test_a_forecast_changes_what_is_decided_live() -> None:
    series = wandering(12, seed=3)
    ahead, without = ({"wakeups_per_day": "2", **AHEAD}, {"wakeups_per_day": "2", "forecast": "true"})

    targets = lived(learning(ahead, series), series, 1000)

    assert any(target.is_forecast for target in targets)
    assert targets != lived(learning(without, series), series, 1000)


def test_until_enough_is_known_it_decides_as_ces_without_a_forecast_and_says_so() -> None:
    series = wandering(2)
    policy = learning(dict(AHEAD), series)

    live = lived(policy, series, 0)

    plain = replayed({}, series, 0, 0)
    assert [(target.nodes, target.is_forecast) for target in live] == [(one.nodes, False) for one in plain]
    assert policy.lesson() is None
    assert policy.remark == "no forecast before 2.7 days are known, 2.0 are; rules alone decide"


@pytest.mark.parametrize("steps", [1, 6, 12, 36, 144, 288])
def test_trees_are_fitted_as_soon_as_enough_is_known_and_not_before(steps: int) -> None:
    policy = LearningCes(CesSettings(forecast=True, forecast_s=max(1, steps) * STEP_S), total=TOTAL, step_s=STEP_S)
    lessons: list[Lesson | None] = []
    for step, active in enumerate(wandering(20).active[: needed_steps(steps)].tolist()):
        policy.watch(Seen(step=step, active=active, total=TOTAL))
        lessons.append(policy.lesson())

    assert not any(lessons[:-1])
    assert lessons[-1] is not None
    assert learned_from(lessons[-1]).metrics["loss"] >= 0


@pytest.mark.long
def test_it_says_how_good_its_forecast_is() -> None:
    policy = learning(dict(AHEAD), wandering(12))
    recall(policy, wandering(12).active[:432].tolist(), TOTAL)
    young = policy.remark
    recall(policy := learning(dict(AHEAD), wandering(12)), wandering(12).active.tolist(), TOTAL)

    assert young == (
        "a forecast by trees of 2.7 days, of which too little is known yet to say how good it is; nobody is woken by it"
    )
    assert policy.remark == "a forecast by trees of 9.6 days, lately better than none"


def test_a_forecast_that_is_no_better_than_none_wakes_nobody_and_says_so() -> None:
    noise = np.random.default_rng(1).permutation(np.repeat([20.0, 80.0], 720))
    policy = learning(dict(AHEAD), series_of(noise))
    recall(policy, [50.0] * 1200, TOTAL)

    assert policy.remark.endswith("lately no better than none; nobody is woken by it")


@pytest.mark.long
def test_trees_are_fitted_anew_after_a_week() -> None:
    policy, series = learning(dict(AHEAD), wandering(40)), wandering(40)
    recall(policy, series.active[:4000].tolist(), TOTAL)
    due_at = []
    for step in range(4000, 4500):
        policy.watch(Seen(step=step, active=float(series.active[step]), total=TOTAL))
        if policy.lesson() is not None:
            due_at.append(step + 1)
            policy.take("never mind")

    assert due_at[0] == 3200 + 7 * 144
    assert len(due_at) == 1  # a fit that failed is not tried again at once


@pytest.mark.long
def test_what_fails_is_said_and_the_trees_before_go_on() -> None:
    policy, series = learning(dict(AHEAD), wandering(12)), wandering(12)
    recall(policy, series.active.tolist(), TOTAL, lambda _: "no memory")
    none = policy.remark
    recall(policy := learning(dict(AHEAD), series), series.active.tolist(), TOTAL)
    policy.take("no memory")

    assert none == "no forecast as it could not be fitted: no memory; rules alone decide"
    assert (
        policy.remark
        == "a forecast by trees of 9.6 days, lately better than none; it could not be fitted again: no memory"
    )
    assert policy.forecast.is_fitted


@pytest.mark.parametrize("active", [0.0, 7.0, 100.0])
def test_a_cluster_in_which_nothing_changes_can_be_learned_from(active: float) -> None:
    policy = learning(dict(AHEAD), wandering(1))

    recall(policy, [active] * 700, TOTAL)

    assert policy.forecast.is_fitted
    assert policy.forecast.row(699).round().tolist() == [active] * 3


def test_a_policy_with_a_forecast_learns_it() -> None:
    assert isinstance(make_online("ces", AHEAD)(10), LearningCes)
    assert isinstance(make_online("ces", {})(10), Ces)


@pytest.mark.parametrize(
    ("step_s", "message"),
    [
        (1.0, "needs 54,075 of them, and 26,000 are kept; intervals of 60 s will do"),
        (7200.0, "intervals of 7200 s needs 31 days, and 28 are known after a start"),
        (8000.0, "forecast_s is 7200 s, an interval 8000 s"),
    ],
)
def test_an_interval_that_no_forecast_goes_with_is_one_line(step_s: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_online("ces", AHEAD, step_s)


def test_without_lightgbm_a_forecast_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)

    with pytest.raises(Unavailable, match="forecast=true needs LightGBM; pip install lightgbm"):
        make_online("ces", AHEAD)
    make_online("ces", {})


def test_what_was_learned_is_of_the_lesson_and_not_of_what_came_meanwhile() -> None:
    policy, series = learning(dict(AHEAD), wandering(12)), wandering(12)
    for step in range(900):
        policy.watch(Seen(step=step, active=float(series.active[step]), total=TOTAL))
    lesson = policy.lesson()
    assert lesson is not None
    for step in range(900, 950):
        policy.watch(Seen(step=step, active=float(series.active[step]), total=TOTAL))

    late: Learned = learned_from(lesson)
    again = learned_from(Lesson(series=_first(series, 900), steps=12))

    assert late.metrics == again.metrics


def _first(series: NodeSeries, count: int) -> NodeSeries:
    return series_of(series.active[:count])


def fit(online: OnlineForecast) -> None:
    """Fits trees to all that was seen."""
    lesson = online.lesson()
    assert lesson is not None
    online.use(learned_from(lesson))


def test_one_row_of_features_is_the_last_of_all_rows() -> None:
    series = wandering(9)

    for end in (1, 2, 500, len(series)):
        part = replace(series, active=series.active[:end], total=series.total[:end], is_gap=series.is_gap[:end])

        assert np.allclose(causal_row(part), causal_features(part)[-1], equal_nan=True)


def test_it_forecasts_online_what_is_forecast_of_the_whole_series() -> None:
    series, learned = wandering(12), 1200
    online = OnlineForecast(horizon_s=3600.0, step_s=STEP_S)
    online.seen.start_s = series.start_s
    rows, proven = [], []
    for at, active in enumerate(series.active.tolist()):
        online.watch(active, 100.0)
        rows.append(online.row(at))
        proven.append(online.is_proven(at))
        if at == learned - 1:
            fit(online)

    whole = forecast_max(series, 6, learned)

    assert np.isinf(rows[learned - 1]).all()
    assert np.array_equal(np.array(rows), whole.levels)
    assert proven == whole.proven.tolist()
    assert any(proven)


@pytest.mark.long
def test_trees_that_are_fitted_anew_do_not_begin_to_prove_themselves_anew() -> None:
    online, series = OnlineForecast(horizon_s=3600.0, step_s=STEP_S), wandering(12)
    online.seen.start_s = series.start_s
    for at, active in enumerate(series.active.tolist()):
        online.watch(active, 100.0)
        if at == 1200:
            fit(online)
    assert online.proof.is_better

    fit(online)

    assert online.proof.is_better
    assert online.proof.drift == 0.0


def test_a_forecast_is_a_signal_among_the_rules_from_the_first_interval_on() -> None:
    online = OnlineForecast(horizon_s=3600.0, step_s=STEP_S)
    ces = Ces(
        settings=CesSettings(forecast=True, forecast_s=3600.0, wake_ahead=True),
        step_s=STEP_S,
        total=100,
        forecast=online,
    )

    assert ces.signals == len(MEMORY_S) + len(FADING_S) + 3


def test_to_wake_ahead_needs_a_forecast() -> None:
    with pytest.raises(ValueError, match="wake_ahead needs a forecast"):
        CesSettings(wake_ahead=True)
