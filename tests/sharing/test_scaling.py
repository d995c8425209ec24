"""More GPUs at once, fewer after three periods, and the same share of all rates where not all of them fit."""

from collections.abc import Mapping

import pytest

from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion, Refusal
from farside.scheduler.sharing.glet.rate import RateSettings, planned, planned_rate, tick, tracked
from farside.scheduler.sharing.glet.scaling import (
    GAIN,
    Asking,
    Decided,
    Scale,
    decide,
    deciding,
    largest_share,
    next_period,
    served_share,
)

NOTHING = Plan(glets=())


def plan_for(rates: Mapping[str, float]) -> Plan:
    """As many whole GPUs as all rates together have hundreds, and each with its part of each rate."""
    gpus = max(1, -(-int(sum(rates.values())) // 100))
    models = tuple(Portion(model=name, batch=1, rate=rate / gpus) for name, rate in rates.items())
    return Plan(glets=tuple(Glet(gpu=gpu, part_pct=100, cycle_ms=10.0, models=models) for gpu in range(gpus)))


class Gpus:
    """Some GPUs of a hundred requests a second each, and how many plans were asked for."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self.asked = 0

    def plan(self, rates: Mapping[str, float]) -> Plan | Refusal:
        self.asked += 1
        if sum(rates.values()) > 100 * self._gpus:
            return Refusal(model="a", left=1.0, why="too much")
        return plan_for(rates)

    def decide(self, current: Plan, rates: Mapping[str, float], scale: Scale | None = None) -> Decided:
        return decide(deciding(scale or Scale(plan=current, gpus=current.gpus), current, rates), self.plan)


def kept_over(*rates: float) -> list[int]:
    """GPUs that are kept at the ends of periods that need so much."""
    scale, kept = Scale(), []
    for rate in rates:
        scale = next_period(scale, plan_for({"a": rate}))
        kept.append(scale.gpus)
    return kept


def test_gpus_are_added_at_once_and_taken_away_after_three_periods() -> None:
    # Down to what the three periods needed at most, and not only the last of them.
    assert kept_over(100, 400, 200, 300, 200, 100, 100) == [1, 4, 4, 4, 3, 3, 3]


def test_a_peak_between_begins_the_count_anew() -> None:
    assert kept_over(400, 200, 200, 400, 200, 200, 200) == [4, 4, 4, 4, 4, 4, 2]


def test_plans_within_a_period_are_no_periods_but_what_they_need_is_kept() -> None:
    scale = next_period(Scale(), plan_for({"a": 500.0}))
    for rate in (100.0, 300.0, 100.0, 100.0):
        scale = next_period(scale, plan_for({"a": rate}), is_period=False)
    assert (scale.gpus, scale.below, scale.is_above) == (5, 0, True)

    kept = []
    for _ in range(3):
        scale = next_period(scale, plan_for({"a": 100.0}))
        kept.append(scale.gpus)

    assert kept == [5, 5, 3]


def test_bursts_of_one_model_do_not_hasten_giving_back_what_another_had() -> None:
    settings, gpus = RateSettings(), Gpus(8)
    state, now_s = tracked({"a": 400.0, "b": 20.0}), 0.0
    decided = gpus.decide(NOTHING, {name: planned_rate(rate) for name, rate in {"a": 400.0, "b": 20.0}.items()})
    scale, current = decided.scale, decided.plan or NOTHING
    causes, fell_s, gave_back_s = list[str | None](), 30.0, 0.0
    for step in range(1, 300):
        now_s = step * settings.tick_s
        # a falls far, and b bursts a little every five seconds.
        b = 10 if step < 82 else 25 if step < 92 else 50 if step < 102 else 80
        state, cause = tick(state, {"a": 200 if now_s < fell_s else 20, "b": b}, {}, now_s, settings)
        is_period = step % 40 == 0
        if cause is not None or (is_period and scale.is_above):
            state = planned(state, now_s, settings, cause or "period")
            rates = {name: planned_rate(rate) for name, rate in state.targets.items()}
            before = scale.gpus
            decided = decide(deciding(scale, current, rates, is_period=is_period), gpus.plan)
            scale, current = decided.scale, decided.plan or current
            causes.append(cause)
            if scale.gpus < before and not gave_back_s:
                gave_back_s = now_s

    assert causes.count("burst") >= 2
    assert gave_back_s - fell_s > 2 * settings.period_s


def test_a_plan_on_fewer_gpus_gives_none_back_before_three_periods_needed_fewer() -> None:
    # Of a more is asked than runs, of b less: the new plan has two GPUs where three run.
    gpus, first = Gpus(8), {"a": 100.0, "b": 200.0}
    runs = gpus.decide(NOTHING, first).plan
    assert runs is not None
    assert runs.gpus == 3
    rates, scale = {"a": 150.0, "b": 50.0}, Scale(plan=runs, gpus=3)

    for is_period in (False, True, True):
        decided = decide(deciding(scale, runs, rates, is_period=is_period), gpus.plan)
        assert decided.plan is not None
        assert (decided.plan.gpus, decided.scale.gpus) == (3, 3)
        # The third goes on with what it runs.
        assert set(runs.glets) & set(decided.plan.glets)
        assert served_share(decided.plan, rates) == 1.0
        scale = decided.scale

    after = decide(deciding(scale, runs, rates), gpus.plan)
    assert after.plan is not None
    assert (after.plan.gpus, after.scale.gpus) == (2, 2)


def test_gpus_that_a_new_plan_leaves_serve_until_they_are_given_back() -> None:
    gpus, scale = Gpus(8), Scale()
    current, kept = NOTHING, list[int]()
    # A burst of a, in the midst of b's fall; from then on two GPUs would do.
    for rates in ({"a": 100.0, "b": 300.0}, {"a": 150.0, "b": 50.0}, *[{"a": 160.0, "b": 40.0}] * 4):
        decided = decide(deciding(scale, current, rates), gpus.plan)
        scale, current = decided.scale, decided.plan or current
        assert served_share(current, rates) == 1.0
        kept.append(current.gpus)

    assert kept == [4, 4, 4, 2, 2, 2]


def test_gpus_that_are_given_back_change_nothing_on_those_that_are_left() -> None:
    gpus, rates = Gpus(8), {"a": 100.0}
    runs = plan_for({"a": 400.0, "b": 0.0})
    scale = Scale(plan=runs, gpus=4)
    for _ in range(2):
        scale = decide(deciding(scale, runs, rates), gpus.plan).scale
    decided = decide(deciding(scale, runs, rates), gpus.plan)

    assert decided.plan is not None
    assert (decided.plan.gpus, decided.scale.gpus) == (1, 1)
    assert set(decided.plan.glets) < set(runs.glets)


def test_what_was_planned_with_latencies_of_before_is_not_kept_beside_a_new_plan() -> None:
    gpus, runs = Gpus(8), plan_for({"a": 300.0})

    decided = decide(deciding(Scale(plan=runs, gpus=3), runs, {"a": 150.0}, is_stale=True), gpus.plan)

    assert decided.plan is not None
    assert (decided.plan.gpus, decided.scale.gpus) == (2, 3)
    assert not set(decided.plan.glets) & set(runs.glets)


def test_rates_beyond_what_there_is_are_served_as_far_as_the_gpus_go_every_model_alike() -> None:
    rates, gpus = {"a": 1000.0, "b": 200.0}, Gpus(8)

    decided = gpus.decide(plan_for({"a": 50.0, "b": 50.0}), rates)

    assert decided.refusal is not None
    assert decided.plan is not None
    assert decided.plan.gpus == decided.scale.gpus == 8
    shares = {name: decided.plan.served()[name] / rate for name, rate in rates.items()}
    assert shares["a"] == pytest.approx(shares["b"])
    # 800 of 1,200, but for what is too near to be told apart.
    assert 0.96 * 2 / 3 <= shares["a"] <= 2 / 3 + 0.001


def test_too_much_from_the_start_is_served_in_part_too() -> None:
    decided = Gpus(2).decide(NOTHING, {"a": 2000.0, "b": 200.0})

    assert decided.plan is not None
    assert served_share(decided.plan, {"a": 2000.0, "b": 200.0}) == pytest.approx(1 / 11, rel=0.05)


def test_what_runs_stays_where_no_other_plan_serves_enough_more_to_be_worth_a_change() -> None:
    gpus, rates = Gpus(4), {"a": 1000.0}
    first = gpus.decide(NOTHING, rates)
    assert first.plan is not None
    gpus.asked = 0

    again = gpus.decide(first.plan, rates, first.scale)

    assert again.plan is None
    assert again.refusal is not None
    assert again.scale.gpus == 4
    assert gpus.asked == 2
    # By other latencies than those it was planned with it may serve anything.
    stale = decide(deciding(first.scale, first.plan, rates, is_stale=True), gpus.plan)
    assert stale.plan is not None


@pytest.mark.parametrize("beyond", [1.01, 1.5, 3.0, 70.0, 900.0, 1e9])
def test_however_much_is_asked_a_share_is_found_in_few_plans_or_none(beyond: float) -> None:
    gpus = Gpus(4)
    found = decide(largest_share({"a": 400.0 * beyond}), gpus.plan)

    assert gpus.asked <= 17
    assert isinstance(found, Plan) == (beyond < 1000)


def test_a_model_that_nobody_asks_keeps_its_least_at_any_share() -> None:
    found = decide(largest_share({"a": 100_000.0, "b": 6.0, "c": 0.0}), Gpus(4).plan)

    assert isinstance(found, Plan)
    assert found.served()["b"] == pytest.approx(1.0)
    assert found.served()["c"] == 0.0


def test_a_share_is_looked_for_only_above_what_is_served_already() -> None:
    asked = list[float]()

    def plan(rates: Mapping[str, float]) -> Plan | Refusal:
        asked.append(rates["a"] / 1000)
        return Gpus(6).plan(rates)

    asking: Asking[Plan | Refusal] = largest_share({"a": 1000.0}, 0.5)
    assert isinstance(decide(asking, plan), Plan)
    assert min(asked) >= 0.5 * GAIN


def test_a_plan_that_serves_its_rates_but_for_the_last_bits_stays() -> None:
    rates, gpus = {"a": 300.0}, Gpus(4)
    runs = plan_for({"a": 300.0 * (1 - 1e-12)})

    assert gpus.decide(runs, rates).plan is None
    assert gpus.decide(plan_for({"a": 299.0}), rates).plan is not None


def test_without_a_plan_nothing_is_served() -> None:
    assert served_share(NOTHING, {"a": 1.0}) == 0.0
    assert served_share(NOTHING, {}) == 1.0
