"""What goes between the front and the process that reads large requests: packets with a file each. PURE.

A job's file has the body as it came; a result's has the tensors, each at a multiple of `ALIGNMENT_BYTES`, in the order
of the model's inputs.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from farside.agent.serving.model_file import ModelFile
from farside.serve.inference import DTYPES, Array, InferRequest

# Smaller ones take a millisecond or two to read, which the event loop bears.
LARGE_BYTES = 256 << 10
PACKET_BYTES_MAX = 128 << 10
ALIGNMENT_BYTES = 64


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A body of ``size`` bytes to be read.

    ``model``: what it is for by HTTP; empty: it is a gRPC message, compressed as ``encoding`` says, with its name.
    """

    number: int
    size: int
    model: str = ""
    encoding: str = "identity"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was read; or why it is none, with its kind, or with a gRPC status where that has no kind.

    ``inputs`` are in the file, of ``rows`` rows each.
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


def places(model: ModelFile, rows: int) -> Iterator[tuple[int, int]]:
    """Begin and bytes of each input in the file of a result."""
    at = 0
    for spec in model.inputs:
        size = rows * spec.row_bytes
        yield at, size
        at += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def result_of(job: Job, model: ModelFile, request: InferRequest) -> Result:
    """The result for a request; its inputs go into the file."""
    return Result(
        number=job.number, model=model.name, id=request.id, rows=request.rows, outputs=request.outputs,
        binary=request.binary, timeout_us=request.timeout_us,
    )  # fmt: skip


def request_of(model: ModelFile, result: Result, memory: Sequence[int] | memoryview) -> InferRequest:
    """The request of a result; its inputs are views of its file."""
    inputs: list[Array] = []
    view = memoryview(memory)  # type: ignore[arg-type]
    for spec, (at, size) in zip(model.inputs, places(model, result.rows), strict=True):
        made: Array = np.frombuffer(view[at : at + size], DTYPES[spec.datatype])
        inputs.append(made.reshape(result.rows, *spec.shape))
    return InferRequest(
        id=result.id, rows=result.rows, inputs=tuple(inputs), outputs=result.outputs, binary=result.binary,
        timeout_us=result.timeout_us,
    )  # fmt: skip
