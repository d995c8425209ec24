"""What a planner calls scheduled is sound, whatever the models are; and the verdicts fit each other."""

import itertools
import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farside.scheduler.sharing.glet import size
from farside.scheduler.sharing.glet.baseline import HALF_PCT, greedy, squishy
from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.elastic import Packing, Variant, place
from farside.scheduler.sharing.glet.interference import Tabled
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.portfolio import PRINTED, ideal, plan, plan_on, runs_for
from farside.scheduler.sharing.glet.profile import WHOLE_PCT, DeviceProfile, ModelProfile, NoInterference
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.scaling import enough, fewest
from farside.scheduler.sharing.glet.size import Sizes
from tests.sharing.drawn import BATCHES, PARTS, deployments, device, model, needs_tables, shared_tables, slowing

Planner = Callable[[Sizes, Mapping[str, float], int], Plan | Refusal]
WITH_INTERFERENCE: dict[str, Planner] = {
    "glet+int": plan,
    "fewest": fewest,
    "ideal": ideal,
    "sbp": squishy,
    **{f"{variant.knee}, {variant.merge_first}": partial(place, variant=variant) for variant in PRINTED},
}
WITHOUT: dict[str, Planner] = {
    "glet": plan,
    "greedy": greedy,
    "half": lambda sizes, rates, gpus: squishy(sizes, rates, gpus, HALF_PCT),
}


def problems(found: Plan | Refusal, sizes: Sizes, rates: Mapping[str, float], gpus: int, *, slowed: bool) -> object:
    if isinstance(found, Refusal):
        return ()
    return check(found, rates, sizes.models, sizes.device, gpus, with_interference=slowed)


def alone(sizes: Sizes) -> Sizes:
    return Sizes(sizes.models, replace(sizes.device, interference=NoInterference()))


@settings(max_examples=60)
@given(drawn=deployments())
def test_whatever_a_planner_calls_scheduled_passes_the_checker(drawn: tuple[Sizes, dict[str, float]]) -> None:
    sizes, rates = drawn
    without = alone(sizes)

    for name, planner in WITH_INTERFERENCE.items():
        assert problems(planner(sizes, rates, 2), sizes, rates, 2, slowed=True) == (), name
    for name, planner in WITHOUT.items():
        assert problems(planner(without, rates, 2), without, rates, 2, slowed=False) == (), name


@settings(max_examples=40)
@given(drawn=deployments())
def test_what_squishy_bin_packing_plans_glet_plans_and_what_glet_plans_the_ideal_plans(
    drawn: tuple[Sizes, dict[str, float]],
) -> None:
    sizes, rates = drawn
    verdicts = [isinstance(planner(sizes, rates, 2), Plan) for planner in (squishy, plan, ideal)]

    assert verdicts == sorted(verdicts)


@settings(max_examples=40)
@given(drawn=deployments())
def test_a_gpu_more_never_turns_yes_into_no(drawn: tuple[Sizes, dict[str, float]]) -> None:
    sizes, rates = drawn
    verdicts = [isinstance(plan(sizes, rates, gpus), Plan) for gpus in (1, 2, 3)]

    assert verdicts == sorted(verdicts)


def test_a_gpu_more_never_turns_yes_into_no_where_many_models_have_few_tries() -> None:
    """The tries for 51 and 52 GPUs fail, those for 50 do not."""
    rng = random.Random(332)
    models = {
        f"m{at}": model(f"m{at}", slo_ms=rng.choice((40.0, 80.0, 200.0)), flat=rng.random(), each_ms=rng.uniform(1, 4))
        for at in range(26)
    }
    sizes = Sizes(models, device(slowing(models, 0.5)))
    rates = {name: rng.uniform(50, rng.choice((900, 1300))) for name in models}
    assert [isinstance(plan_on(sizes, rates, gpus), Plan) for gpus in (49, 50, 51, 52)] == [False, True, False, False]

    found = [plan(sizes, rates, gpus) for gpus in (50, 51, 52)]

    assert found == [found[0]] * 3
    assert isinstance(found[0], Plan)


