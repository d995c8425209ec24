"""Interference is fitted to what was measured, judged by what the fit has not seen, and safe where it is guessed."""

import random

import pytest

from farside.scheduler.sharing.glet import size
from farside.scheduler.sharing.glet.fit import FORMS, CoRun, Pair, error_of, fit, fit_form, measured_by_predicted
from farside.scheduler.sharing.glet.interference import Separable, Tabled, tabled
from farside.scheduler.sharing.glet.profile import Interference
from farside.serve.table import read_co_runs
from tests.sharing.drawn import GLET_DATA, needs_tables

BATCHES = {"a": (1, 2, 4), "b": (1, 4), "c": (1, 2)}
PARTS = (20, 80, 100)
UTILISATION = {
    (model, part, batch): (part / 100 * batch / 8, part / 100 * (1 + at) / 8)
    for at, (model, batches) in enumerate(BATCHES.items())
    for part in PARTS
    for batch in batches
}


def true_factor(pair: Pair) -> float:
    other = UTILISATION[pair.other, pair.other_part_pct, pair.other_batch]
    return 1.0 + 0.5 * other[0] + 0.8 * other[1]


def co_runs(names: str = "ab") -> list[CoRun]:
    pairs = [
        Pair(model, part, batch, other, 100 - part, other_batch)
        for model in names
        for part in (20, 80)
        for batch in BATCHES[model]
        for other in names
        for other_batch in BATCHES[other]
    ]
    return [CoRun(pair=pair, factor=true_factor(pair)) for pair in pairs]


def test_five_terms_find_the_coefficients_that_made_the_co_runs() -> None:
    known = co_runs()

    errors = error_of(measured_by_predicted(fit_form("utilisation", known, UTILISATION), known))

    assert errors.p95 < 1e-9


def test_the_form_with_the_least_error_is_taken_and_all_errors_are_published() -> None:
    fitted = fit(co_runs(), UTILISATION, random.Random(1))

    assert set(fitted.errors) == set(FORMS)
    assert fitted.form == "utilisation"
    assert fitted.safety == pytest.approx(1.0)


def test_a_device_without_counters_is_fitted_without_them() -> None:
    fitted = fit(co_runs(), {}, random.Random(1))

    assert "utilisation" not in fitted.errors
    assert fitted.errors[fitted.form].p90 <= fitted.errors["none"].p90


def test_a_measured_co_run_goes_before_what_is_predicted() -> None:
    known = co_runs()
    odd = CoRun(pair=known[0].pair, factor=3.0)
    fitted = fit(known, UTILISATION, random.Random(1))

    table = tabled(fitted, [*known[1:], odd], PARTS, BATCHES)
    pair = odd.pair
    factors = table.factors(pair.model, pair.part_pct, table.pressure(pair.other_part_pct, [(pair.other, 1)]))

    assert factors[pair.batch - 1] == pytest.approx(3.0)


def test_what_is_guessed_has_the_safety_on_top() -> None:
    fitted = fit(co_runs(), UTILISATION, random.Random(1))
    safe = type(fitted)(form=fitted.form, predict=fitted.predict, errors=fitted.errors, safety=1.5)

    plain, above = (tabled(one, co_runs(), PARTS, BATCHES) for one in (fitted, safe))

    def of_new_model(table: Tabled) -> float:
        return float(table.factors("c", 20, (("a", 4),))[0])

    assert of_new_model(above) == pytest.approx(1.5 * of_new_model(plain))


def test_the_worst_of_a_neighbours_models_counts_and_none_makes_anything_faster() -> None:
    own, other = {("a", 20): (0.5, 0.9)}, {("b", 80): (0.2, 0.6), ("c", 80): (0.4, 0.4)}
    table = Separable(own, other, is_log=False)

    assert table.factors("a", 20, table.pressure(80, [("b", 1), ("c", 2)])) == pytest.approx([1.0, 1.3])
    assert table.pressure(80, []) is None


def test_no_neighbour_slows_less_than_the_least() -> None:
    own = {("a", 20): (0.5, 0.9), ("b", 20): (0.1, 0.1)}
    other = {("a", 80): (0.7, 0.3), ("b", 80): (0.2, 0.6)}
    table = tabled(fit(co_runs(), UTILISATION, random.Random(1)), co_runs(), PARTS, BATCHES)
    cases: list[tuple[Interference, str, dict[str, int]]] = [
        (Separable(own, other, is_log=False), "a", {"a": 2, "b": 2}),
        (Separable(own, other, is_log=True), "a", {"a": 2, "b": 2}),
        (table, "b", {name: batches[-1] for name, batches in BATCHES.items()}),
    ]

    for interference, model, most in cases:
        loads = [(name, batch) for name, largest in most.items() for batch in range(1, largest + 1)]
        beside = [interference.factors(model, 20, interference.pressure(80, [load])) for load in loads]
        least = interference.least(model, 20, most[model])
        nearest = [min(each) for each in zip(*beside, strict=True)]
        assert all(1 <= bound <= least_of_all + 1e-12 for bound, least_of_all in zip(least, nearest, strict=True))
        # It is reached at the batches that were measured.
        assert least[0] == pytest.approx(nearest[0])


def test_factors_of_large_batches_are_kept_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit(co_runs(), UTILISATION, random.Random(1))

    def are_kept() -> bool:
        table = tabled(fitted, co_runs(), PARTS, BATCHES)
        first = table.factors("a", 20, (("b", 1),))
        table.factors("a", 20, (("b", 4),))
        again = table.factors("a", 20, (("b", 1),))
        assert again == first
        return again is first

    assert are_kept()
    monkeypatch.setattr(size, "NUMBERS_MAX", 1)
    assert not are_kept()


@needs_tables
def test_the_shared_co_runs_are_predicted_within_the_bar() -> None:
    measured = read_co_runs(GLET_DATA, "mps")

    fitted = fit(measured.co_runs, measured.utilisation, random.Random(1))

    assert len(measured.co_runs) == 3675
    assert fitted.errors[fitted.form].p50 < 0.05
    assert fitted.errors[fitted.form].p90 < 0.20
    # The paper's form is far behind.
    assert fitted.errors["utilisation"].p90 > 0.25
