"""What comes of plans when requests arrive by chance."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from farside.cli.serve import SimulateRequest
from farside.cli.serving.simulate import run
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.scheduler.sharing.glet.portfolio import plan
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.scaling import fewest
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.serving.arrivals import Course, drawn
from farside.scheduler.sim.serving.play import Epochs, EpochSettings, Played, play_plan, violated_share
from tests.sharing.drawn import device, model, slowing
from tests.sharing.tables import MODELS as MODELS_FILE
from tests.sharing.tables import derived, latencies, utilisation

MODELS = {"a": model("a"), "b": model("b", slo_ms=200.0)}
SIZES = Sizes(MODELS, device(slowing(MODELS, 0.1)))


def steady(rate: float, seconds: float = 60.0) -> Course:
    return Course(from_s=(0.0,), rates=({"a": rate, "b": rate},), until_s=seconds)


def made(rate: float, gpus: int = 4) -> Plan:
    found = plan(SIZES, dict.fromkeys(MODELS, planned_rate(rate)), gpus)
    assert isinstance(found, Plan)
    return found


def epochs(course: Course, gpus_max: int = 6) -> Played:
    settings = EpochSettings(gpus_max=gpus_max, reorganise_s=2.0)
    return Epochs(
        lambda rates, gpus: fewest(SIZES, rates, gpus), course, SIZES, SIZES, settings, np.random.default_rng(1)
    ).run()


def test_equal_seeds_draw_equal_requests_and_the_rate_is_that_of_the_course() -> None:
    course = Course(from_s=(0.0, 50.0), rates=({"a": 100.0}, {"a": 10.0}), until_s=100.0)

    times, again = (drawn(course, np.random.default_rng(3))["a"] for _ in range(2))

    assert times == again == sorted(times)
    assert sum(at < 50 for at in times) == pytest.approx(5000, rel=0.1)
    assert sum(at >= 50 for at in times) == pytest.approx(500, rel=0.2)


def test_a_planned_rate_is_served_within_its_slo() -> None:
    outcomes = play_plan(made(100.0), steady(100.0), SIZES, SIZES, np.random.default_rng(1))

    assert sum(one.requests for one in outcomes.values()) == pytest.approx(12_000, rel=0.05)
    assert violated_share(outcomes) < 0.01


def test_under_overload_requests_are_dropped_and_those_served_are_in_time() -> None:
    full = play_plan(made(100.0), steady(150.0), SIZES, SIZES, np.random.default_rng(1))
    twice = play_plan(made(100.0), steady(300.0), SIZES, SIZES, np.random.default_rng(1))

    for name in MODELS:
        assert twice[name].dropped > 0.2 * twice[name].requests
        assert twice[name].late < 0.01 * twice[name].requests
        # Nobody starves, and goodput does not collapse.
        assert twice[name].met > 0.85 * full[name].met


def test_two_equal_halves_of_a_gpu_serve_twice_as_much_as_one() -> None:
    half = Glet(gpu=0, part_pct=50, cycle_ms=40.0, models=(Portion(model="a", batch=4, rate=100.0),))
    flood = Course(from_s=(0.0,), rates=({"a": 2000.0},), until_s=10.0)

    one, both = (
        play_plan(Plan(glets=glets), flood, SIZES, Sizes(MODELS, device()), np.random.default_rng(1))["a"].met
        for glets in ((half,), (half, msgspec.structs.replace(half)))
    )

    assert both > 1.8 * one


def test_every_request_ends_once() -> None:
    for one in play_plan(made(50.0), steady(80.0), SIZES, SIZES, np.random.default_rng(2), early=False).values():
        assert one.requests == one.met + one.late + one.dropped


def test_a_step_is_followed_and_gpus_are_given_back_later() -> None:
    course = Course(
        from_s=(0.0, 110.0, 210.0), rates=({"a": 40.0, "b": 40.0}, {"a": 200.0, "b": 200.0}, {"a": 40.0, "b": 40.0}),
        until_s=400.0,
    )  # fmt: skip

    played = epochs(course)
    gpus = {round(one.at_s): one.gpus for one in played.windows}
    violated = {round(one.at_s): sum(one.violated.values()) / sum(one.requests.values()) for one in played.windows}

    assert any(cause in ("burst", "drops") and 110 < at_s < 115 for at_s, cause in played.switches)
    assert gpus[180] > gpus[100]
    assert gpus[400] < gpus[180]
    # The window of the step suffers, those after it do not.
    assert max(violated[at] for at in (60, 80, 100, 160, 180, 200)) < 0.01


def test_a_steady_rate_changes_the_plan_only_where_chance_makes_it_too_small() -> None:
    played = epochs(steady(100.0, 200.0))

    # Ten periods, and forty times five seconds in which it might.
    assert len(played.switches) <= 8
    assert played.refused == 0


def test_rates_beyond_all_gpus_take_them_all_and_every_model_is_served_alike() -> None:
    rates = ({"a": 20.0, "b": 20.0}, {"a": 900.0, "b": 900.0})
    course = Course(from_s=(0.0, 20.0), rates=rates, until_s=160.0)

    played = epochs(course, gpus_max=2)
    last = [one for one in played.windows if one.at_s > 100]

    assert played.refused
    assert {one.gpus for one in last} == {2}
    lost = {
        name: sum(one.violated[name] for one in last) / sum(one.requests[name] for one in last) for name in MODELS
    }  # fmt: skip
    assert max(lost.values()) < 0.8
    # What is planned is the same share; what glets do besides goes to whom it suits.
    assert 1 - min(lost.values()) < 2 * (1 - max(lost.values()))
    # Steady rates are planned for once, and not at every look at what is dropped.
    assert len([at_s for at_s, _ in played.switches if at_s > 60]) <= 2


def test_too_much_from_the_first_second_on_is_served_in_part() -> None:
    played = epochs(steady(900.0, 40.0), gpus_max=1)

    assert played.windows[-1].gpus == 1
    assert all(one.met > 0.05 * one.requests for one in played.outcomes.values())


# ---- the command


def simulated(folder: Path, **fields: Any) -> tuple[int, Any]:
    out = folder / "out.json"
    code = run(SimulateRequest(table=folder, **fields), out)
    return code, json.loads(out.read_bytes())


def test_the_command_compares_schedulers_on_the_same_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, figures = simulated(
        derived(tmp_path), rates="small=200,large=20", gpus=2, scheduler="glet+int,sbp", duration_s=20.0
    )

    assert code == 0
    assert [one["scheduler"] for one in figures] == ["glet+int", "sbp"]
    assert figures[0]["models"]["small"]["requests"] == figures[1]["models"]["small"]["requests"]
    for one in figures:
        for each in one["models"].values():
            assert each["requests"] == each["met"] + each["late"] + each["dropped"]
    assert "requests/s within their SLO" in " ".join(capsys.readouterr().out.split())


def test_recorded_rates_are_planned_anew_as_they_change(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    path.write_text("at_s,small,large\n0,50,5\n30,400,20\n")

    code, (figures,) = simulated(derived(tmp_path), recorded=path, gpus=4, reorganise_s=1.0, duration_s=60.0)

    assert code == 0
    assert len(figures["switches"]) > 1


def test_the_plan_of_the_start_counts_before_the_first_window_of_results_ends(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    path.write_text("at_s,small,large\n0,50,5\n")

    _, (figures,) = simulated(derived(tmp_path), recorded=path, gpus=4, duration_s=10.0)

    assert figures["goodput"] > 0
    assert (figures["gpus"], figures["part_pct"] > 0) == (1, True)


def test_a_scheduler_without_a_plan_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, (figures,) = simulated(derived(tmp_path), rates="large=900", gpus=1)

    assert code == 1
    assert "large does not fit" in figures["why"]
    assert "large does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "wants --rates or --recorded"),
        (
            {"rates": "small=1", "scheduler": "glet,glut"},
            "--scheduler 'glet,glut': 'glut' is no scheduler; choose",
        ),
        (
            {"rates": "small=1", "scheduler": ""},
            "--scheduler '': names no scheduler; choose of sbp, half",
        ),
        ({"rates": "small=1", "scheduler": "ideal", "gpus": 64}, "are too many"),
        ({"rates": "small=1", "duration_s": 0.0}, "--duration-s 0"),
        ({"rates": "small=1", "load": float("nan")}, "--load nan"),
        ({"recorded": Path("/nowhere.csv"), "load": 0.5}, "--load is of --rates"),
        ({"recorded": Path("/nowhere.csv"), "reorganise_s": -1.0}, "--reorganise-s -1"),
        ({"rates": "small=1", "reorganise_s": 1.0}, "--reorganise-s is of --recorded"),
        ({"rates": "small=1000000", "duration_s": 1000.0}, "requests would be drawn"),
        ({"recorded": Path("/nowhere.csv")}, "/nowhere.csv: No such file"),
    ],
)
def test_bad_options_end_before_anything_is_played(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(SimulateRequest(table=derived(tmp_path), **fields), None)


def test_recorded_times_rise_from_zero(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    for text, message in (
        ("small\n1\n", "has no column at_s"),
        ("at_s,small\n1,1\n", "does not rise from 0"),
        ("at_s,small\n0,1\n0,2\n", "line 3: at_s 0 does not rise"),
        ("at_s,small\n0,0\n", "no model has requests"),
        ("at_s,small\n0,1\n-1,1\n", "line 3: at_s '-1' is no time; give seconds that rise from 0"),
        ("at_s,small\nnoon,1\n", "line 2: at_s 'noon' is no time"),
        ("at_s,other\n0,1\n", "line 1: 'other' has no profile in the table; the table has large, small$"),
        ("at,small\n0,1\n", "line 1: 'at' has no profile in the table; did you mean at_s"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            run(SimulateRequest(table=derived(tmp_path), recorded=path), None)


def test_a_model_that_is_called_as_the_column_of_times_has_no_recorded_rates(tmp_path: Path) -> None:
    folder = derived(
        tmp_path, models=MODELS_FILE.replace("small", "at_s"), latency=latencies().replace("small", "at_s"),
        util=utilisation().replace("small", "at_s"),
    )  # fmt: skip
    path = tmp_path / "recorded.csv"
    path.write_text("at_s,large\n0,1\n")

    with pytest.raises(ConfigError, match="a model of the table is called at_s, as the column of times"):
        run(SimulateRequest(table=folder, recorded=path), None)
