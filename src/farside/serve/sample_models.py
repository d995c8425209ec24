"""Model files made in place with seeded weights, for tests, the demonstration and benchmarks: nothing is downloaded.

Nets of different shape, since what a second thread or a larger batch is worth differs between them, and one that does
nothing, which shows what serving itself costs. They need the package onnx.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farside.errors import Unavailable

_OPSET = 17
_IR_VERSION = 8

Floats = NDArray[np.float32]


def make_models(folder: Path, names: Sequence[str] = (), *, size: float = 1.0) -> tuple[Path, ...]:
    """Writes NAME.onnx for each name; all of SAMPLES if none is given.

    Args:
        folder: Is made if it is not there.
        names: Of SAMPLES.
        size: Scales widths, so that 1 has a batch of 1 take some milliseconds on a core, and 0.1 far less.

    Raises:
        Unavailable: onnx is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names or tuple(SAMPLES):
        path = folder / f"{name}.onnx"
        path.write_bytes(_Net(name).made(SAMPLES[name], size))
        paths.append(path)
    return tuple(paths)


class _Net:
    """A graph under construction; the weights follow from its name."""

    def __init__(self, name: str) -> None:
        try:
            import onnx
        except ImportError as error:
            raise Unavailable(
                "the Python package onnx is not installed", hint="install requirements/serving.txt"
            ) from error
        self._onnx: Any = onnx
        self._name = name
        self._rng = np.random.default_rng(sum(name.encode()))
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def made(self, build: "Build", size: float) -> bytes:
        """The file's content."""
        helper, float32 = self._onnx.helper, self._onnx.TensorProto.FLOAT
        row, out = build(self, size)
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("input", float32, ["batch", *row])],
            [helper.make_tensor_value_info("output", float32, ["batch", *out])],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        self._onnx.checker.check_model(model)
        return bytes(model.SerializeToString())

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: object) -> str:
        """A node with one output that is used; its name."""
        output = output or f"t{len(self._nodes)}"
        outputs = ["", output] if op == "LSTM" else [output]
        self._nodes.append(self._onnx.helper.make_node(op, list(inputs), outputs, **attributes))
        return output

    def weight(self, *shape: int) -> str:
        """Weights of a size that keeps values near 1; their name."""
        values = self._rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:]) + 1))
        return self.constant(values)

    def square(self, rows: int, columns: int) -> str:
        """Weights of MatMul, which has a row for each of its inputs; their name."""
        return self.add("Transpose", [self.weight(columns, rows)], perm=[1, 0])

    def normal(self, last: str, width: int) -> str:
        """Each row brought to a mean of 0 and a variance of 1."""
        one, zero = (self.constant(np.full(width, value, dtype=np.float32)) for value in (1.0, 0.0))
        return self.add("LayerNormalization", [last, one, zero])

    def constant(self, values: NDArray[Any]) -> str:
        """Fixed values; their name."""
        name = f"w{len(self._weights)}"
        self._weights.append(self._onnx.numpy_helper.from_array(values, name))
        return name


# Builds nodes from "input" to "output", and gives a row's shape of both.
Build = Callable[[_Net, float], tuple[tuple[int, ...], tuple[int, ...]]]


def _conv(net: _Net, size: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    side, channels, width, last = 48, 3, max(4, int(48 * size)), "input"
    for stride in (1, 1, 2, 1):
        pads = [1, 1, 1, 1]
        last = net.add("Conv", [last, net.weight(width, channels, 3, 3)], strides=[stride, stride], pads=pads)
        last, channels = net.add("Relu", [last]), width
    last = net.add("Flatten", [net.add("GlobalAveragePool", [last])])
    net.add("Gemm", [last, net.weight(10, width)], "output", transB=1)
    return (3, side, side), (10,)


def _mlp(net: _Net, size: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    width, last = max(8, int(2048 * size)), "input"
    for _ in range(4):
        last = net.add("Relu", [net.add("Gemm", [last, net.weight(width, width)], transB=1)])
    net.add("Gemm", [last, net.weight(10, width)], "output", transB=1)
    return (width,), (10,)


def _lstm(net: _Net, size: float, steps: int = 24) -> tuple[tuple[int, ...], tuple[int, ...]]:
    features, hidden = 64, max(8, int(384 * size))
    by_step = net.add("Transpose", ["input"], perm=[1, 0, 2])
    weights = [net.weight(1, 4 * hidden, features), net.weight(1, 4 * hidden, hidden)]
    state = net.add("LSTM", [by_step, *weights], hidden_size=hidden)
    last = net.add("Squeeze", [state, net.constant(np.array([0], dtype=np.int64))])
    net.add("Gemm", [last, net.weight(10, hidden)], "output", transB=1)
    return (steps, features), (10,)


def _encoder(net: _Net, size: float, tokens: int = 32, layers: int = 24) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A deep and narrow one over a short text: attention with one head and two layers behind it, again and again."""
    width, last = max(8, int(192 * size)), "input"
    for _ in range(layers):
        query, key, value = (net.add("MatMul", [last, net.square(width, width)]) for _ in range(3))
        scores = net.add("MatMul", [query, net.add("Transpose", [key], perm=[0, 2, 1])])
        seen = net.add("MatMul", [net.add("Softmax", [scores], axis=-1), value])
        last = net.normal(net.add("Add", [last, seen]), width)
        inner = net.add("Relu", [net.add("MatMul", [last, net.square(width, 4 * width)])])
        last = net.normal(net.add("Add", [last, net.add("MatMul", [inner, net.square(4 * width, width)])]), width)
    net.add("Gemm", [net.add("ReduceMean", [last], axes=[1], keepdims=0), net.weight(10, width)], "output", transB=1)
    return (tokens, width), (10,)


def _null(net: _Net, size: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    net.add("Identity", ["input"], "output")
    return (4,), (4,)


SAMPLES: Mapping[str, Build] = MappingProxyType(
    {
        "conv": _conv,
        "mlp": _mlp,
        "lstm": _lstm,
        "long": partial(_lstm, steps=480),
        "encoder": _encoder,
        "null": _null,
    }
)
