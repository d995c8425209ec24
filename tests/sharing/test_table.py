"""Tables of profiles are read whole or refused in one line that says where and what to do."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.sharing.glet.plan import Plan
from farside.scheduler.sharing.glet.portfolio import plan
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.scenario import parse_rates, parse_slos, read_scenarios
from farside.serve.table import read_tables
from tests.sharing.drawn import GLET_DATA, needs_tables, shared_tables
from tests.sharing.tables import CONSTANTS, MODELS, OVERHEAD, derived, latencies, measured, utilisation

CELL = "large,40,2,"


def test_a_derived_table_has_building_margin_and_the_authors_interference(tmp_path: Path) -> None:
    tables = read_tables(derived(tmp_path))
    large = tables.models["large"]

    # 8 ms x (1 + 3) x (0.6 + 40 / 100), linear between the batches 2 and 4; building 1.9 x 0.75 ms; a tenth on top.
    assert large.latency_ms[100][2] == pytest.approx(1.1 * (32 + 1.9 * 0.75))
    assert large.slowed_ms[100][2] == pytest.approx(1.1 * 32)
    assert tables.models["small"].latency_ms[100][0] == pytest.approx(1.1 * (1.0 + 0.4))
    assert tables.device.cuts == ((100,), (50, 50), (60, 40), (80, 20))
    pressure = tables.device.interference.pressure(60, [("small", 4)])
    # Utilisations are shares of the whole device, times the part; between 2 and 4, as 3 is not one of the authors'.
    expected = 0.9 + 0.4 * (0.1 * 0.3 + 0.3 * 0.45) + 0.6 * (0.7 * 0.4 + 0.1 * 0.6)
    assert tables.device.interference.factors("large", 40, pressure)[2] == pytest.approx(expected)
    assert "derived, not measured" in tables.rests_on


def test_a_measured_table_has_no_margin_and_interference_from_its_co_runs(tmp_path: Path) -> None:
    tables = read_tables(measured(tmp_path))
    interference = tables.device.interference

    assert tables.models["small"].latency_ms[100][0] == pytest.approx(1.0)
    factors = interference.factors("small", 20, interference.pressure(80, [("large", 4)]))
    assert factors[0] == pytest.approx(1.3, rel=1e-3)
    assert "p90 error" in tables.rests_on


def test_parts_that_only_some_models_were_measured_on_do_not_matter(tmp_path: Path) -> None:
    plain, path = read_tables(measured(tmp_path)), tmp_path / "gpu-LATENCY.csv"
    # Beside all others small has 30 %, up to a batch that no other part lists.
    path.write_text(path.read_text() + "small,30,1,4\nsmall,30,3,8\n")

    tables = read_tables(tmp_path)

    assert tables.models == plain.models
    assert tables.device.parts == plain.device.parts
    sizes = Sizes(tables.models, tables.device)
    factors = tables.device.interference.factors("small", 50, tables.device.interference.pressure(50, [("large", 4)]))
    assert len(factors) == tables.models["small"].max_batch == 4
    assert isinstance(plan(sizes, {"small": 300.0, "large": 20.0}, 1), Plan)


def test_of_several_tables_one_is_chosen_by_its_name(tmp_path: Path) -> None:
    derived(tmp_path)
    (tmp_path / "other-LATENCY.csv").write_text(latencies())

    with pytest.raises(ConfigError, match="--device"):
        read_tables(tmp_path)
    assert read_tables(tmp_path, "gpu").device.name == "gpu"
    assert read_tables(tmp_path, "other").device.name == "other"


@needs_tables
def test_the_one_shared_table_that_covers_all_models_is_found() -> None:
    tables = shared_tables()

    assert tables.device.name == "2080ti"
    assert len(tables.models) == 9
    assert {one.max_batch for one in tables.models.values()} == {32}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"models": "id,model,slo_ms\n"}, r"models.csv: has no column mem_mb, input"),
        ({"models": MODELS + "2,small,20,100,1x28x28\n"}, r"models.csv, line 4: model 'small' is there twice"),
        ({"models": MODELS.replace(",20,", ",0,")}, r"line 2: slo_ms '0' is not between 0.001 and"),
        ({"models": MODELS.replace(",20,", ",nan,")}, r"line 2: slo_ms 'nan' is not between"),
        ({"models": MODELS + "2,new,20,100,1x28x28\n"}, r"gpu-LATENCY-derived.csv has no rows of new"),
        (
            {"models": MODELS.replace("3x224x224", "odd")},
            r"batch-overhead.csv: has no row for the input 'odd' of large",
        ),
        ({"models": "id,model,slo_ms,mem_mb,input\n"}, r"lists no model"),
        ({"latency": latencies().replace(CELL, "large,40,0,", 1)}, r"batch '0' is not between 1 and 1024"),
        ({"latency": latencies().replace(CELL, "large,40,1.5,", 1)}, r"batch '1.5' is not a whole number"),
        ({"latency": latencies().replace(CELL, "large,40,1,", 1)}, r"batch 1 on 40 % is there twice"),
        ({"latency": latencies().replace(CELL, "large,40,2,-", 1)}, r"latency_ms '-.*' is not between"),
        ({"latency": latencies() + "large,40\n"}, r"line 38: is too short"),
        (
            {"latency": "\n".join(r for r in latencies().splitlines() if ",100," not in r)},
            r"of a whole device for small",
        ),
        (
            {"latency": "\n".join(r for r in latencies().splitlines() if not r.startswith("large,100,"))},
            r"has no latencies of a whole device for large; add rows with part_pct 100, or take the model out",
        ),
        ({"models": "slo_ms," + MODELS.replace("\n", "\n7,", 2)}, r"models.csv: has the column slo_ms twice; keep one"),
        ({"latency": latencies().replace("\n", ",latency_ms\n", 1)}, r"derived.csv: has the column latency_ms twice"),
        ({"overhead": OVERHEAD.replace("\n", ", batch\n", 1)}, r"batch-overhead.csv: has the column batch twice"),
        ({"latency": ""}, r"no \*LATENCY\*.csv has all models of models.csv \(.*gpu-LATENCY-derived.csv is empty\)"),
        ({"latency": latencies().replace(",", ";")}, r"gpu-LATENCY-derived.csv has no column part_pct"),
        ({"util": utilisation().replace("large", "other")}, r"gpu-UTIL.CSV: has no row of large"),
        ({"constants": CONSTANTS + "1,1,1,1,1\n"}, r"has 2 rows"),
        ({"util": utilisation() + "large,2,1,20,1,1\n"}, r"gpu-UTIL.CSV, line 10: batch 2 is there twice"),
        ({"overhead": OVERHEAD + "3x224x224,2,1\n"}, r"batch-overhead.csv, line 5: batch 2 is there twice"),
        ({"overhead": OVERHEAD + "3x224x224,8,x\n"}, r"concat_ms 'x' is not between"),
        ({"overhead": "\0"}, r"batch-overhead.csv: is no CSV file|has no column"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_tables(derived(tmp_path, **changed))

    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_a_table_with_all_cells_in_quotes_is_read(tmp_path: Path) -> None:
    plain, path = read_tables(derived(tmp_path)), tmp_path / "gpu-LATENCY-derived.csv"
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in row.split(",")) for row in latencies().splitlines()))

    assert read_tables(tmp_path).models == plain.models


@pytest.mark.parametrize("name", ["models.csv", "gpu-LATENCY-derived.csv"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_table_that_is_no_regular_file_is_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    path = derived(tmp_path) / name
    path.unlink()
    make(path)

    with pytest.raises(ConfigError, match=rf"{name}: is no regular file; put a CSV file in its place"):
        read_tables(tmp_path)


def test_a_table_of_co_runs_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = measured(tmp_path) / "gpu-INTERFERENCE.csv"
    path.write_text(path.read_text().replace("\n", ",part_pct\n", 1))

    with pytest.raises(ConfigError, match=r"INTERFERENCE.csv: has the column part_pct twice"):
        read_tables(tmp_path)


def test_a_co_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = measured(tmp_path) / "gpu-INTERFERENCE.csv"
    path.write_text(path.read_text() + "small,1,20,large,4,9\n")

    with pytest.raises(ConfigError, match=r"INTERFERENCE.csv, line \d+: this co-run of small is there twice"):
        read_tables(tmp_path)


def test_a_folder_or_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        read_tables(tmp_path / "none")
    with pytest.raises(ConfigError, match="No such file"):
        read_tables(tmp_path)


@needs_tables
def test_instances_are_no_parts() -> None:
    with pytest.raises(ConfigError, match="is of instances, not of parts"):
        read_tables(GLET_DATA, "a100-MIG")


# ---- rates


def test_rates_are_read_and_what_is_wrong_with_them_is_said() -> None:
    assert parse_rates("a=100, b=2.5", "abc") == {"a": 100.0, "b": 2.5}
    assert parse_rates("v=1=100,v=2", ("v", "v=1")) == {"v=1": 100.0, "v": 2.0}
    for text, message in (
        ("a", "is not MODEL=RATE"),
        ("=1", "is not MODEL=RATE"),
        ("a=1,a=2", "is there twice"),
        ("resnet5=1", "did you mean resnet50"),
        ("a=-1", "is not a rate"),
        ("a=inf", "is not a rate"),
        ("a=0", "no model has requests"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_rates(text, ("a", "resnet50"))


def test_slos_are_read_and_what_is_wrong_with_them_is_said() -> None:
    assert parse_slos("a=100, b=2.5", "abc") == {"a": 100.0, "b": 2.5}
    assert parse_slos("", "abc") == {}
    for text, message in (
        ("a=1,a=77", "--slo a=77: a is there twice; give each model one SLO"),
        ("a", "--slo a: is no time"),
        ("a=inf", "is no time; give milliseconds up to"),
        ("d=1", "'d' has no profile"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_slos(text, "abc")


def test_scenarios_are_read_and_what_is_wrong_with_them_is_said(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.csv"
    path.write_text("b,a\n0,100\n\n200,0\n")
    assert list(read_scenarios(path, "abc")) == [{"b": 0.0, "a": 100.0}, {"b": 200.0, "a": 0.0}]
    for text, message in (
        ("", "names no model"),
        ("a\n", "has no scenario"),
        ("a,a\n1,2\n", "or one twice"),
        ("a,x\n1,2\n", "line 1: 'x' has no profile"),
        ("a,b\n1\n", "line 2: has 1 cells of 2"),
        ("a,b\n1,2\n1,much\n", "line 3, b: 'much' is not a rate"),
        ('a\n"1\n', "is no CSV file"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            list(read_scenarios(path, "abc"))
