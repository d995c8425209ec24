"""The simulator's benchmark: its cases run, and what it makes of them can be read."""

import math
from pathlib import Path

import pytest

from benchmarks import sim_case, sim_render
from benchmarks.result import Machine
from benchmarks.sim_result import (
    CycleCase,
    CycleResult,
    Measured,
    PeerResult,
    SimRun,
    TraceCase,
    TraceResult,
    load,
    save,
)

MACHINE = Machine(cpu="cpu", cores=2, memory_gib=8.0, kernel="6", system="Linux", load_before=0.0, versions={})


@pytest.mark.parametrize("shape", sim_case.SHAPES)
def test_a_trace_of_each_shape_runs_to_its_end(shape: str) -> None:
    figures = sim_case.run_trace(TraceCase(policy="las", jobs=120, gpus=64, shape=shape))

    assert figures.jobs == 120
    assert figures.events >= 240


def test_in_a_cycle_case_all_gpus_are_held_when_the_queue_comes() -> None:
    figures = sim_case.run_cycles(CycleCase(policy="gittins", queue=30, nodes=10))

    assert 0 < figures.running <= 80
    assert figures.median_ms <= figures.most_ms


@pytest.mark.parametrize(("power", "expected"), [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)])
def test_the_growth_is_the_power_of_log_n(power: float, expected: float) -> None:
    sizes = [1_000, 10_000, 1_000_000]

    found = sim_render.growth_exponent(sizes, [3.0 * math.log(size) ** power for size in sizes])

    assert found == pytest.approx(expected)


def test_the_document_has_every_part_and_survives_json(tmp_path: Path) -> None:
    traces = tuple(
        TraceResult(case=case, figures=sim_case.run_trace(case))
        for case in (TraceCase(policy="fifo", jobs=50), TraceCase(policy="fifo", jobs=80))
    )
    case = CycleCase(policy="fifo", queue=5, nodes=4)
    run = SimRun(
        machine=MACHINE,
        measured={"traces": Measured(date="2026-01-01", command="run it", commit="abc", load_before=0.5, repeats=2)},
        traces=traces,
        growth=traces,
        shapes=traces,
        cycles=(CycleResult(case=case, figures=sim_case.run_cycles(case)),),
        peers=(PeerResult(peer="other 1.0", dispatcher="fifo", jobs=0, why_not="no network"),),
    )

    save(run, tmp_path / "run.json")
    text = sim_render.render(load(tmp_path / "run.json"), source="run.json")

    assert load(tmp_path / "run.json") == run
    assert text.count("\n## ") == 5
    assert "no network" in text
    assert "`run it`" in text
