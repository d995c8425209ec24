"""Triton's own core beside ours, on tiny models."""

from pathlib import Path

import pytest

from benchmarks.serving.peer_environment import perf_analyzer
from benchmarks.serving.peers import Effort, peers_figure
from benchmarks.serving.triton import REJECTING, SETTINGS, batching, config_text
from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.agent.serving.partition.cpu import CpuDriver
from farside.cli.demo.serving_rig import Mix
from farside.serve.sample_models import make_models
from farside.serve.table import read_tables

TINY = Effort(setting_s=0.3, setting_steps=1, seconds=0.5, steps=1, repeats=1, simulated_s=5.0)


def test_triton_is_told_the_models_shape_threads_and_how_long_a_request_may_wait() -> None:
    model = ModelFile(
        name="m", path="/models/m.onnx", framework="onnxruntime", inputs=(TensorSpec("input", "FP32", (3, 48)),),
        outputs=(TensorSpec("output", "FP32", (10,)),), max_batch=8,
    )  # fmt: skip

    text = config_text(model, 2, batching(REJECTING, 0.15))

    assert 'input [ { name: "input" data_type: TYPE_FP32 dims: [3, 48] } ]' in text
    assert "max_batch_size: 8" in text
    assert "count: 2" in text
    assert "default_timeout_microseconds: 150000" in text
    assert '{ key: "file" value: { string_value: "/models/m.onnx" } }' in text


@pytest.mark.long
def test_both_are_served_in_turns_and_judged(tmp_path: Path) -> None:
    if perf_analyzer() is None:
        pytest.skip("needs Triton's core (python -m benchmarks.serving.peer_environment)")
    if problem := CpuDriver().capabilities().problem:
        pytest.skip(problem)
    names = ("conv", "mlp")
    make_models(tmp_path, names, size=0.02)
    profile = tmp_path / "profile"
    profile.mkdir()
    cells = [f"{one},{part},{batch},{20 * 100 / part}" for one in names for part in (50, 100) for batch in (1, 8)]
    (profile / "x-LATENCY.csv").write_text("\n".join(["model,part_pct,batch,latency_ms", *cells]))
    listed = [f"{name},500,10,x" for name in names]
    (profile / "models.csv").write_text("\n".join(["model,slo_ms,mem_mb,input", *listed]))
    mix = Mix(slo_ms=dict.fromkeys(names, 2000.0), most=dict.fromkeys(names, 30.0))

    figure = peers_figure(tmp_path, mix, read_tables(profile), TINY)

    settings, rates, goodput, runs, judged = figure.tables
    assert len(settings.rows) == len(SETTINGS)
    assert [row[0] for row in rates.rows] == ["farside", "triton"]
    assert len(goodput.rows) == len(judged.rows) == 2
    # Each answers at a rate that is far from its highest.
    assert all(float(row[3]) > 0 for row in runs.rows)
