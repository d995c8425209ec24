"""What goes between the front and the process that reads large requests: packets with a file each. PURE.

It writes large answers, too. A file has a body as it comes and goes, or tensors, each at a multiple of
`ALIGNMENT_BYTES`: inputs in the model's order, outputs as they are wanted.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.serve.inference import DTYPES, Array, InferRequest, body_bytes_max, json_bytes

# Smaller ones take a millisecond or two to read or to write, which the event loop bears.
LARGE_BYTES = 256 << 10
PACKET_BYTES_MAX = 128 << 10
ALIGNMENT_BYTES = 64


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """A body of ``size`` bytes to be read.

    ``model``: what it is for by HTTP; empty: it is a gRPC message, compressed as ``encoding`` says, with its name.
    """

    number: int
    size: int
    model: str = ""
    encoding: str = "identity"


class Writing(msgspec.Struct, frozen=True, kw_only=True, tag="write"):
    """Outputs of which the body of an answer by HTTP is to be made; fields as in `InferRequest`."""

    number: int
    size: int
    model: str
    id: str
    rows: int
    outputs: tuple[int, ...]
    binary: tuple[bool, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was read; or why it is none, with its kind, or with a gRPC status where that has no kind.

    ``model``: empty where it is none of a known model.
    Its inputs are in the file, of ``rows`` rows each. Of an answer that was written the body is there; ``head``: bytes
    of its JSON head, -1 where it is JSON alone.
    """

    number: int
    model: str = ""
    id: str = ""
    rows: int = 0
    outputs: tuple[int, ...] = ()
    binary: tuple[bool, ...] = ()
    timeout_us: int = 0
    kind: str = ""
    code: str = ""
    line: str = ""
    head: int = -1


def is_needed(models: Iterable[ModelFile]) -> bool:
    """Whether any request of these models, or its answer in JSON, may be large."""
    return any(
        body_bytes_max(model) > LARGE_BYTES or json_bytes(model.outputs, model.max_batch) > LARGE_BYTES
        for model in models
    )


def places(specs: Iterable[TensorSpec], rows: int) -> Iterator[tuple[int, int]]:
    """Begin and bytes of each tensor in a file."""
    at = 0
    for spec in specs:
        size = rows * spec.row_bytes
        yield at, size
        at += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def result_of(job: Job, model: ModelFile, request: InferRequest) -> Result:
    """The result for a request; its inputs go into the file."""
    return Result(
        number=job.number, model=model.name, id=request.id, rows=request.rows, outputs=request.outputs,
        binary=request.binary, timeout_us=request.timeout_us,
    )  # fmt: skip


def request_of(model: ModelFile, result: Result, memory: memoryview) -> InferRequest:
    """The request of a result; its inputs are views of its file."""
    return InferRequest(
        id=result.id, rows=result.rows, inputs=tuple(tensors(model.inputs, result.rows, memory)),
        outputs=result.outputs, binary=result.binary, timeout_us=result.timeout_us,
    )  # fmt: skip


def tensors(specs: Sequence[TensorSpec], rows: int, memory: memoryview) -> list[Array]:
    """Tensors in a file, as views of it."""
    found: list[Array] = []
    for spec, (at, size) in zip(specs, places(specs, rows), strict=True):
        made: Array = np.frombuffer(memory[at : at + size], DTYPES[spec.datatype])
        found.append(made.reshape(rows, *spec.shape))
    return found


def laid_out(specs: Sequence[TensorSpec], rows: int, arrays: Sequence[Array]) -> list[tuple[int, memoryview]]:
    """Bytes of tensors, and where each begins in a file."""
    found = zip(places(specs, rows), arrays, strict=True)
    return [(at, array.reshape(-1).view("u1").data) for (at, _), array in found]
