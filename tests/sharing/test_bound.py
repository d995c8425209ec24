"""No sound plan, whoever made it, has fewer GPUs than the lower bound says."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.interference import Separable, Tabled
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.scheduler.sharing.glet.portfolio import ideal
from farside.scheduler.sharing.glet.profile import DeviceProfile, Interference, ModelProfile, NoInterference, cuts_of
from farside.scheduler.sharing.glet.size import Sizes
from tests.sharing.drawn import device, model, needs_tables, shared_tables, slowing


def any_model(rng: random.Random, name: str, parts: list[int]) -> ModelProfile:
    """Latencies as measured ones may be at worst: a larger batch or a larger part need not take longer or less."""
    batches = rng.choice((1, 2, 4, 8))
    alone = {
        part: tuple(rng.uniform(0.5, 30) * rng.choice((1.0, batch / 4)) for batch in range(1, batches + 1))
        for part in parts
    }
    slowed = {part: tuple(rng.random() * ms for ms in each) for part, each in alone.items()}
    slo_ms = rng.choice((20.0, 50.0, 100.0, 400.0))
    return ModelProfile(name=name, slo_ms=slo_ms, memory_mb=1.0, latency_ms=alone, slowed_ms=slowed)


def any_interference(rng: random.Random, models: dict[str, ModelProfile], parts: list[int]) -> Interference:
    """Interference of any kind that a device may have, or none."""
    kind = rng.choice(("none", "tabled", "sum", "log"))
    if kind == "none":
        return NoInterference()
    if kind == "tabled":
        grid = {name: sorted({1, rng.randint(1, one.max_batch), one.max_batch}) for name, one in models.items()}
        return Tabled(
            {
                (name, part, other): np.array([[rng.uniform(0.8, 3) for _ in grid[other]] for _ in grid[name]])
                for name in models
                for part in parts
                for other in models
                if part < 100
            },
            grid,
        )
    own, other = (
        {
            (name, part): tuple(rng.uniform(low, low + 1) for _ in range(one.max_batch))
            for name, one in models.items()
            for part in parts
        }
        for low in (0.5, -0.2)
    )
    return Separable(own, other, is_log=kind == "log")


def any_sizes(rng: random.Random) -> Sizes:
    """Up to four models on a device with up to three pairs of parts."""
    smaller = [rng.choice((10, 20, 25, 30, 33, 40, 50)) for _ in range(rng.randint(0, 3))]
    parts = sorted({100, *smaller, *(100 - part for part in smaller)})
    names = [f"m{at}" for at in range(rng.randint(1, 4))]
    models = {name: any_model(rng, name, parts) for name in names}
    interference = any_interference(rng, models, parts)
    kind = DeviceProfile(name="any", cuts=cuts_of(parts), memory_mb=math.inf, process_mb=0.0, interference=interference)
    return Sizes(models, kind)


def any_share(rng: random.Random) -> float:
    """The share of a batch that arrives: all of it, some, nearly nothing, or nothing."""
    return rng.choice((1.0, 1.0, rng.random(), rng.random() ** 4, 0.0))


def any_plan(rng: random.Random, sizes: Sizes, gpus: int) -> Plan:
    """Parts with up to three models, of those that keep their SLOs; what arrives fills batches, or nearly none.

    Of some plans one model has all parts, in its best batches.
    """
    glets: list[Glet] = []
    names = list(sizes.models)
    only = rng.choice((None, None, rng.choice(names)))
    for gpu in range(gpus):
        cut = rng.choice(sizes.device.cuts)
        loads = [
            [(name, rng.randint(1, sizes.models[name].max_batch)) for name in rng.sample(names, rng.randint(0, most))]
            for most in [min(3, len(names))] * len(cut)
        ]
        if only is not None:
            best = [sizes.saturations(only, part, None)[:1] for part in cut]
            loads = [[(only, batch) for _, batch, _ in each] for each in best]
        for part, load, beside in zip(cut, loads, reversed(loads), strict=True):
            pressure = sizes.pressure(100 - part, beside) if len(cut) > 1 and beside else None
            busy_ms = sum(sizes.latencies(name, part, pressure)[batch - 1] for name, batch in load)
            slo_ms = min((sizes.models[name].slo_ms for name, _ in load), default=0.0)
            if load and 2 * busy_ms <= slo_ms:
                between_ms = rng.uniform(busy_ms, slo_ms - busy_ms)
                cycle_ms = rng.choice((busy_ms, slo_ms - busy_ms, between_ms)) if only is None else busy_ms
                portions = tuple(
                    Portion(
                        model=name, batch=batch, rate=1000 * batch / cycle_ms * (any_share(rng) if only is None else 1)
                    )
                    for name, batch in load
                )
                glets.append(Glet(gpu=gpu, part_pct=part, cycle_ms=cycle_ms, models=portions))
    return Plan(glets=tuple(glets))


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_no_sound_plan_has_fewer_gpus_than_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    sizes = any_sizes(rng)

    for _ in range(20):
        gpus = rng.randint(1, 3)
        found = any_plan(rng, sizes, gpus)
        rates = dict(found.served())
        assert check(found, rates, sizes.models, sizes.device, gpus, with_interference=True) == ()
        assert sizes.percent_min(rates) <= 100 * found.gpus
        assert sizes.gpus_min(rates) <= found.gpus


@pytest.mark.parametrize(
    ("times_ms", "cycle_ms", "above"),
    [
        ({"a": 50.00006}, 50.00006 / 1.0000009, 1.0),
        ({"a": 10.0}, 10 / 1.0000009, 1.0000018),
        ({"a": 0.00103, "b": 49.999}, 100 * 1.00000099 - 50.00003, 1.0),
    ],
)
def test_what_the_checker_takes_at_the_edge_of_its_tolerances_is_not_ruled_out(
    times_ms: dict[str, float], cycle_ms: float, above: float
) -> None:
    models = {
        name: ModelProfile(name=name, slo_ms=100.0, memory_mb=1.0, latency_ms={100: (ms,)}, slowed_ms={100: (ms,)})
        for name, ms in times_ms.items()
    }
    whole = DeviceProfile(name="whole", cuts=((100,),), memory_mb=99.0, process_mb=0.0, interference=NoInterference())
    rate = 1000 / cycle_ms * math.sqrt(above)
    portions = tuple(Portion(model=name, batch=1, rate=rate) for name in models)
    found = Plan(glets=(Glet(gpu=0, part_pct=100, cycle_ms=cycle_ms, models=portions),))
    rates = dict.fromkeys(models, rate * math.sqrt(above))

    assert check(found, rates, models, whole, 1, with_interference=True) == ()
    assert Sizes(models, whole).gpus_min(rates) == 1


def test_a_batch_that_never_fills_costs_a_model_that_takes_turns_more() -> None:
    """Two models whose SLOs allow no turns want two GPUs, at less than half of what one serves of each alone."""
    sizes = Sizes({name: model(name, slo_ms=26.0, flat=0.0) for name in "ab"}, device())
    rates = {name: sizes.best_rate[name][100] / 2.2 for name in "ab"}

    assert sum(rate / sizes.best_rate[name][100] for name, rate in rates.items()) < 1
    assert sizes.gpus_min(rates) == 2
    assert not isinstance(ideal(sizes, rates, 1), Plan)


def test_a_part_that_every_neighbour_slows_costs_more() -> None:
    models = {name: model(name, flat=1.0) for name in "ab"}
    alone, slowed = (Sizes(models, device(slowing(models, share) if share else None)) for share in (0.0, 1.0))
    rates = dict.fromkeys(models, 150.0)

    assert slowed.percent_min(rates) > 1.1 * alone.percent_min(rates)


def test_an_slo_that_nothing_keeps_has_no_bound() -> None:
    sizes = Sizes({"a": model("a", slo_ms=1.0), "b": model("b")}, device())

    assert sizes.gpus_min({"a": 1.0, "b": 1.0}) == -1


@needs_tables
def test_most_numbers_of_gpus_below_the_ideal_are_ruled_out_on_the_shared_table() -> None:
    tables = shared_tables()
    sizes = Sizes(tables.models, tables.device)
    names = sorted(tables.models)
    away: Counter[int] = Counter()

    for at in range(1, 3**9, 997):
        rates = {name: 100.0 * (at // 3**place % 3) * 1.1 for place, name in enumerate(names)}
        least = next((gpus for gpus in range(1, 5) if isinstance(ideal(sizes, rates, gpus), Plan)), None)
        if least is not None:
            away[least - sizes.gpus_min(rates)] += 1

    assert min(away) >= 0
    assert away[0] > away[1]
    assert math.isclose(away[0] + away[1], away.total())