@settings(max_examples=30)
@given(drawn=deployments())
def test_order_and_names_of_models_do_not_matter(drawn: tuple[Sizes, dict[str, float]]) -> None:
    sizes, rates = drawn
    names = list(sizes.models)
    renamed = {old: f"z{len(names) - at}" for at, old in enumerate(names)}
    models = {renamed[old]: renamed_model(sizes.models[old], renamed[old]) for old in reversed(names)}
    slowed = not isinstance(sizes.device.interference, NoInterference)
    other = Sizes(models, replace(sizes.device, interference=slowing(models, 0.1) if slowed else NoInterference()))
    ours = Sizes(sizes.models, replace(sizes.device, interference=slowing(sizes.models, 0.1))) if slowed else sizes

    found = plan(ours, rates, 2)
    again = plan(other, {renamed[name]: rate for name, rate in reversed(rates.items())}, 2)

    assert isinstance(found, Plan) == isinstance(again, Plan)
    if isinstance(found, Plan) and isinstance(again, Plan):
        assert (found.gpus, found.part_pct) == (again.gpus, again.part_pct)


def renamed_model(one: ModelProfile, name: str) -> ModelProfile:
    return replace(one, name=name)


def test_equal_inputs_give_equal_plans() -> None:
    models = {name: model(name, slo_ms=slo_ms) for name, slo_ms in (("a", 50.0), ("b", 100.0), ("c", 200.0))}
    rates = {"a": 100.0, "b": 60.0, "c": 30.0}
    reversed_rates = dict(reversed(rates.items()))

    found, again = plan(Sizes(models, device()), rates, 4), plan(Sizes(models, device()), reversed_rates, 4)

    assert isinstance(found, Plan)
    assert isinstance(again, Plan)
    assert found.digest() == again.digest()


def test_the_fewest_gpus_are_searched_and_not_only_grown() -> None:
    models = {name: model(name, flat=0.9) for name in "abcdef"}
    sizes, rates = Sizes(models, device()), dict.fromkeys("abcdef", 30.0)

    found = fewest(sizes, rates, 6)

    assert isinstance(found, Plan)
    assert isinstance(plan(sizes, rates, found.gpus), Plan)
    assert found.gpus == 1 or isinstance(plan(sizes, rates, found.gpus - 1), Refusal)


def test_a_refusal_says_how_many_gpus_would_do() -> None:
    sizes, rates = Sizes({"a": model("a")}, device()), {"a": 900.0}

    refusal = plan(sizes, rates, 2)
    count = enough(sizes, rates, 2)

    assert isinstance(refusal, Refusal)
    assert refusal.gpus_min > 2
    assert count is not None
    assert isinstance(plan(sizes, rates, count), Plan)
    assert isinstance(plan(sizes, rates, count - 1), Refusal)


def test_an_slo_that_no_batch_can_meet_is_named_with_the_shortest_that_can() -> None:
    sizes = Sizes({"a": model("a", slo_ms=11.9)}, device())

    refusal = plan(sizes, {"a": 1.0}, 1)

    assert isinstance(refusal, Refusal)
    assert "12 ms" in refusal.why
    assert enough(sizes, {"a": 1.0}, 1) is None


# ---- sizes


def test_the_knee_by_the_chord_is_where_a_larger_part_stops_to_help() -> None:
    sizes = Sizes({"a": model("a", flat=0.9)}, device())
    served = sizes.best_rate["a"]
    above = {part: served[part] - served[20] - (served[100] - served[20]) * (part - 20) / 80 for part in PARTS}

    assert above[sizes.knee("a", "chord")] == max(above.values())


def test_a_model_that_gains_by_every_percent_has_no_knee_below_the_whole() -> None:
    # What it serves is proportional to the part: no part is better than another, so it is not cut.
    assert Sizes({"a": model("a", flat=0.0, slo_ms=1e6)}, device()).knee("a", "chord") == 100


def test_the_required_part_is_found_with_the_best_batch_of_each_part() -> None:
    # The authors' code keeps the batch of the largest part. Here 20 % serves only small batches within the SLO.
    sizes = Sizes({"a": model("a", slo_ms=60.0)}, device())
    served = sizes.best_rate["a"]

    assert sizes.required("a", served[20]) == 20
    assert sizes.required("a", served[20] * 1.01) == 40
    assert sizes.required("a", served[100] * 1.01) is None


