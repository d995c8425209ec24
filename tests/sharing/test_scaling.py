"""More GPUs at once, fewer after three periods, and rates shed alike where no GPUs are left."""

from collections.abc import Mapping

import pytest

from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion, Refusal
from farside.scheduler.sharing.glet.scaling import Scale, next_period, served_share


def plan_on(gpus: int, rate: float = 100.0) -> Plan:
    return Plan(
        glets=tuple(
            Glet(gpu=gpu, part_pct=100, cycle_ms=10.0, models=(Portion(model="a", batch=1, rate=rate),))
            for gpu in range(gpus)
        )
    )


def needs(rates: Mapping[str, float], gpus_max: int) -> Plan | Refusal:
    """As many GPUs as the rate has hundreds."""
    gpus = -(-int(rates["a"]) // 100)
    return plan_on(gpus) if gpus <= gpus_max else Refusal(model="a", left=1.0, why="too much")


def test_gpus_are_added_at_once_and_taken_away_after_three_periods() -> None:
    scale, kept = Scale(), []
    for rate in (100, 400, 200, 300, 200, 100, 100):
        scale = next_period(scale, {"a": rate}, 8, needs).scale
        kept.append(scale.gpus)

    # Down to what the three periods needed at most, and not only the last of them.
    assert kept == [1, 4, 4, 4, 3, 3, 3]


def test_a_peak_between_begins_the_count_anew() -> None:
    scale, kept = Scale(), []
    for rate in (400, 200, 200, 400, 200, 200, 200):
        scale = next_period(scale, {"a": rate}, 8, needs).scale
        kept.append(scale.gpus)

    assert kept == [4, 4, 4, 4, 4, 4, 2]


def test_where_nothing_fits_the_last_plan_stays_and_every_model_keeps_as_much() -> None:
    scale = next_period(Scale(), {"a": 200.0}, 2, needs).scale

    scaled = next_period(scale, {"a": 400.0}, 2, needs)

    assert scaled.scale.plan == scale.plan
    assert scaled.served_share == pytest.approx(0.5)
    assert scaled.refusal is not None


def test_without_a_plan_nothing_is_served() -> None:
    assert served_share(None, {"a": 1.0}) == 0.0
    assert served_share(None, {}) == 1.0
