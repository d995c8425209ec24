"""What model files take and give, found out in a process of its own: a file that crashes its framework harms nobody.

The framework tells names, datatypes and axes; one run of a single row tells the lengths of outputs that it leaves open.
"""

import asyncio
import hashlib
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farside.agent.serving.model_file import DATATYPES, FRAMEWORKS, MAX_BATCH, Framework, ModelFile, TensorSpec
from farside.errors import ConfigError

DESCRIBE_S = 120.0
_PROGRAM = "farside.agent.serving.describe"
TORCH_INPUTS = "inputs.json"  # a file within a TorchScript file: [{"name": .., "datatype": .., "shape": [..]}, ..]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A file to look into.

    ``max_shape`` has, for each input whose row has open lengths, the whole shape of a row. ``inputs`` are those of a
    TorchScript file that does not tell them itself.
    """

    name: str
    path: str
    max_batch: int
    max_shape: Mapping[str, tuple[int, ...]] = {}
    inputs: tuple[TensorSpec, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out of one file: the model, or what is wrong and what to do."""

    model: ModelFile | None = None
    problem: str = ""
    hint: str = ""


async def describe_models(requests: Sequence[ModelRequest]) -> tuple[ModelFile, ...]:
    """Looks into all files.

    Raises:
        ConfigError: A file is missing, is no model, or can't be served; the first that is wrong.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", _PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(DESCRIBE_S):
            out, err = await process.communicate(msgspec.json.encode(requests))
    except TimeoutError:
        raise ConfigError(f"the model files could not be read within {DESCRIBE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = [msgspec.json.decode(line, type=Answer) for line in out.splitlines()]
    for answer in found:
        if answer.model is None:
            raise ConfigError(answer.problem, hint=answer.hint)
    if len(found) < len(requests):
        last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        path = requests[len(found)].path
        raise ConfigError(f"{path}: the process that read it died ({last[0]})", hint="give another file")
    return tuple(answer.model for answer in found if answer.model is not None)


def main() -> None:
    """Reads requests from standard input, and writes a line for each.

    What models and frameworks print goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for request in msgspec.json.decode(sys.stdin.buffer.read(), type=list[ModelRequest]):
        try:
            answer = Answer(model=describe(request))
        except ConfigError as error:
            answer = Answer(problem=error.args[0], hint=error.hint)
        except Exception as error:  # whatever a framework raises
            traceback.print_exc()
            answer = Answer(
                problem=f"{request.path}: is no model that can be run ({' '.join(str(error).split())[:300]})"
            )
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def describe(request: ModelRequest) -> ModelFile:
    """One file, read in this process.

    Raises:
        ConfigError: It is missing or can't be served.
    """
    path = Path(request.path)
    framework = FRAMEWORKS.get(path.suffix)
    if framework is None:
        raise ConfigError(f"{path}: is no model", hint=f"give a file whose name ends with {' or '.join(FRAMEWORKS)}")
    if not 1 <= request.max_batch <= MAX_BATCH:
        raise ConfigError(f"{path}: a largest batch of {request.max_batch} is out of bounds", hint=f"1 to {MAX_BATCH}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a model file") from error
    look = _look_onnx if framework == "onnxruntime" else _look_torch
    try:
        inputs, outputs = look(request)
    except ImportError as error:
        raise ConfigError(f"{path}: {error.name} is not installed", hint=_install(framework)) from error
    return ModelFile(
        name=request.name, path=str(path.absolute()), framework=framework, inputs=inputs, outputs=outputs,
        max_batch=request.max_batch, sha256=hashlib.sha256(content).hexdigest(), file_bytes=len(content),
    )  # fmt: skip


def _install(framework: Framework) -> str:
    if framework == "pytorch":
        return "install PyTorch for this Python, or give a file that ends with .onnx"
    return "install requirements/serving.txt (from source: .venv/bin/pip install -r requirements/serving.txt)"


Tensors = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


def _look_onnx(request: ModelRequest) -> Tensors:
    import numpy as np

    from farside.agent.serving.model_file import NUMPY_NAMES
    from farside.agent.serving.onnx_model import open_session

    session = open_session(request.path, 1, "cpu")
    _check_max_shape(request, [one.name for one in session.get_inputs()])
    inputs = tuple(
        TensorSpec(one.name, _onnx_datatype(request, one), _row_shape(request, one.name, one.shape))
        for one in session.get_inputs()
    )
    feeds = {one.name: np.zeros((1, *one.shape), NUMPY_NAMES[one.datatype]) for one in inputs}
    outputs = list[TensorSpec]()
    for one, result in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        datatype = _onnx_datatype(request, one)
        assert isinstance(result, np.ndarray)  # lists, maps and sparse tensors have no such datatype
        outputs.append(TensorSpec(one.name, datatype, _given_shape(request, one.name, result.shape)))
    return _checked(request, inputs, tuple(outputs))