def test_the_lower_bound_is_never_above_what_a_plan_needs() -> None:
    sizes, rates = Sizes({"a": model("a"), "b": model("b", slo_ms=50.0)}, device()), {"a": 200.0, "b": 70.0}
    found = fewest(sizes, rates, 8)

    assert isinstance(found, Plan)
    assert 1 <= sizes.gpus_min(rates) <= found.gpus


@settings(max_examples=40)
@given(drawn=deployments())
def test_models_that_may_not_share_a_part_never_do(drawn: tuple[Sizes, dict[str, float]]) -> None:
    """What rules a pair out at once rules out no pair that has batches."""
    sizes, rates = drawn
    packing = Packing(sizes, 1)
    asked = [name for name, rate in rates.items() if rate > 0]

    for pair in itertools.combinations(asked, 2):
        for part in PARTS:
            together = list(packing.fittings(pair, (rates[pair[0]], rates[pair[1]]), part, None))
            assert sizes.may_share(pair, part) or not together


@settings(max_examples=40)
@given(drawn=deployments())
def test_a_part_serves_a_rate_alone_where_its_best_batch_does(drawn: tuple[Sizes, dict[str, float]]) -> None:
    sizes, rates = drawn

    for name, rate in rates.items():
        for part in PARTS:
            found = list(sizes.alone(name, rate, part, None)) if rate > 0 else []
            assert bool(found) == (0 < rate <= sizes.best_rate[name][part])
            assert [one.cycle_ms for one in found] == sorted((one.cycle_ms for one in found), reverse=True)


@settings(max_examples=60)
@given(drawn=deployments(), bump=st.sampled_from([1.0, 1.6]), part=st.sampled_from(PARTS))
def test_no_cycle_in_which_two_models_keep_their_slos_on_a_part_is_passed_over(
    drawn: tuple[Sizes, dict[str, float]], bump: float, part: int
) -> None:
    """Also where a larger batch takes less time than a smaller one."""
    sizes, rates = drawn
    bumpy = {name: bumped(one, bump) for name, one in sizes.models.items()}
    sizes = Sizes(bumpy, sizes.device)

    for models in itertools.combinations([name for name, rate in rates.items() if rate > 0], 2):
        asked = rates[models[0]], rates[models[1]]
        times = [bumpy[name].latency_ms[part] for name in models]
        slo_ms = min(bumpy[name].slo_ms for name in models)
        fit = set()
        for cycle_ms in {1000 * batch / rate for rate in asked for batch in range(1, BATCHES + 1)}:
            batches = tuple(max(1, math.ceil(rate * cycle_ms / 1000 - 1e-9)) for rate in asked)
            if max(batches) <= BATCHES:
                busy_ms = sum(each[batch - 1] for batch, each in zip(batches, times, strict=True))
                if busy_ms <= cycle_ms <= slo_ms - busy_ms:
                    fit.add(batches)
        found = list(Packing(sizes, 1).fittings(models, asked, part, None))
        assert fit <= {one.batches for one in found}
        assert all(one.busy_ms <= one.cycle_ms <= slo_ms - one.busy_ms + 1e-9 for one in found)


def bumped(one: ModelProfile, bump: float) -> ModelProfile:
    """A model whose every third batch takes so many times as long."""
    slower = {
        part: tuple(ms * (bump if batch % 3 == 1 else 1.0) for batch, ms in enumerate(times))
        for part, times in one.latency_ms.items()
    }
    return replace(one, latency_ms=slower, slowed_ms=slower)


# ---- faults of the paper and of its authors' code


def test_a_cycle_is_not_stretched_beyond_the_slo_by_a_low_rate() -> None:
    found = plan(Sizes({"a": model("a")}, device()), {"a": 0.5}, 1)

    assert isinstance(found, Plan)
    assert found.glets[0].cycle_ms < 100


