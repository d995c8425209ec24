"""Trees that are fitted beside the loop: no turn waits for them, and what goes wrong with them stops nobody."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from farside.scheduler.energy.ces import CesSettings
from farside.scheduler.energy.forecast_lesson import Learned, Lesson, learned_from
from farside.scheduler.energy.learning_policy import LearningCes
from farside.scheduler.energy.simple_policies import AllOn
from farside.scheduler.power import fit_thread
from farside.scheduler.power.fit_thread import Fitter
from farside.scheduler.power.wanted_nodes import Occupancy, PolicyDemand
from tests.support.busy_nodes import wandering
from tests.support.waiting import until

STEP_S = 600.0
BUSY = wandering(5).active.tolist()


def learning() -> LearningCes:
    settings = CesSettings(wakeups_per_day=2.0, forecast=True, wake_ahead=True, forecast_s=7200.0)
    return LearningCes(settings, total=100, step_s=STEP_S)


@contextmanager
def fitting(policy: LearningCes) -> Iterator[Fitter]:
    fitter = Fitter(policy)
    try:
        yield fitter
    finally:
        fitter.close()


def live_on(demand: PolicyDemand, fitter: Fitter, steps: range) -> list[int]:
    """What is wished at the end of each interval."""
    wished = []
    for step in steps:
        demand.wish(Occupancy(now_s=(step + 0.5) * STEP_S, busy=int(BUSY[step]), lacking=0, powered=100, total=100))
        now = Occupancy(now_s=(step + 1) * STEP_S, busy=0, lacking=0, powered=100, total=100)
        wished.append(demand.wish(now).nodes)
        fitter.look()
    return wished


def held_back(monkeypatch: pytest.MonkeyPatch, fits: Callable[[Lesson], Learned] = learned_from) -> threading.Event:
    """What lets fits go on; until then they take for ever."""
    goes_on = threading.Event()

    def slowly(lesson: Lesson) -> Learned:
        assert goes_on.wait(60)
        return fits(lesson)

    monkeypatch.setattr(fit_thread, "learned_from", slowly)
    return goes_on


def test_no_turn_waits_for_trees_and_they_are_used_when_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, policy = held_back(monkeypatch), learning()
    demand = PolicyDemand(policy, step_s=STEP_S)
    with fitting(policy) as fitter:
        demand.wish(Occupancy(now_s=0.0, busy=0, lacking=0, powered=100, total=100))
        wished = live_on(demand, fitter, range(policy.needed + 20))  # the test would not end if it waited

        assert len(wished) == policy.needed + 20
        assert fitter.remark == "no forecast yet, as it is being fitted; rules alone decide"
        goes_on.set()

        def is_fitted() -> bool:
            fitter.look()
            return policy.forecast.is_fitted

        until(is_fitted, what="the trees are taken", deadline_s=60)
        assert fitter.remark.startswith("a forecast by trees of 2.8 days")


def test_the_past_is_gone_through_in_a_thread_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, policy = held_back(monkeypatch), learning()
    demand = PolicyDemand(policy, step_s=STEP_S, past=BUSY)
    with fitting(policy) as fitter:
        learned = fitter.learn(demand, 100.0)
        fitter.look()

        assert fitter.is_learning
        assert fitter.remark == "no forecast yet, as the past is being gone through"
        goes_on.set()
        learned.result(60)

        assert policy.forecast.is_fitted
        assert fitter.remark.startswith("a forecast by trees of 4.0 days")


def test_a_fit_that_fails_is_said_in_one_line_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Lesson) -> Learned:
        raise MemoryError("none left\nat all")

    held_back(monkeypatch, fails).set()
    policy = learning()
    demand = PolicyDemand(policy, step_s=STEP_S, past=BUSY)
    with fitting(policy) as fitter:
        fitter.learn(demand, 100.0).result(60)

        assert fitter.remark == "no forecast as it could not be fitted: MemoryError: none left; rules alone decide"
        assert "cannot fit the forecast" in caplog.text
        assert demand.wish(Occupancy(now_s=0.0, busy=0, lacking=0, powered=100, total=100)).nodes > 0


def test_a_policy_that_learns_nothing_has_no_fits_and_no_remark() -> None:
    fitter = Fitter(AllOn())

    fitter.look()
    fitter.close()

    assert fitter.remark == ""
    assert not fitter.is_learning
