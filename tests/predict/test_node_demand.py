"""Energy saving as a service: what it hears, what it learns, and what it advises."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from farside.errors import ConfigError
from farside.scheduler.energy.ces import FADING_S, MEMORY_S, Ces, CesSettings
from farside.scheduler.energy.feature import causal_features, causal_row
from farside.scheduler.energy.forecast import forecast_max
from farside.scheduler.energy.learning import LearningCes
from farside.scheduler.energy.online import OnlineForecast, learned_from
from farside.scheduler.energy.policy import Seen
from farside.scheduler.energy.series import NodeSeries
from farside.scheduler.predict.engine import Orchestrator
from farside.scheduler.predict.gpu_time import GpuTimeParams, GpuTimeService
from farside.scheduler.predict.node_demand import CesService
from farside.scheduler.predict.rebalance import RebalanceParams, RebalanceService
from farside.scheduler.predict.rolling import RollingParams
from farside.scheduler.predict.service import Advice, Expect, JobSubmitted, KeepNodes, NodesSampled
from farside.scheduler.predict.store import ModelStore
from tests.predict.log import job
from tests.support.busy_nodes import series_of, wandering

STEP_S = 600.0
SETTINGS = CesSettings(wakeups_per_day=2.0, forecast=True, forecast_s=3600.0, wake_ahead=True)


def facts(series: NodeSeries, *, powered: float = math.nan, start: int = 0) -> list[NodesSampled]:
    return [
        NodesSampled(
            at_s=series.start_s + (at + 1) * STEP_S, active=float(series.active[at]), total=float(series.total[at]),
            powered=powered,
        )
        for at in range(start, len(series))
    ]  # fmt: skip


def advice_on(service: CesService, told: list[NodesSampled]) -> list[Advice]:
    return [advice for fact in told for advice in service.observe(fact)]


def taught(days: int = 10) -> tuple[CesService, NodeSeries]:
    service, series = CesService(SETTINGS, total=100), wandering(days)
    advice_on(service, facts(series))
    assert service.fit(series.end_s) is not None
    return service, series


def test_one_row_of_features_is_the_last_of_all_rows() -> None:
    series = wandering(9)

    for end in (1, 2, 500, len(series)):
        part = replace(series, active=series.active[:end], total=series.total[:end], is_gap=series.is_gap[:end])

        assert np.allclose(causal_row(part), causal_features(part)[-1], equal_nan=True)


def test_it_forecasts_online_what_is_forecast_of_the_whole_series() -> None:
    series, learned = wandering(12), 1200
    online = OnlineForecast(horizon_s=3600.0, step_s=STEP_S)
    online.start_s = series.start_s
    rows, proven = [], []
    for at, active in enumerate(series.active.tolist()):
        online.watch(active, 100.0)
        rows.append(online.row(at))
        proven.append(online.is_proven(at))
        if at == learned - 1:
            online.fit()

    whole = forecast_max(series, 6, learned)

    assert np.isinf(rows[learned - 1]).all()
    assert np.array_equal(np.array(rows), whole.levels)
    assert proven == whole.proven.tolist()
    assert any(proven)


def test_trees_that_are_fitted_anew_do_not_begin_to_prove_themselves_anew() -> None:
    online, series = OnlineForecast(horizon_s=3600.0, step_s=STEP_S), wandering(12)
    online.start_s = series.start_s
    for at, active in enumerate(series.active.tolist()):
        online.watch(active, 100.0)
        if at == 1200:
            online.fit()
    assert online.is_better

    online.fit()

    assert online.is_better
    assert online.drift == 0.0


def test_three_services_of_one_frame_hear_the_same_facts_and_answer_their_own() -> None:
    orchestrator = Orchestrator(
        [
            GpuTimeService(GpuTimeParams(), RollingParams()),
            RebalanceService(RebalanceParams(), {}),
            CesService(CesSettings(), total=100),
        ]
    )
    series = wandering(3)
    for fact in facts(series):
        orchestrator.tell(fact)

    of_job = orchestrator.tell(JobSubmitted(at_s=series.end_s, job=job(1)))
    of_nodes = orchestrator.tell(NodesSampled(at_s=series.end_s + STEP_S, active=60, total=100, powered=100))

    assert [type(one) for one in of_job] == [Expect]
    assert [type(one) for one in of_nodes] == [KeepNodes]


def test_the_update_engine_fits_it_and_no_forecast_means_no_fit() -> None:
    series = wandering(9)
    updates = {}
    for settings in (SETTINGS, CesSettings(wakeups_per_day=2.0)):
        orchestrator = Orchestrator([CesService(settings, total=100)])
        for fact in facts(series):
            orchestrator.tell(fact)
        updates[settings.forecast] = [one for one in orchestrator.updates if one.record is not None]

    assert updates[True]
    assert not updates[False]
    record = updates[True][-1].record
    assert record is not None
    assert record.metrics["loss"] > 0
    assert record.trained_to_s <= series.end_s


def test_its_advice_is_what_the_policy_that_learns_live_decides() -> None:
    service, series = taught()
    policy = LearningCes(SETTINGS, total=100, step_s=STEP_S)
    policy.begin(series.start_s)
    for at, active in enumerate(series.active.tolist()):
        policy.watch(Seen(step=at, active=active, total=100))
    lesson = policy.lesson()
    assert lesson is not None
    policy.take(learned_from(lesson))
    later = wandering(13)

    advised = advice_on(service, facts(later, powered=100.0, start=len(series)))

    decided = []
    for at in range(len(series), len(later)):
        policy.watch(Seen(step=at, active=float(later.active[at]), total=100))
        decided.append(policy.target(100.0))
    assert [(one.nodes, one.reason) for one in advised if isinstance(one, KeepNodes)] == [
        (one.nodes, one.reason) for one in decided
    ]
    assert any("expected within" in one.reason for one in decided)


def test_a_forecast_is_a_signal_among_the_rules_from_the_first_interval_on() -> None:
    ces = Ces(settings=SETTINGS, step_s=STEP_S, total=100, forecast=OnlineForecast(horizon_s=3600.0, step_s=STEP_S))

    assert ces.signals == len(MEMORY_S) + len(FADING_S) + 3


def test_advice_does_not_depend_on_what_comes_later() -> None:
    service, series = taught()
    other, _ = taught()
    now = wandering(13, seed=1)
    scrambled = now.active.copy()
    scrambled[11 * 144 :] = np.random.default_rng(3).permutation(scrambled[11 * 144 :])

    one = advice_on(service, facts(now, powered=100.0, start=len(series)))
    two = advice_on(other, facts(series_of(scrambled), powered=100.0, start=len(series)))

    same = 11 * 144 - len(series)
    assert one[:same] == two[:same]
    assert one[same:] != two[same:]


def test_a_model_in_a_file_expects_what_it_did(tmp_path: Path) -> None:
    service, series = taught()
    record = service.fit(series.end_s)
    assert record is not None
    ModelStore(tmp_path).save(record)
    other = CesService(SETTINGS, total=100)
    advice_on(other, facts(series))

    other.use(ModelStore(tmp_path).load("ces"))

    told = facts(wandering(11), start=len(series))[:1]
    advice_on(service, told)
    advice_on(other, told)
    assert service.forecast.row(len(series)).tolist() == other.forecast.row(len(series)).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service": "qssf"}, "of service 'qssf'"),
        ({"features": ("hour",)}, "another horizon, interval or features"),
        ({"params": {"horizon_s": 60.0, "step_s": STEP_S}}, "another horizon, interval or features"),
        ({"text": "tree"}, "1 quantiles, not 3"),
    ],
)
def test_a_model_of_another_make_is_refused(changes: dict[str, object], message: str) -> None:
    service, series = taught(6)
    record = service.fit(series.end_s)
    assert record is not None

    with pytest.raises(ConfigError, match=message):
        CesService(SETTINGS, total=100).use(replace(record, **changes))  # type: ignore[arg-type]


def test_too_little_past_is_no_model() -> None:
    service = CesService(SETTINGS, total=100)
    told = facts(wandering(2))
    advice_on(service, told)

    assert service.fit(told[-1].at_s) is None


def test_facts_that_make_no_sense_are_counted_and_change_nothing() -> None:
    service = CesService(CesSettings(), total=100)
    told = facts(wandering(3))
    advice_on(service, told)
    last = told[-1]

    for bad in (
        replace(last, powered=100.0),  # the same moment again
        replace(last, at_s=last.at_s - 9e9, powered=100.0),
        replace(last, at_s=math.inf, powered=100.0),
        replace(last, at_s=math.nan, powered=100.0),
        replace(last, at_s=last.at_s + STEP_S, active=-1.0, powered=100.0),
    ):
        assert service.observe(bad) == ()

    assert service.refused == 5


def test_what_nobody_saw_is_taken_to_be_as_it_was() -> None:
    series = series_of([50.0] * 400)
    told, holes = facts(series), facts(series)
    services = [CesService(SETTINGS, total=100) for _ in range(2)]
    for fact in told:
        services[0].observe(fact)
    for at, fact in enumerate(holes):
        if at % 3 == 0 or at > 390:
            services[1].observe(fact if at % 2 else replace(fact, active=math.nan if at > 0 else 50.0))

    assert services[1].learnable == services[0].learnable


def test_a_long_silence_is_filled_for_a_week_at_most() -> None:
    service = CesService(SETTINGS, total=100)
    service.observe(NodesSampled(at_s=0.0, active=5, total=100))

    service.observe(NodesSampled(at_s=1e9, active=5, total=100))

    assert service.learnable == 1 + 7 * 144 + 1


def test_to_wake_ahead_needs_a_forecast() -> None:
    with pytest.raises(ValueError, match="wake_ahead needs a forecast"):
        CesSettings(wake_ahead=True)
