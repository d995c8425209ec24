"""What searches for highest rates find, and the gain of parts on tiny models."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.serving import gain
from benchmarks.serving.gain import OURS, THEIRS, WHOLE, Effort, chosen, contender, gain_figure, mixes
from benchmarks.serving.highest import Search
from farside.agent.serving.partition.cpu import CpuDriver
from farside.serve.sample_models import make_models
from farside.serve.table import Tables, read_tables

# Milliseconds of a batch on one core, and what the second core is worth to it.
LATENCIES = {
    "conv": {1: (9.0, 1.8), 4: (36.0, 1.9), 8: (72.0, 1.9)},
    "encoder": {1: (12.0, 1.2), 4: (45.0, 1.2), 8: (90.0, 1.3)},
    "mlp": {1: (15.0, 1.1), 4: (55.0, 1.2), 8: (110.0, 1.3)},
    "long": {1: (25.0, 1.1), 4: (40.0, 1.3), 8: (60.0, 1.5)},
}
# A few mixes are enough here.
SLOS_MS = (200.0,)
TINY = Effort(seconds=0.5, steps=1, repeats=1, mixes=3, simulated_s=5.0)


@pytest.fixture(autouse=True)
def few_mixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "SLOS_MS", SLOS_MS)


def test_a_search_ends_at_the_highest_share_that_passes() -> None:
    search = Search(0.5, 2.0, 8)
    while (share := search.share) is not None:
        search.tell(passes=share <= 1.3)

    assert search.passed == pytest.approx(1.3, rel=0.01)


def test_a_search_tries_first_what_is_expected_and_goes_on_from_there() -> None:
    passing, failing = (Search(0.5, 2.0, 2, first=0.8) for _ in range(2))
    assert passing.share == failing.share == 0.8

    passing.tell(passes=True)
    failing.tell(passes=False)

    assert (passing.passed, failing.passed) == (0.8, 0.0)
    assert passing.share == pytest.approx((0.8 * 2.0) ** 0.5)
    assert failing.share == pytest.approx((0.5 * 0.8) ** 0.5)


def test_a_search_in_which_nothing_passes_has_found_nothing() -> None:
    search = Search(0.5, 2.0, 3)
    while search.share is not None:
        search.tell(passes=False)

    assert search.passed == 0.0


def tables(folder: Path) -> Tables:
    """A profile in which a second core is worth little to small batches of two of the models."""
    rows = ["model,part_pct,batch,latency_ms"]
    for name, batches in LATENCIES.items():
        for batch, (alone_ms, worth) in batches.items():
            for part in (20, 40, 50, 60, 80, 100):
                one_ms = alone_ms * 50 / min(part, 50)
                rows.append(f"{name},{part},{batch},{min(one_ms, alone_ms / worth * 100 / part):.2f}")
    folder.mkdir()
    (folder / "x-LATENCY.csv").write_text("\n".join(rows))
    listed = [f"{name},500,10,x" for name in LATENCIES]
    (folder / "models.csv").write_text("\n".join(["model,slo_ms,mem_mb,input", *listed]))
    return read_tables(folder)


@pytest.mark.long
def test_the_mix_is_one_for_which_the_simulator_says_a_gain(tmp_path: Path) -> None:
    match = chosen(tables(tmp_path / "profile"), TINY)

    assert match.ours.name == OURS
    assert {match.rival.name, match.other.name} == {THEIRS, WHOLE}
    assert match.gain >= 1.3
    ours, rival, other = (one.within(one.simulated) for one in (match.ours, match.rival, match.other))
    assert ours >= 1.3 * rival > 0
    assert rival >= other, "the better one of those on whole devices is what ours is judged by"
    assert {glet.part_pct for glet in match.rival.plan(1e9).glets} == {100}


def test_a_model_that_threads_harm_on_the_whole_device_is_in_no_mix(tmp_path: Path) -> None:
    found = tables(tmp_path / "profile")
    half = found.models["mlp"].latency_ms[50]
    harmed = {**found.models["mlp"].latency_ms, 100: tuple(1.01 * ms for ms in half)}
    models = {**found.models, "mlp": replace(found.models["mlp"], latency_ms=harmed)}

    assert {name for mix in mixes(found) for name in mix.most} == set(LATENCIES)
    assert {name for mix in mixes(replace(found, models=models)) for name in mix.most} == {"conv", "encoder", "long"}


def test_whole_devices_plan_what_bin_packing_plans(tmp_path: Path) -> None:
    found = tables(tmp_path / "profile")
    planned = 0
    for mix in itertools.islice(mixes(found), 0, None, 4):
        theirs, whole = (contender(name, found, mix) for name in (THEIRS, WHOLE))
        for one in (theirs, whole):
            one.plan_most()
        planned += theirs.planned > 0
        assert whole.planned >= theirs.planned
    assert planned, "bin packing plans some of the mixes"


@pytest.mark.long
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
    assert len(mix.rows) == 3
    assert rates.rows[0][0] == OURS
    rival = rates.rows[1][0]
    assert {rival, rates.rows[2][0]} == {THEIRS, WHOLE}
    assert rates.rows[3][0] == f"{OURS} by {rival}"
    assert rates.rows[2][3] == "-", "the other one is not served"
    assert {row[0] for row in runs.rows} == {OURS, rival}
    assert [row[-1] in ("met", "missed") for row in judged.rows] == [True, True]