def test_what_a_slowed_neighbour_no_longer_serves_goes_back_to_its_own_model() -> None:
    models = {"a": model("a", slo_ms=40.0), "b": model("b", slo_ms=60.0)}
    sizes = Sizes(models, device(slowing(models, 0.4)))

    for a, b in itertools.product((60.0, 120.0, 180.0), repeat=2):
        found = place(sizes, {"a": a, "b": b}, 3, Variant())
        if isinstance(found, Plan):
            served = found.served()
            assert served["a"] == pytest.approx(a)
            assert served["b"] == pytest.approx(b)


def test_many_gpus_are_filled_as_densely_as_few() -> None:
    """After some sixty parts the search was given up, and bin packing on whole GPUs was left."""
    models = {"a": model("a", flat=0.9)}
    sizes = Sizes(models, device(slowing(models, 0.1)))
    few = fewest(sizes, {"a": 1000.0}, 64)
    assert isinstance(few, Plan)
    assert few.glets[0].part_pct < WHOLE_PCT

    for times in (4, 12):
        rates = {"a": 1000.0 * times}
        found = fewest(sizes, rates, few.gpus * times)
        assert isinstance(found, Plan)
        assert found.gpus <= few.gpus * times
        assert problems(found, sizes, rates, found.gpus, slowed=True) == ()


def test_one_model_on_both_parts_of_a_gpu_takes_what_its_other_part_gives_back() -> None:
    models = {"a": model("a", flat=1.0)}
    sizes = Sizes(models, device(slowing(models, 0.3)))
    whole = sizes.best_rate["a"][WHOLE_PCT]
    rates = {"a": 1.3 * whole}

    found = plan(sizes, rates, 1)

    assert isinstance(squishy(sizes, rates, 1), Refusal)
    assert isinstance(found, Plan)
    assert found.served()["a"] == pytest.approx(rates["a"])
    assert problems(found, sizes, rates, 1, slowed=True) == ()


def test_models_without_a_rate_cost_no_tries() -> None:
    rates, idle = dict.fromkeys("abcdef", 30.0), dict.fromkeys((f"idle{at}" for at in range(60)), 0.0)

    assert runs_for({**rates, **idle}, 64) == runs_for(rates, 64) > runs_for({**rates, **dict.fromkeys(idle, 1.0)}, 64)


def test_a_rate_below_fifteen_requests_a_second_is_placed_alone() -> None:
    found = plan(Sizes({"a": model("a")}, device()), {"a": 0.01}, 1)

    assert isinstance(found, Plan)
    assert found.served() == {"a": 0.01}


def test_greedy_best_fit_shares_no_part_in_time() -> None:
    models = {name: model(name) for name in "abc"}

    found = greedy(Sizes(models, device()), dict.fromkeys(models, 20.0), 3)

    assert isinstance(found, Plan)
    assert all(len(glet.models) == 1 for glet in found.glets)


def test_greedy_takes_no_larger_part_that_serves_less_than_the_rate() -> None:
    """Measured latencies may be longer on a larger part: the free 80 % serves less than the 60 % that a model needs."""

    def timed(name: str, times: dict[int, float]) -> ModelProfile:
        alone_ms = {part: (ms,) for part, ms in times.items()}
        return ModelProfile(name=name, slo_ms=100.0, memory_mb=1.0, latency_ms=alone_ms, slowed_ms=alone_ms)

    first = timed("b", {20: 10.0, 40: 9.0, 50: 9.0, 60: 9.0, 80: 9.0, 100: 9.0})
    second = timed("a", {20: 40.0, 40: 40.0, 50: 40.0, 60: 10.0, 80: 15.0, 100: 10.0})
    sizes, rates = Sizes({"a": second, "b": first}, device()), {"b": 50.0, "a": 75.0}

    found, refused = greedy(sizes, rates, 2), greedy(sizes, rates, 1)

    assert isinstance(found, Plan)
    assert problems(found, sizes, rates, 2, slowed=False) == ()
    assert isinstance(refused, Refusal)
    assert "60 %" in refused.why


def test_greedy_plans_what_a_part_serves_to_the_last_bit() -> None:
    rng = random.Random(2)
    for _ in range(300):
        one = drawn_model("a", rng)
        sizes = Sizes({"a": one}, device())
        for part in PARTS:
            rates = {"a": sizes.best_rate["a"][part]}
            assert problems(greedy(sizes, rates, 1), sizes, rates, 1, slowed=False) == ()


