"""What searches for highest rates find, and the gain of parts on tiny models."""

import os
from pathlib import Path

import pytest

from benchmarks.serving.gain import OURS, THEIRS, Effort, chosen, gain_figure
from benchmarks.serving.highest import Search
from farside.agent.serving.partition.cpu import CpuDriver
from farside.serve.sample_models import make_models
from farside.serve.table import Tables, read_tables

# Milliseconds of a batch on one core, and what the second core is worth to it.
LATENCIES = {
    "conv": {1: (9.0, 1.8), 4: (36.0, 1.9), 8: (72.0, 1.9)},
    "mlp": {1: (5.0, 1.3), 4: (6.0, 1.6), 8: (8.0, 1.8)},
    "long": {1: (42.0, 1.1), 4: (60.0, 1.5), 8: (145.0, 1.9)},
}
TINY = Effort(seconds=0.5, steps=1, repeats=1, mixes=3, simulated_s=5.0)


def test_a_search_ends_at_the_highest_share_that_passes() -> None:
    search = Search(0.5, 2.0, 8)
    while (share := search.share) is not None:
        search.tell(passes=share <= 1.3)

    assert search.passed == pytest.approx(1.3, rel=0.01)


def test_a_search_in_which_nothing_passes_has_found_nothing() -> None:
    search = Search(0.5, 2.0, 3)
    while search.share is not None:
        search.tell(passes=False)

    assert search.passed == 0.0


def tables(folder: Path) -> Tables:
    """A profile in which a second core is worth little to small batches of two of the models."""
    rows = ["model,part_pct,batch,latency_ms"]
    for name, batches in LATENCIES.items():
        for batch, (alone_ms, gain) in batches.items():
            for part in (20, 40, 50, 60, 80, 100):
                one_ms = alone_ms * 50 / min(part, 50)
                rows.append(f"{name},{part},{batch},{min(one_ms, alone_ms / gain * 100 / part):.2f}")
    folder.mkdir()
    (folder / "x-LATENCY.csv").write_text("\n".join(rows))
    listed = [f"{name},500,10,x" for name in LATENCIES]
    (folder / "models.csv").write_text("\n".join(["model,slo_ms,mem_mb,input", *listed]))
    return read_tables(folder)


def test_the_mix_is_one_for_which_the_simulator_says_a_gain(tmp_path: Path) -> None:
    ours, theirs = chosen(tables(tmp_path / "profile"), TINY)

    assert (ours.name, theirs.name) == (OURS, THEIRS)
    assert ours.within(ours.simulated) >= 1.3 * theirs.within(theirs.simulated) > 0
    assert {glet.part_pct for glet in theirs.plan(1e9).glets} == {100}


def test_both_plans_are_served_in_turns_and_judged(tmp_path: Path) -> None:
    for package in ("onnxruntime", "onnx", "grpc"):
        pytest.importorskip(package, reason=f"needs {package} (requirements/serving.txt)")
    if problem := CpuDriver().capabilities().problem:
        pytest.skip(problem)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a device of two cores is needed")
    make_models(tmp_path, tuple(LATENCIES), size=0.02)

    figure = gain_figure(tmp_path, tables(tmp_path / "profile"), TINY)

    mix, rates, runs, judged = figure.tables
    assert [row[0] for row in mix.rows] == ["conv", "long", "mlp"]
    assert [row[0] for row in rates.rows] == [OURS, THEIRS, f"{OURS} by {THEIRS}"]
    assert {row[0] for row in runs.rows} == {OURS, THEIRS}
    assert [row[-1] in ("met", "missed") for row in judged.rows] == [True, True]
