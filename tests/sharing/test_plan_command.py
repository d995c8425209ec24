"""`farside serve plan` as a user runs it."""

import itertools
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from farside.cli.serve import IDEAL_GPUS_MAX, PlanRequest
from farside.cli.serving.cuts import check_cuts
from farside.cli.serving.plan import Judge, busy_ms, run
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.scheduler.sharing.glet.portfolio import IDEAL_CUTS_MAX, ways_to_cut
from farside.scheduler.sharing.glet.profile import cuts_of
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.table import read_tables
from tests.sharing.tables import derived

SCHEDULERS = ("sbp", "half", "greedy", "glet", "glet+int", "ideal")


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farside", "serve", "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def planned(folder: Path, scheduler: Any, gpus: int = 2, **fields: Any) -> tuple[int, Any]:
    out = folder / "out.json"
    code = run(PlanRequest(table=folder, scheduler=scheduler, gpus=gpus, **fields), out)
    return code, json.loads(out.read_bytes())


def test_a_plan_says_what_goes_where_and_why(tmp_path: Path) -> None:
    done = command("--table", derived(tmp_path), "--rates", "small=300,large=20", "--gpus", 2)

    assert done.returncode == 0, done.stderr
    assert "of 2 GPUs are used" in done.stdout
    assert "large: 20 requests/s, planned as" in done.stdout
    assert "derived, not measured" in " ".join(done.stdout.split())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("rates", ["small=300,large=400", "small=100,large=150", "small=100,large=250"])
def test_rates_that_do_not_fit_are_named_with_the_gpus_on_which_that_scheduler_has_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str, rates: str
) -> None:
    code, (judged,) = planned(derived(tmp_path), scheduler, 1, rates=rates)
    text = " ".join(capsys.readouterr().out.split())

    assert code == 1
    assert judged["scheduled"] is False
    assert "does not fit on 1 GPU" in text
    count = int(text.partition(" GPUs would do")[0].split()[-1])
    assert planned(tmp_path, scheduler, count, rates=rates)[0] == 0
    if scheduler != "ideal":  # it tries all cuts, so the number is that of glet, and may be above its own
        assert planned(tmp_path, scheduler, count - 1, rates=rates)[0] == 1


@pytest.mark.parametrize("name", ["models.csv", "gpu-UTIL.CSV"])
def test_a_plan_is_not_written_over_its_table(tmp_path: Path, name: str) -> None:
    path = derived(tmp_path) / name
    before = path.read_bytes()

    with pytest.raises(ConfigError, match="is the file of --table"):
        run(PlanRequest(table=tmp_path, rates="small=1"), path)

    assert path.read_bytes() == before


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize(
    ("memory_mb", "line"),
    [
        (9000, "it needs 9,000 MB of memory and 1,230 MB for its process, and a GPU has 9,900 MB"),
        (8000, "no GPU has the 8,000 MB of memory free that it needs, of 9,900 MB"),
    ],
)
def test_memory_is_named_where_it_is_why_a_model_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str, memory_mb: int, line: str
) -> None:
    listed = f"id,model,slo_ms,mem_mb,input\n0,small,50,{memory_mb},1x28x28\n1,large,200,8000,3x224x224\n"
    folder = derived(tmp_path, models=listed)

    code, _ = planned(folder, scheduler, 1, rates="small=1,large=1")

    assert code == 1
    assert line in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("scheduler", ["glet+int", "sbp", "greedy"])
def test_an_slo_that_can_not_be_met_is_named_with_the_shortest_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str
) -> None:
    folder = derived(tmp_path, models="id,model,slo_ms,mem_mb,input\n0,small,2.5,100,1x28x28\n")

    code, _ = planned(folder, scheduler, rates="small=1")

    assert code == 1
    text = " ".join(capsys.readouterr().out.split())
    where = " on 100 %" if scheduler == "sbp" else ""
    assert f"an SLO of 2.5 ms can never be met{where}: the shortest that can is 3.08 ms" in text