@pytest.mark.parametrize("rate", [10.0, 60.0, 120.0])
def test_greedy_takes_the_part_at_which_tuning_would_end(rate: float) -> None:
    """The smallest that serves the rate within the SLO: with the next smaller one more would come than it serves."""
    sizes = Sizes({"a": model("a", flat=0.4)}, device())

    found = greedy(sizes, {"a": rate}, 1)

    assert isinstance(found, Plan)
    (part,) = [glet.part_pct for glet in found.glets]
    assert sizes.best_rate["a"][part] >= rate
    assert all(sizes.best_rate["a"][smaller] < rate for smaller in PARTS if smaller < part)


# ---- what is kept between tries and decisions


def test_what_was_planned_before_changes_no_plan() -> None:
    rng = random.Random(5)
    models = {
        f"m{at}": model(f"m{at}", slo_ms=rng.choice((40.0, 80.0, 200.0)), flat=rng.random(), each_ms=rng.uniform(1, 4))
        for at in range(6)
    }
    profile = device(slowing(models, 0.6))
    kept, yes = Sizes(models, profile), 0

    for _ in range(80):
        # Few values, so that what is kept is asked for again, beside other neighbours.
        rates = {name: rng.choice((0.0, 60.0, 120.0, 240.0)) for name in models}
        found = fewest(kept, rates, 4)
        assert found == fewest(Sizes(models, profile), rates, 4)
        yes += isinstance(found, Plan)

    assert 20 < yes < 80


def test_a_plan_does_not_depend_on_how_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {name: model(name, slo_ms=slo_ms) for name, slo_ms in zip("abcd", (40.0, 60.0, 100.0, 200.0), strict=True)}
    profile, rates = device(slowing(models, 0.4)), dict.fromkeys("abcd", 45.0)
    sizes = Sizes(models, profile)
    kept = fewest(sizes, rates, 3)
    assert isinstance(kept, Plan)
    assert len(sizes.seats) > 1

    monkeypatch.setattr(size, "KEPT_MAX", 1)
    small = Sizes(models, profile)
    assert fewest(small, rates, 3) == kept
    assert len(small.seats) == 1


def test_a_decision_of_batches_up_to_1024_calls_no_function_for_each_of_them() -> None:
    """It asks for neighbours in hundreds of batches, each of which slows all of a model's: that took up to 18 s."""
    models = {
        f"m{at}": model(f"m{at}", slo_ms=400.0, fixed_ms=1.0 + at, each_ms=0.1, max_batch=1024) for at in range(3)
    }
    batches = (1, 32, 1024)
    beside = 1 + np.add.outer((0.0, 0.1, 0.2), (0.0, 0.2, 0.5))
    cells = {(name, part, other): beside for name in models for part in PARTS if part < 100 for other in models}
    sizes = Sizes(models, device(Tabled(cells, dict.fromkeys(models, batches))))
    sizes.gpus_min(dict.fromkeys(models, 1.0))

    calls = calls_of(lambda: fewest(sizes, dict.fromkeys(models, 4321.0), 4))

    assert calls < 1_000_000


