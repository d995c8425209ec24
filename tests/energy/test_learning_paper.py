"""The paper's policy live: it decides interval by interval what the replay decides, and says what it knows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.config import ManagerConfig, SlurmConfig, load_config
from farside.errors import ConfigError, Unavailable
from farside.scheduler.energy import catalog
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.catalog import Question, make_online, prepare
from farside.scheduler.energy.forecast import forecast_mean
from farside.scheduler.energy.forecast_lesson import learned_from
from farside.scheduler.energy.helios_policy import Paper, PaperSettings
from farside.scheduler.energy.learning_policy import LearningPaper
from farside.scheduler.energy.online_means import OnlineMeans
from farside.scheduler.energy.policy import Target
from farside.scheduler.power.rules import online_policy
from farside.scheduler.power.wanted_nodes import Occupancy, PolicyDemand
from farside.scheduler.settings import from_settings
from farside.scheduler.sim.energy.replay import play
from tests.support.busy_nodes import series_of, wandering

STEP_S, TOTAL = 600.0, 100


class Told(LearningPaper):
    """The policy, and what it said."""

    targets: list[Target]

    def target(self, powered: float) -> Target:
        self.targets.append(super().target(powered))
        return self.targets[-1]


def learning(told: Mapping[str, str], series: NodeSeries) -> Told:
    policy = Told(from_settings(PaperSettings, told, of="paper"), step_s=STEP_S)
    policy.targets = []
    policy.begin(series.start_s)
    return policy


class ReplayTold:
    """A replay's policy, and what it said."""

    def __init__(self, policy: Paper) -> None:
        self.watch = policy.watch
        self._policy = policy
        self.targets: list[Target] = []

    def target(self, powered: float) -> Target:
        self.targets.append(self._policy.target(powered))
        return self.targets[-1]


def replayed(told: Mapping[str, str], series: NodeSeries, train_to: int, begin: int) -> list[Target]:
    """What the replay decides from ``begin`` on, but for its first interval, in which it sleeps whatever the trends."""
    question = Question(series=series, train_to=train_to, begin=begin, end=len(series))
    paper = prepare("paper", told, question).policy
    assert isinstance(paper, Paper)
    paper.begins_low = False
    policy = ReplayTold(paper)
    play(policy, series, begin, len(series))
    return policy.targets


def lived(policy: Told, series: NodeSeries, known: int) -> list[Target]:
    """What is decided from when ``known`` intervals are over, by a demand whose nodes obey at once."""
    active = series.active.tolist()
    demand, powered = PolicyDemand(policy, step_s=STEP_S, past=active[:known]), float(TOTAL)
    now = Occupancy(now_s=0.0, busy=0, lacking=0, powered=TOTAL, total=TOTAL)
    demand.wish(now)
    powered = min(TOTAL, max(active[known - 1], policy.targets[-1].nodes))
    for step, busy in enumerate(active[known:]):
        for part, needed in ((0.5, int(busy)), (1.0, 0)):
            now = Occupancy(
                now_s=(step + part) * STEP_S, busy=needed, lacking=0, powered=int(powered), total=TOTAL
            )  # fmt: skip
            demand.wish(now)
        powered = min(TOTAL, max(busy, policy.targets[-1].nodes))
    return policy.targets


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    known=st.integers(600, 1000),
    more=st.sampled_from(
        [{"buffer_nodes": "4"}, {"buffer_nodes": "2", "future_s": "1h", "hold_s": "1h"}, {"past_threshold": "0"}]
    ),
)
def test_live_it_decides_step_by_step_what_the_replay_decides(seed: int, known: int, more: dict[str, str]) -> None:
    series = series_of(wandering(8, seed=seed).active[: known + 144], TOTAL)
    policy = learning(more, series)
    trained_to = max(policy.needed, round(known * 0.8))

    live = lived(policy, series, known)

    assert policy.is_fitted
    assert live == replayed(more, series, trained_to, known - 1)


def test_nodes_sleep_live_where_both_trends_fall() -> None:
    series = wandering(12)

    targets = lived(learning({"buffer_nodes": "2", "future_s": "1h", "hold_s": "1h"}, series), series, 1000)

    assert any(target.reason == "fewer were busy, and fewer are expected" for target in targets)
    assert any(target.reason.endswith("nodes short") for target in targets)


def test_it_forecasts_online_what_is_forecast_of_the_whole_series() -> None:
    series, known = wandering(12), 1200
    online = OnlineMeans(near_s=3600.0, step_s=STEP_S)
    online.seen.start_s = series.start_s
    means, learned = [], None
    for step, active in enumerate(series.active.tolist()):
        online.watch(active, TOTAL)
        means.append(online.at(step))
        if step == known - 1:
            lesson = online.lesson()
            assert lesson is not None
            learned = learned_from(lesson)
            online.use(learned)

    near, far = (forecast_mean(series, steps, known).raw for steps in (6, 12))
    assert np.isnan(means[:known]).all()
    assert means[known:] == list(zip(near[known:].tolist(), far[known:].tolist(), strict=True))
    assert online.proof.judged > 0
    assert learned is not None
    assert learned.metrics["persistence_loss"] > 0


def test_without_a_forecast_no_node_sleeps_and_it_says_so() -> None:
    series = wandering(3)
    policy = learning({}, series)

    targets = lived(policy, series, 1)

    assert {target.nodes for target in targets} == {TOTAL}
    assert policy.remark == "no forecast before 3.6 days are known, 3.0 are; no node is put to sleep"


def test_it_says_how_good_its_forecast_is() -> None:
    series = wandering(12)
    policy = learning({}, series)

    lived(policy, series, len(series) - 1)

    assert policy.remark.startswith("a forecast by trees of 9.6 days, lately ")


@pytest.mark.parametrize("features", ["lags", "artifact"])
def test_features_of_the_published_code_are_for_replays_alone(features: str) -> None:
    with pytest.raises(ConfigError, match=f"features={features} is for replays of a series"):
        make_online("paper", {"features": features})


@pytest.mark.parametrize(
    ("told", "step_s", "message"),
    [
        ({"future_s": "1h"}, 7200.0, "paper: future_s is 3600 s, an interval 7200 s"),
        ({}, 1.0, "paper: a forecast of 36000 s in intervals of 1 s needs .* a smaller future_s"),
        ({"future_s": "240h"}, 600.0, "paper: a forecast in intervals of 600 s needs .* days, and 28 are known"),
    ],
)
def test_a_forecast_that_could_never_be_learned_is_one_line(told: dict[str, str], step_s: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_online("paper", told, step_s)


def test_without_lightgbm_it_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)

    with pytest.raises(Unavailable, match="paper needs LightGBM; pip install lightgbm, or take ces"):
        make_online("paper", {})


@pytest.mark.parametrize("program", [ManagerConfig, SlurmConfig])
def test_manager_and_slurm_take_it(program: Any) -> None:
    more = {"partitions": "gpu"} if program is SlurmConfig else {}
    config = load_config(program, (), {"power": "paper", "power_settings": "buffer_nodes=3", **more})

    make_policy = online_policy(config)

    assert make_policy is not None
    assert isinstance(make_policy(10), LearningPaper)
