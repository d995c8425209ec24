"""What the live measurements of serving are judged by."""

from dataclasses import replace
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.serving.bars import at_least, at_most, bars, missed
from benchmarks.serving.fidelity import simulate, write_plan
from farside.cli.demo.serving_load import poisson
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Plan
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.table import read_tables


def test_what_is_missed_is_named_with_its_bar() -> None:
    rows = (at_least("a", 0.9, 0.9), at_least("b", 0.89, 0.9), at_most("c", 1, 1), at_most("d", 1.5, 1))
    figure = Figure(key="k", title="t", source="s", tables=(bars(*rows),))

    assert missed(figure) == ["b: 0.89, at least 0.9", "d: 1.5, at most 1"]


def test_simulated_requests_are_those_that_a_client_would_send(tmp_path: Path) -> None:
    (tmp_path / "profile").mkdir()
    cells = [f"m,{part},{batch},{batch * 100 / part}" for part in (50, 100) for batch in (1, 8)]
    (tmp_path / "profile/x-LATENCY.csv").write_text("\n".join(["model,part_pct,batch,latency_ms", *cells]))
    (tmp_path / "profile/models.csv").write_text("model,slo_ms,mem_mb,input\nm,100,10,x")
    tables = read_tables(tmp_path / "profile")
    sizes = Sizes({"m": replace(tables.models["m"], slo_ms=100.0)}, tables.device)
    plan = SCHEDULERS["glet+int"].plan(sizes, {"m": 300.0}, 1)
    assert isinstance(plan, Plan)
    assert write_plan(tmp_path, plan).read_bytes().startswith(b'[{"gpu":0')

    light, heavy = (poisson({"m": rate}, 10.0, 1) for rate in (100.0, 5000.0))
    few, many = (simulate(plan, sizes, times, 10.0)["m"] for times in (light, heavy))

    assert (few.requests, many.requests) == (len(light), len(heavy))
    assert few.met == len(light)
    assert 0.1 * len(heavy) < many.met < 0.5 * len(heavy)