def test_the_more_batches_an_answer_has_the_fewer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dict.fromkeys(range(size.NUMBERS_MAX // 1024), 0.0)
    size.make_room(kept)
    assert kept
    size.make_room(kept, 1024)
    assert not kept

    models = {name: model(name, slo_ms=slo_ms) for name, slo_ms in zip("abcd", (40.0, 60.0, 100.0, 200.0), strict=True)}
    profile, rates = device(slowing(models, 0.4)), dict.fromkeys("abcd", 45.0)
    expected = fewest(Sizes(models, profile), rates, 3)
    monkeypatch.setattr(size, "NUMBERS_MAX", 1)
    assert fewest(Sizes(models, profile), rates, 3) == expected


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, those in C included."""
    calls, before = 0, sys.getprofile()

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


# ---- the derived table


def table_case(seed: int) -> tuple[Sizes, dict[str, float]]:
    tables = shared_tables()
    rng = random.Random(seed)
    return Sizes(tables.models, tables.device), {
        name: planned_rate(rng.choice((0, 100, 200))) for name in sorted(tables.models)
    }


@needs_tables
def test_squishy_bin_packing_schedules_2024_scenarios_of_the_derived_table() -> None:
    tables = shared_tables()
    sizes, names = Sizes(tables.models, tables.device), sorted(tables.models)
    rates = {0: 0.0, 100: planned_rate(100), 200: planned_rate(200)}

    found = sum(
        isinstance(squishy(sizes, dict(zip(names, (rates[one] for one in scenario), strict=True)), 4), Plan)
        for scenario in itertools.product((0, 100, 200), repeat=9)
        if any(scenario)
    )

    assert found == 2024


@needs_tables
def test_plans_of_the_derived_table_pass_with_interference() -> None:
    yes = 0
    for seed in range(120):
        sizes, rates = table_case(seed)
        found = fewest(sizes, rates, 4)
        assert problems(found, sizes, rates, 4, slowed=True) == ()
        yes += isinstance(found, Plan)

    # Seven in ten of all scenarios have a plan.
    assert 60 < yes < 110


@needs_tables
def test_plans_without_interference_fail_with_it_in_places() -> None:
    failed = 0
    for seed in range(60):
        sizes, rates = table_case(seed)
        without = alone(sizes)
        found = plan(without, rates, 4)
        assert problems(found, without, rates, 4, slowed=False) == ()
        failed += problems(found, sizes, rates, 4, slowed=True) != ()

    assert failed > 0


@example(0)
@given(seed=...)
@settings(max_examples=5)
def test_random_tables_never_raise(seed: int) -> None:
    rng = random.Random(seed)
    models = {f"m{at}": drawn_model(f"m{at}", rng) for at in range(rng.randint(1, 5))}
    sizes = Sizes(models, device(slowing(models, rng.random())))
    for planner in WITH_INTERFERENCE.values():
        rates = {name: 10 ** rng.uniform(-1, 4) for name in models}
        assert problems(planner(sizes, rates, 3), sizes, rates, 3, slowed=True) == ()


def test_no_planner_raises_where_an_slo_is_twice_a_latency_but_for_rounding() -> None:
    """Such a batch counts as within it by every way to ask."""
    rng = random.Random(1)
    for _ in range(200):
        # As a table has it: a tenth on top of a run and the building of its batch.
        run_ms = round(rng.uniform(0.5, 20), 1)
        alone_ms: dict[int, tuple[float, ...]] = dict.fromkeys(PARTS, (1.1 * (run_ms + 0.4),))
        one = ModelProfile(
            name="a", slo_ms=round(2.2 * (run_ms + 0.4), 6), memory_mb=1, latency_ms=alone_ms, slowed_ms=alone_ms
        )
        sizes = Sizes({"a": one}, device())
        for name, planner in (WITH_INTERFERENCE | WITHOUT).items():
            for rate in (sizes.best_rate["a"][100] / 3, sizes.best_rate["a"][100]):
                found = planner(sizes, {"a": rate}, 1)
                assert isinstance(found, Plan), name
                assert problems(found, sizes, {"a": rate}, 1, slowed=True) == (), name


def drawn_model(name: str, rng: random.Random) -> ModelProfile:
    """Latencies that rise with the batch and fall with the part, by steps of any size."""
    largest = rng.randint(1, 16)
    latencies: dict[int, tuple[float, ...]] = {}
    before = [0.0] * largest
    for part in reversed(PARTS):
        row, least = [], 0.0
        for at in range(largest):
            least = max(least, before[at]) + rng.choice((0.0, rng.random() * 5)) + 1e-3
            row.append(least)
        before = row
        latencies[part] = tuple(row)
    return ModelProfile(
        name=name,
        slo_ms=10 ** rng.uniform(0, 2.5),
        memory_mb=rng.uniform(0, 6000),
        latency_ms=latencies,
        slowed_ms={part: tuple(one * rng.random() for one in row) for part, row in latencies.items()},
    )


def test_a_device_profile_lists_its_parts_once() -> None:
    assert device().parts == PARTS
    assert device().cuts == ((100,), (50, 50), (60, 40), (80, 20))
    assert isinstance(device(), DeviceProfile)
