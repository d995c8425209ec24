"""TorchScript files in an executor."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farside.agent.serving.describe import ModelRequest, describe, describe_models
from farside.agent.serving.model_file import TensorSpec
from farside.errors import ConfigError
from tests.serving.executors import Watched

torch = pytest.importorskip("torch", reason="needs PyTorch")

SOURCE = """
def forward(self, x, scale):
    return (x * scale).sum(1), x.to(torch.float64)
"""
INPUTS = [
    {"name": "x", "datatype": "FP32", "shape": [3]},
    {"name": "scale", "datatype": "FP32", "shape": [1]},
]


@cache
def net() -> Any:
    class Net(torch.jit.ScriptModule):  # type: ignore[misc,name-defined] # each class has one forward in a process
        pass

    module: Any = Net()
    module.define(SOURCE)
    return module


def saved(path: Path, **files: str) -> Path:
    torch.jit.save(net(), path, _extra_files=files)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_file_tells_its_inputs_and_runs_in_an_executor(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pt", **{"inputs.json": json.dumps(INPUTS)})
    model = describe(ModelRequest(name="net", path=str(path), max_batch=4))
    given = np.arange(6, dtype=np.float32).reshape(2, 3)

    async def test() -> None:
        watched = Watched()
        executor = await watched.start([model])
        executor.slot_inputs("net", 1)["x"][:2] = given
        executor.slot_inputs("net", 1)["scale"][:2] = [[2], [3]]
        executor.run(1, "net", 2, 1)
        assert (await watched.done()).problem == ""
        outputs = executor.slot_outputs("net", 1)
        np.testing.assert_array_equal(outputs["OUTPUT__0"][:2], [6, 36])
        np.testing.assert_array_equal(outputs["OUTPUT__1"][:2], given.astype(np.float64))
        await executor.close()

    assert [(one.name, one.datatype, one.shape) for one in model.outputs] == [
        ("OUTPUT__0", "FP32", ()),
        ("OUTPUT__1", "FP64", (3,)),
    ]
    asyncio.run(test())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_file_that_does_not_tell_its_inputs_gets_them_from_elsewhere_or_is_refused(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path / "net.pt")

    with pytest.raises(ConfigError, match="does not tell its inputs; save it with _extra_files="):
        describe(ModelRequest(name="net", path=str(path), max_batch=4))
    inputs = (TensorSpec("x", "FP32", (3,)), TensorSpec("scale", "FP32", (1,)))
    assert describe(ModelRequest(name="net", path=str(path), max_batch=4, inputs=inputs)).inputs == inputs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_file_that_prints_is_described_all_the_same(tmp_path: Path) -> None:
    class Printing(torch.jit.ScriptModule):  # type: ignore[misc,name-defined]
        pass

    module: Any = Printing()
    module.define("""
def forward(self, x):
    print("hello")
    return x
""")
    path = tmp_path / "net.pt"
    torch.jit.save(module, path, _extra_files={"inputs.json": json.dumps(INPUTS[:1])})

    (model,) = asyncio.run(describe_models([ModelRequest(name="net", path=str(path), max_batch=4)]))

    assert model.inputs[0].name == "x"