def test_scenarios_are_judged_by_each_scheduler_so_that_another_checker_can(tmp_path: Path) -> None:
    folder, rows = derived(tmp_path), [f"{a},{b}" for a, b in itertools.product((0, 100, 800), (0, 40, 150))]
    path = tmp_path / "scenarios.csv"
    path.write_text("\n".join(["small,large", *rows]) + "\n")
    verdicts = {}

    for scheduler in SCHEDULERS:
        code, judged = planned(folder, scheduler, scenarios=path)
        assert code == 0
        assert len(judged) == len(rows)
        verdicts[scheduler] = [one["scheduled"] for one in judged]
        for one in judged:
            assert sum(one["rates"].values()) == sum(map(float, rows[judged.index(one)].split(",")))
            check_alone(one)

    for less, more in (("sbp", "glet+int"), ("glet+int", "ideal")):
        assert all(after or not before for before, after in zip(verdicts[less], verdicts[more], strict=True))


def check_alone(judged: dict[str, Any]) -> None:
    """What can be checked with neither table nor code of ours."""
    served: dict[str, float] = defaultdict(float)
    parts: dict[int, int] = defaultdict(int)
    for glet in judged["plan"]:
        assert set(glet) == {"gpu", "part_pct", "cycle_ms", "models"}
        parts[glet["gpu"]] += glet["part_pct"]
        for portion in glet["models"]:
            assert set(portion) == {"model", "batch", "rate"}
            served[portion["model"]] += portion["rate"]
            assert portion["batch"] >= portion["rate"] * glet["cycle_ms"] / 1000 * (1 - 1e-6)
    assert len(parts) == judged["gpus_used"]
    assert max(parts.values(), default=0) <= 100
    if judged["scheduled"]:
        assert all(served[name] >= rate * (1 - 1e-6) for name, rate in judged["planned"].items())
    else:
        assert judged["plan"] == []
        assert judged["why"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "wants --rates or --scenarios"),
        ({"rates": "small=1", "scenarios": Path("x.csv")}, "wants --rates or --scenarios"),
        ({"rates": "small=1", "scheduler": "ideal", "gpus": 64}, "are too many"),
        ({"rates": "smalll=1"}, "did you mean small"),
        ({"scenarios": Path("/nowhere.csv")}, "/nowhere.csv: No such file"),
    ],
)
def test_bad_options_end_before_anything_is_planned(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(PlanRequest(table=derived(tmp_path), **fields), None)


def test_no_scenario_is_planned_where_a_later_row_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, judged = tmp_path / "scenarios.csv", []
    path.write_text("small\n1\n2\nmuch\n")
    monkeypatch.setattr(Judge, "judge", lambda _, rates: judged.append(rates))

    with pytest.raises(ConfigError, match="line 4, small: 'much' is not a rate"):
        run(PlanRequest(table=derived(tmp_path), scenarios=path), None)

    assert judged == []


def test_ideal_is_refused_where_a_table_has_more_cuts_than_it_can_try(tmp_path: Path) -> None:
    tables = read_tables(derived(tmp_path))
    fine = replace(tables, device=replace(tables.device, cuts=cuts_of(range(5, 101, 5))))

    check_cuts(tmp_path, fine, ("glet+int", "ideal"), 5)
    with pytest.raises(ConfigError, match="are too many") as told:
        check_cuts(tmp_path, fine, ("ideal",), 8)

    most = int(str(told.value.hint).split()[3])
    assert ways_to_cut(fine.device, most) <= IDEAL_CUTS_MAX < ways_to_cut(fine.device, most + 1)


def test_the_help_says_how_many_gpus_ideal_takes() -> None:
    assert f"For ideal it has to be given: {IDEAL_GPUS_MAX} at most" in " ".join(command("--help").stdout.split())


def test_equal_halves_of_a_gpu_slow_each_other_in_what_is_printed(tmp_path: Path) -> None:
    tables = read_tables(derived(tmp_path))
    sizes = Sizes(tables.models, tables.device)
    half = Glet(gpu=0, part_pct=50, cycle_ms=20.0, models=(Portion(model="small", batch=4, rate=100.0),))
    beside = sizes.latencies("small", 50, sizes.pressure(50, [("small", 4)]))[3]

    assert busy_ms(sizes, Plan(glets=(half, structs.replace(half))), half) == beside
    assert busy_ms(sizes, Plan(glets=(half,)), half) < beside


def test_an_output_that_is_the_input_is_refused_and_the_input_stays(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.csv"
    path.write_text("small\n1\n")

    done = command("--table", derived(tmp_path), "--scenarios", path, "--json", path)

    assert done.returncode == 2
    assert "--scenarios as well" in done.stderr
    assert path.read_text() == "small\n1\n"
