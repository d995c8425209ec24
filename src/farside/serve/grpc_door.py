"""gRPC door: the Open Inference Protocol as unary calls, with Triton's extensions that clients need.

grpcio's own server takes more processor time a call than all else that a request needs, and has no limit on slow
messages or on an address's connections. So calls come by a server of HTTP/2 that knows unary calls only (`http2/`).
Messages are taken apart here: one that is none gets the protocol's error in one line.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError, Message

from farside.agent.serving.model_file import ModelFile
from farside.listen import open_listener
from farside.log import get_log
from farside.serve.description import model_metadata
from farside.serve.door_server import Cancel, door_connections
from farside.serve.grpc_message import read_message, service_pb2, told, written_message
from farside.serve.http2.call import Call, CallError
from farside.serve.http2.server import GrpcServer, Large, Method, Reply, Serve
from farside.serve.inference import HEAD_BYTES_MAX, InferenceError, InferRequest, Kind, body_bytes_max, malformed
from farside.serve.large.message import LARGE_BYTES
from farside.serve.service import Service
from farside.tls import TlsFiles, server_tls

_SERVICE = "GRPCInferenceService"
_INFER = "ModelInfer"
# Of messages that are no inference: they are taken apart between others' calls, and name a model at most.
_ASKED_BYTES_MAX = 64 << 10
_UNSERVED = frozenset(
    (
        "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings", "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    )
)  # fmt: skip

_log = get_log("serve.grpc")


class GrpcDoor:
    """The calls by the names that the protocol has; those that are not here are UNIMPLEMENTED.

    Args:
        service: What it serves.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()

    def barred(self, authorization: bytes) -> str:
        """Why a call does not pass; empty: it does. Its message is not there yet, so no model counts it."""
        try:
            self._service.check_token(authorization)
        except InferenceError as error:
            return str(error)
        return ""

    def methods(self) -> dict[bytes, Method]:
        """The calls by their path."""
        described = service_pb2.DESCRIPTOR.services_by_name[_SERVICE]
        largest = max(body_bytes_max(model) for model in self._service.models.values())
        return {
            f"/{described.full_name}/{method.name}".encode(): Method(
                self._served(method), largest if method.name == _INFER else _ASKED_BYTES_MAX
            )
            for method in described.methods
            if method.name == _INFER or method.name in _UNSERVED or hasattr(self, method.name)
        }

    def _served(self, method: Any) -> Serve:
        """A call from the bytes of its message."""
        parse = getattr(service_pb2, method.input_type.name).FromString
        what = f"the message is no {method.input_type.name}"
        tell: Callable[[Any], Message] = self._unserved if method.name in _UNSERVED else getattr(self, method.name, _no)

        def serve(call: Call, data: bytes, reply: Reply) -> Cancel | None:
            name = ""
            try:
                try:
                    request = parse(data)
                except DecodeError:
                    raise malformed(what) from None
                if method.name == _INFER:
                    name = request.model_name
                    return self._infer(call, request, reply)
                reply.ok(tell(request).SerializeToString())
            except InferenceError as error:
                self._refuse(reply, error, name)
            return None

        return serve

    def _infer(self, call: Call, request: Any, reply: Reply) -> Cancel | None:
        model = self._service.model(request.model_name, request.model_version)
        late = self._service.pool.turned_away(model.name)
        if late is not None:
            _fail(reply, late)
            return None
        return self._submit(reply, self._loop.time(), call.within_s, model, read_message(model, request))

    def large(self, call: Call, body: bytes | bytearray, reply: Reply) -> Cancel | None:
        """Has the message of a call read elsewhere, as it came, and serves it then."""
        submit = partial(self._submit_read, reply, self._loop.time(), call.within_s)
        try:
            refuse = partial(self._refuse, reply)
            return self._service.large.read(body, submit, refuse, encoding=call.encoding.decode())
        except InferenceError as error:
            _fail(reply, error)
            return None

    def _submit_read(
        self, reply: Reply, arrived_s: float, within_s: float, model: ModelFile, request: InferRequest
    ) -> Cancel:
        """One that was read before its model's gate was asked: it is asked now, as what comes in is counted there."""
        late = self._service.pool.turned_away(model.name)
        if late is None:
            return self._submit(reply, arrived_s, within_s, model, request)
        _fail(reply, late)
        return lambda: None

    def _submit(
        self, reply: Reply, arrived_s: float, within_s: float, model: ModelFile, request: InferRequest
    ) -> Cancel:
        one = self._service.submit(
            model, request, partial(written_message, model, request), arrived_s, within_s, reply.ok,
            partial(_fail, reply),
        )  # fmt: skip
        return partial(self._service.pool.cancel, one)

    def _refuse(self, reply: Reply, error: InferenceError | CallError, model: str) -> None:
        if isinstance(error, InferenceError):
            self._service.pool.refuse(model, error.kind)
        _fail(reply, error)

    def ServerLive(self, request: Any) -> Message:  # noqa: N802
        """Whether it answers."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any) -> Message:  # noqa: N802
        """Whether each model has a glet."""
        return service_pb2.ServerReadyResponse(ready=self._service.is_ready())

    def ModelReady(self, request: Any) -> Message:  # noqa: N802
        """Whether a model has one."""
        model = self._service.model(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=self._service.pool.is_ready(model.name))

    def ServerMetadata(self, request: Any) -> Message:  # noqa: N802
        """Name, version, extensions."""
        return told(self._service.metadata(), service_pb2.ServerMetadataResponse())

    def ModelMetadata(self, request: Any) -> Message:  # noqa: N802
        """A model's inputs and outputs."""
        model = self._service.model(request.name, request.version)
        return told(model_metadata(model), service_pb2.ModelMetadataResponse())

    def ModelConfig(self, request: Any) -> Message:  # noqa: N802
        """Triton's configuration of a model."""
        model = self._service.model(request.name, request.version)
        return told({"config": self._service.config(model)}, service_pb2.ModelConfigResponse())

    def ModelStatistics(self, request: Any) -> Message:  # noqa: N802
        """Triton's statistics, of one model or all."""
        service = self._service
        named = [service.model(request.name, request.version)] if request.name else list(service.models.values())
        return told(service.statistics(named), service_pb2.ModelStatisticsResponse())

    def RepositoryIndex(self, request: Any) -> Message:  # noqa: N802
        """All models."""
        return told({"models": self._service.index()}, service_pb2.RepositoryIndexResponse())

    def _unserved(self, request: Any) -> Message:
        raise InferenceError(Kind.UNSUPPORTED, "models, memory, traces and logs are not managed by clients")


def _no(request: Any) -> Message:
    raise AssertionError


def _fail(reply: Reply, error: InferenceError | CallError) -> None:
    if isinstance(error, CallError):
        reply.fail(error.code, error.line)
    else:
        reply.fail(error.kind.grpc, str(error))


def open_grpc(service: Service, address: str, secure: TlsFiles | None) -> GrpcServer:
    """A server of a service that has HOST:PORT, and answers once it is started.

    Raises:
        ConfigError: The address can't be listened on, or a file of TLS is wrong.
    """
    tls = server_tls(secure) if secure is not None else None
    listener = open_listener(f"tcp:{address}", setting="grpc_listen")
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    door = GrpcDoor(service)
    return GrpcServer(
        door.methods(), door.barred, head_bytes_max=HEAD_BYTES_MAX, listener=listener, tls=tls,
        connections=door_connections(),
        large=Large(path=f"/{service_pb2.DESCRIPTOR.services_by_name[_SERVICE].full_name}/{_INFER}".encode(),
                    size=LARGE_BYTES, serve=door.large),
    )  # fmt: skip