def _onnx_datatype(request: ModelRequest, tensor: Any) -> str:
    """ONNX Runtime says tensor(float), tensor(int64), ..."""
    inner = str(tensor.type).removeprefix("tensor(").removesuffix(")")
    name = {"float": "float32", "double": "float64"}.get(inner, inner)
    if name not in DATATYPES:
        raise ConfigError(
            f"{request.path}: {tensor.name} is a {tensor.type}, which can't be served", hint="use numbers of fixed size"
        )
    return DATATYPES[name]


def _row_shape(request: ModelRequest, name: str, shape: Sequence[int | str | None]) -> tuple[int, ...]:
    """A row of an input: its shape without the batch's axis."""
    if not shape:
        raise ConfigError(f"{request.path}: {name} has no axis for the batch", hint="give it a first axis")
    if isinstance(shape[0], int) and request.max_batch > 1:
        raise ConfigError(
            f"{request.path}: the first axis of {name} is fixed at {shape[0]}",
            hint="export it with an open first axis, or set max_batch = 1 in serving.toml",
        )
    if isinstance(shape[0], int) and shape[0] != 1:
        raise ConfigError(
            f"{request.path}: the first axis of {name} is fixed at {shape[0]}, not at 1",
            hint="export it with an open first axis",
        )
    given = request.max_shape.get(name)
    if given is not None:
        if len(given) != len(shape) - 1 or any(
            length < 1 or (isinstance(known, int) and known != length)
            for known, length in zip(shape[1:], given, strict=False)
        ):
            told = ", ".join(str(one) for one in shape[1:])
            raise ConfigError(f"{request.path}: max_shape of {name} does not fit [{told}]", hint="give a row's shape")
        return tuple(given)
    if not all(isinstance(length, int) and length >= 1 for length in shape[1:]):
        told = ", ".join(str(one) for one in shape[1:])
        hint = f"give max_shape for {name} in serving.toml"
        raise ConfigError(f"{request.path}: {name} has rows of open length [{told}]", hint=hint)
    return tuple(int(length) for length in shape[1:] if length is not None)


def _given_shape(request: ModelRequest, name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """A row of an output, as a run of one row gave it."""
    if not shape or shape[0] != 1:
        raise ConfigError(
            f"{request.path}: {name} has the shape {list(shape)} for one row", hint="its first axis has to be the batch"
        )
    return tuple(shape[1:])


def _look_torch(request: ModelRequest) -> Tensors:
    import torch

    files = {TORCH_INPUTS: ""}
    load: Any = torch.jit.load
    module = load(request.path, map_location="cpu", _extra_files=files).eval()
    inputs = request.inputs
    if not inputs:
        if not files[TORCH_INPUTS]:
            raise ConfigError(
                f"{request.path}: does not tell its inputs",
                hint=f'save it with _extra_files={{"{TORCH_INPUTS}": ...}}, or list its inputs',
            )
        inputs = msgspec.json.decode(files[TORCH_INPUTS], type=tuple[TensorSpec, ...])
    _check_max_shape(request, [one.name for one in inputs])
    with torch.inference_mode():
        given = module(*(torch.zeros((1, *one.shape), dtype=_torch_dtype(torch, request, one)) for one in inputs))
    results = given if isinstance(given, tuple | list) else (given,)
    outputs = []
    for at, one in enumerate(results):
        datatype = DATATYPES[str(one.dtype).removeprefix("torch.")]
        outputs.append(TensorSpec(f"OUTPUT__{at}", datatype, _given_shape(request, f"output {at}", one.shape)))
    return _checked(request, inputs, tuple(outputs))


def _torch_dtype(torch: Any, request: ModelRequest, tensor: TensorSpec) -> Any:
    from farside.agent.serving.model_file import NUMPY_NAMES

    if tensor.datatype not in NUMPY_NAMES:
        raise ConfigError(f"{request.path}: {tensor.name} has no datatype {tensor.datatype}", hint="such as FP32")
    return getattr(torch, NUMPY_NAMES[tensor.datatype])


def _check_max_shape(request: ModelRequest, inputs: Sequence[str]) -> None:
    """Before lengths are looked at: one that is named wrongly would seem to be missing."""
    for name in request.max_shape:
        if name not in inputs:
            raise ConfigError(
                f"{request.path}: max_shape names {name}, which is no input", hint=f"there are {', '.join(inputs)}"
            )


def _checked(request: ModelRequest, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Tensors:
    if not inputs or not outputs:
        raise ConfigError(f"{request.path}: has {len(inputs)} inputs and {len(outputs)} outputs", hint="it needs both")
    shapes = {one.name: one.shape for one in inputs}
    for name, shape in request.max_shape.items():
        if tuple(shape) != shapes[name]:
            told = ", ".join(map(str, shapes[name]))
            raise ConfigError(f"{request.path}: max_shape of {name} does not fit [{told}]", hint="give a row's shape")
    return inputs, outputs


if __name__ == "__main__":
    main()
