"""No sound plan, whoever made it, has fewer GPUs than the lower bound says."""

import math
from collections import Counter
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.scheduler.sharing.glet.portfolio import ideal
from farside.scheduler.sharing.glet.size import Sizes
from tests.sharing.drawn import deployments, device, model, needs_tables, shared_tables, slowing

Part = tuple[int, int, tuple[tuple[str, int], ...]]


@st.composite
def parts_in_use(draw: st.DrawFn, sizes: Sizes, gpus: int) -> list[Part]:
    """GPUs that are cut, and up to three models with their batches on each part."""
    found: list[Part] = []
    for gpu in range(gpus):
        for part in draw(st.sampled_from(sizes.device.cuts)):
            names = [name for name in sizes.models if sizes.best_rate[name][part]]
            models = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
            room = len(models) or 1
            most = [[batch for _, batch, ms in sizes.saturations(name, part, None)] for name in models]
            loads = [draw(st.integers(1, max(1, max(batches) // room))) for batches in most]
            found.append((gpu, part, tuple(zip(models, loads, strict=True))))
    return found


def busiest(sizes: Sizes, parts: list[Part], *, longest: bool) -> Plan:
    """The parts that keep their SLOs, each serving all that its batches hold in the shortest cycle or the longest."""
    glets: list[Glet] = []
    for at, (gpu, part, loads) in enumerate(parts):
        beside = [load for other, (one, _, each) in enumerate(parts) if one == gpu and other != at for load in each]
        pressure = sizes.pressure(100 - part, beside) if beside else None
        busy_ms = sum(sizes.latencies(name, part, pressure)[batch - 1] for name, batch in loads)
        slo_ms = min((sizes.models[name].slo_ms for name, _ in loads), default=0.0)
        if loads and 2 * busy_ms <= slo_ms:
            cycle_ms = slo_ms - busy_ms if longest else busy_ms
            models = tuple(Portion(model=name, batch=batch, rate=1000 * batch / cycle_ms) for name, batch in loads)
            glets.append(Glet(gpu=gpu, part_pct=part, cycle_ms=cycle_ms, models=models))
    return Plan(glets=tuple(glets))


@settings(max_examples=300)
@given(data=st.data(), drawn=deployments(), gpus=st.integers(1, 3), longest=st.booleans())
def test_no_sound_plan_has_fewer_gpus_than_the_bound(
    data: st.DataObject, drawn: tuple[Sizes, dict[str, float]], gpus: int, longest: bool
) -> None:
    sizes, _ = drawn
    found = busiest(sizes, data.draw(parts_in_use(sizes, gpus)), longest=longest)
    rates = dict(found.served())
    if not rates:
        return

    # The bound knows nothing of memory.
    roomy = replace(sizes.device, memory_mb=math.inf)
    assert check(found, rates, sizes.models, roomy, gpus, with_interference=True) == ()
    percent = sizes.percent_min(rates)
    event(f"{percent / found.gpus // 20 * 20:.0f} % of its GPUs at least")
    assert percent <= 100 * found.gpus
    assert sizes.gpus_min(rates) <= found.gpus


def test_a_batch_that_never_fills_costs_a_model_that_takes_turns_more() -> None:
    """At 1 % of what they would serve alone, in their best batches, two models whose SLOs allow no turns want two."""
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


def test_a_single_model_shares_with_nobody() -> None:
    sizes = Sizes({name: model(name, flat=0.0) for name in "ab"}, device())

    assert sizes.gpus_min({"a": sizes.best_rate["a"][100] * 2.01, "b": 0.0}) == 3
    assert sizes.gpus_min({"a": 0.0, "b": 0.0}) == 0


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
