"""What model files say of themselves, and which are refused in one line."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from farside.agent.serving.describe import ModelRequest, describe, describe_models
from farside.agent.serving.model_file import TensorSpec
from farside.errors import ConfigError

onnx = pytest.importorskip("onnx", reason="needs onnx (requirements/serving.txt)")
pytest.importorskip("onnxruntime", reason="needs onnxruntime (requirements/serving.txt)")

FLOAT, STRING, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.STRING, onnx.TensorProto.FLOAT16


def model_file(
    folder: Path, op: str, shape: Sequence[int | str], *, kind: int = FLOAT, out: Sequence[int | str] | None = None,
    name: str = "one",
) -> Path:  # fmt: skip
    """A model of one node from x to y."""
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **({"keepdims": 0} if op == "ReduceSum" else {}))],
        "one",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape if out is None else out)],
    )
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def request(path: Path, max_batch: int = 8, **more: object) -> ModelRequest:
    return ModelRequest(name="one", path=str(path), max_batch=max_batch, **more)  # type: ignore[arg-type]


def test_a_model_is_known_by_its_tensors_without_the_batchs_axis(tmp_path: Path) -> None:
    path = model_file(tmp_path, "Relu", ["batch", 3, 5], kind=HALF)
    (model,) = asyncio.run(describe_models([request(path)]))

    assert model.inputs == (TensorSpec("x", "FP16", (3, 5)),)
    assert model.outputs == (TensorSpec("y", "FP16", (3, 5)),)
    assert (model.framework, model.max_batch, model.file_bytes) == ("onnxruntime", 8, path.stat().st_size)


def test_rows_of_open_length_get_the_one_that_is_given(tmp_path: Path) -> None:
    path = model_file(tmp_path, "Relu", ["batch", "length", 4])
    model = describe(request(path, max_shape={"x": (7, 4)}))

    assert model.inputs[0].shape == model.outputs[0].shape == (7, 4)


@pytest.mark.parametrize(
    ("shape", "max_batch", "more", "line"),
    [
        (["batch", "length", 4], 8, {}, "x has rows of open length [length, 4]; give max_shape for x"),
        (["batch", "length", 4], 8, {"max_shape": {"x": (7, 5)}}, "max_shape of x does not fit [length, 4]"),
        (["batch", 4], 8, {"max_shape": {"X": (4,)}}, "max_shape names X, which is no input; there are x"),
        (["batch", "length"], 8, {"max_shape": {"foo": (4,)}}, "max_shape names foo, which is no input; there are x"),
        ([1, 4], 8, {}, "the first axis of x is fixed at 1; export it with an open first axis, or set max_batch = 1"),
        ([2, 4], 1, {}, "the first axis of x is fixed at 2, not at 1"),
        ([], 1, {}, "x has no axis for the batch"),
        (["batch", 4], 0, {}, "a largest batch of 0 is out of bounds; 1 to 1024"),
    ],
)
def test_a_model_that_can_not_be_batched_is_refused_with_what_to_do(
    tmp_path: Path, shape: list[int | str], max_batch: int, more: dict[str, object], line: str
) -> None:
    path = model_file(tmp_path, "Relu", shape)

    with pytest.raises(ConfigError) as caught:
        describe(request(path, max_batch, **more))
    assert str(caught.value).startswith(f"{path}: {line}")


def test_a_fixed_first_axis_of_one_is_served_one_by_one(tmp_path: Path) -> None:
    assert describe(request(model_file(tmp_path, "Relu", [1, 4]), 1)).inputs[0].shape == (4,)


def test_text_as_input_is_refused(tmp_path: Path) -> None:
    path = model_file(tmp_path, "Identity", ["batch", 4], kind=STRING)

    with pytest.raises(ConfigError, match=r"x is a tensor\(string\), which can't be served"):
        describe(request(path))


def test_an_output_that_does_not_have_the_batch_first_is_refused(tmp_path: Path) -> None:
    path = model_file(tmp_path, "ReduceSum", ["batch", 4], out=[])

    with pytest.raises(ConfigError, match=r"y has the shape \[\] for one row; its first axis has to be the batch"):
        describe(request(path))


def test_files_that_are_no_models_are_named_each_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"this is no model")
    other = tmp_path / "model.h5"
    other.touch()
    for path, line in (
        (bad, "is no model that can be run ("),
        (tmp_path / "absent.onnx", "No such file or directory; name a model file"),
        (other, "is no model; give a file whose name ends with .onnx or .pt"),
    ):
        with pytest.raises(ConfigError) as caught:
            asyncio.run(describe_models([request(path)]))
        assert str(caught.value).startswith(f"{path}: {line}")
        assert "\n" not in str(caught.value)


def test_what_a_model_raises_is_raised_alone_and_not_written_to_the_terminal_besides(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from farside.agent.serving.onnx_model import open_session

    helper, kinds = onnx.helper, onnx.TensorProto
    rows = helper.make_tensor("rows", FLOAT, [2, 1], [1.0, 2.0])
    named = (("index", kinds.INT64, ["batch"]), ("row", FLOAT, ["batch", 1]))
    index, row = (helper.make_tensor_value_info(*one) for one in named)
    node = helper.make_node("Gather", ["rows", "index"], ["row"])
    graph = helper.make_graph([node], "lookup", [index], [row], [rows])
    path = tmp_path / "lookup.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    session = open_session(str(path), 1, "cpu")
    capfd.readouterr()
    with pytest.raises(Exception, match="idx=7 must be within"):
        session.run(None, {"index": np.array([7])})

    assert capfd.readouterr() == ("", "")
