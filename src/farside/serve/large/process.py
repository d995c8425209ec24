"""The process that reads large requests and writes large answers, one after the other.

It ends with the front's end of the socket.
"""

import gc
import mmap
import os
import signal
import socket
import sys
from typing import Any

import msgspec

from farside.agent.serving.model_file import ModelFile
from farside.serve.http2.call import Call, CallError
from farside.serve.http2.call import read_message as unwrapped
from farside.serve.inference import (
    BODY_BYTES_MAX,
    InferenceError,
    InferRequest,
    malformed,
    model_named,
    read_request,
    written_answer,
)
from farside.serve.large.memory import Parts, write_parts
from farside.serve.large.message import PACKET_BYTES_MAX, Job, Result, Writing, laid_out, result_of, tensors


def main(arguments: list[str]) -> int:
    """Runs until the socket ends; ``arguments`` are file descriptors: the socket, and a file with the models."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # for the front, which ends this process in order
        signal.signal(ending, signal.SIG_IGN)
    line = socket.socket(fileno=int(arguments[0]))
    with open(int(arguments[1]), "rb") as file:
        models = {one.name: one for one in msgspec.json.decode(file.read(), type=tuple[ModelFile, ...])}
    gc.disable()  # requests make no circles, and numbers of a tensor in JSON are many
    while True:
        packet, fds, _, _ = socket.recv_fds(line, PACKET_BYTES_MAX, 1)
        if not packet:
            return 0
        job: Job | Writing = msgspec.json.decode(packet, type=Job | Writing)
        with open(fds[0], "rb") as file, mmap.mmap(file.fileno(), job.size, access=mmap.ACCESS_READ) as body:
            result, parts = _done(models, job, body)
        made = os.memfd_create("farside-request", os.MFD_CLOEXEC)
        try:
            write_parts(made, parts)
            socket.send_fds(line, [msgspec.json.encode(result)], [made])
        finally:
            os.close(made)
        del parts


def _done(models: dict[str, ModelFile], job: Job | Writing, body: mmap.mmap) -> tuple[Result, Parts]:
    name = job.model
    try:
        if isinstance(job, Writing):
            return _written(models[name], job, body[:])
        if name:
            model, request = models[name], read_request(models[name], body[:], None)
        else:
            asked = _message(job, body)
            name = asked.model_name if asked.model_name in models else ""
            model = model_named(models, asked.model_name, asked.model_version)
            request = _read_message(model, asked)
    except InferenceError as error:
        return Result(number=job.number, model=name, kind=error.kind.name, line=str(error)), ()
    except CallError as error:
        return Result(number=job.number, code=error.code, line=error.line), ()
    except Exception as error:  # a fault of ours is told of, and the next one is read
        line = f"the server failed on this request: {type(error).__name__}"
        return Result(number=job.number, model=name, kind="RAISED", line=line), ()
    return result_of(job, model, request), laid_out(model.inputs, request.rows, request.inputs)


def _written(model: ModelFile, job: Writing, outputs: bytes) -> tuple[Result, Parts]:
    found = tensors([model.outputs[place] for place in job.outputs], job.rows, memoryview(outputs))
    request = InferRequest(id=job.id, rows=job.rows, inputs=(), outputs=job.outputs, binary=job.binary, timeout_us=0)
    body, head = written_answer(model, request, dict(zip(job.outputs, found, strict=True)))
    return Result(number=job.number, model=model.name, head=-1 if head is None else head), [(0, body)]


def _message(job: Job, body: mmap.mmap) -> Any:
    from google.protobuf.message import DecodeError

    from farside.serve.grpc_message import service_pb2

    message = unwrapped(Call(path=b"", encoding=job.encoding.encode()), body[:], BODY_BYTES_MAX)
    try:
        return service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        raise malformed("the message is no ModelInferRequest") from None


def _read_message(model: ModelFile, asked: Any) -> InferRequest:
    from farside.serve.grpc_message import read_message  # of packages that a deployment without gRPC need not have

    return read_message(model, asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
