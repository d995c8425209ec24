"""gRPC door: the Open Inference Protocol by grpc.aio, with Triton's extensions that clients need.

Messages are taken apart here and not by grpc: one that is none gets the protocol's error in one line, and grpc would
log a traceback for each.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message

from farside.errors import ConfigError
from farside.log import get_log
from farside.serve.description import model_metadata
from farside.serve.grpc_message import read_message, service_pb2, told, written_message
from farside.serve.inference import BODY_BYTES_MAX, HEAD_BYTES_MAX, InferenceError, body_bytes_max, malformed
from farside.serve.service import Service
from farside.tls import TlsFiles, server_tls

_MESSAGE_BYTES_MAX = BODY_BYTES_MAX + HEAD_BYTES_MAX
_CALLS_MAX = 1024
_SERVICE = "GRPCInferenceService"
HANDSHAKE_LIMIT_MS = 10_000
_IDLE_LIMIT_MS = 75_000  # as HTTP's
_PING_EVERY_MS, _PING_LIMIT_MS = 30_000, 10_000
_OPTIONS = (
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", _CALLS_MAX),
    ("grpc.max_connection_idle_ms", _IDLE_LIMIT_MS),
    # A client that is gone without a word is noticed.
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_LIMIT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Two doors at one address would share the requests between them without a word.
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", HEAD_BYTES_MAX),
)

_log = get_log("serve.grpc")


class GrpcDoor:
    """The calls by the names that the protocol has; those that are not here are UNIMPLEMENTED.

    Args:
        service: What it serves.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._statuses = {status.name: status for status in grpc.StatusCode}

    def handlers(self) -> Any:
        """The calls for a server of grpc."""
        described = service_pb2.DESCRIPTOR.services_by_name[_SERVICE]
        found = {
            method.name: grpc.unary_unary_rpc_method_handler(self._call(method))
            for method in described.methods
            if hasattr(self, method.name)
        }
        return grpc.method_handlers_generic_handler(described.full_name, found)

    def _call(self, method: Any) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """A call from bytes to bytes."""
        serve: Callable[[Any, Any], Awaitable[Message]] = getattr(self, method.name)
        parse = getattr(service_pb2, method.input_type.name).FromString
        what = f"the message is no {method.input_type.name}"

        async def call(data: bytes, context: Any) -> bytes:
            try:
                request = parse(data)
            except DecodeError:
                await self._abort(context, malformed(what))
            return bytes((await serve(request, context)).SerializeToString())

        return call

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's names
        """Inference."""
        arrived_s = self._loop.time()
        service = self._service
        try:
            self._check(context)
            model = service.model(request.model_name, request.model_version)
            sound = read_message(model, request)
            within_s = context.time_remaining()
            return await service.infer(
                model, sound, partial(written_message, model, sound), arrived_s,
                math.inf if within_s is None else within_s,
            )  # fmt: skip
        except InferenceError as error:
            if error.kind.counted == "refused":
                service.pool.refuse(request.model_name)
            await self._abort(context, error)
        except Exception as error:
            await self._fault(context, error)

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether it answers."""

        async def live() -> Any:
            return service_pb2.ServerLiveResponse(live=True)

        return await self._told(context, live)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether each model has a glet."""

        async def ready() -> Any:
            return service_pb2.ServerReadyResponse(ready=self._service.is_ready())

        return await self._told(context, ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether a model has one."""

        async def ready() -> Any:
            model = self._service.model(request.name, request.version)
            return service_pb2.ModelReadyResponse(ready=self._service.pool.is_ready(model.name))

        return await self._told(context, ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Name, version, extensions."""

        async def metadata() -> Any:
            return told(self._service.metadata(), service_pb2.ServerMetadataResponse())

        return await self._told(context, metadata)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A model's inputs and outputs."""

        async def metadata() -> Any:
            model = self._service.model(request.name, request.version)
            return told(model_metadata(model), service_pb2.ModelMetadataResponse())

        return await self._told(context, metadata)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Triton's configuration of a model."""

        async def config() -> Any:
            model = self._service.model(request.name, request.version)
            return told({"config": self._service.config(model)}, service_pb2.ModelConfigResponse())

        return await self._told(context, config)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Triton's statistics, of one model or all."""

        async def statistics() -> Any:
            service = self._service
            named = [service.model(request.name, request.version)] if request.name else list(service.models.values())
            return told(service.statistics(named), service_pb2.ModelStatisticsResponse())

        return await self._told(context, statistics)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """All models."""

        async def index() -> Any:
            return told({"models": self._service.index()}, service_pb2.RepositoryIndexResponse())

        return await self._told(context, index)

    def _check(self, context: Any) -> None:
        self._service.check_token(dict(context.invocation_metadata() or ()).get("authorization"))

    async def _told(self, context: Any, tell: Callable[[], Awaitable[Any]]) -> Any:
        try:
            self._check(context)
            return await tell()
        except InferenceError as error:
            await self._abort(context, error)
        except Exception as error:
            await self._fault(context, error)

    async def _unserved(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "models, memory, traces and logs are not managed by clients")

    RepositoryModelLoad = RepositoryModelUnload = TraceSetting = LogSettings = _unserved
    SystemSharedMemoryStatus = SystemSharedMemoryRegister = SystemSharedMemoryUnregister = _unserved
    CudaSharedMemoryStatus = CudaSharedMemoryRegister = CudaSharedMemoryUnregister = _unserved

    async def _fault(self, context: Any, error: Exception) -> None:
        """The top of a call: a fault of ours is recorded, and the door stays open."""
        _log.error("a request failed", cause=error)
        await context.abort(grpc.StatusCode.INTERNAL, "the server failed on this request; its log says why")

    async def _abort(self, context: Any, error: InferenceError) -> NoReturn:
        await context.abort(self._statuses[error.kind.grpc], " ".join(str(error).split()))
        raise AssertionError


def open_grpc(service: Service, address: str, secure: TlsFiles | None) -> Any:
    """A server of a service that has HOST:PORT, and answers once it is started.

    Raises:
        ConfigError: The address can't be listened on, or a file of TLS is wrong.
    """
    if secure is not None:
        server_tls(secure)  # gRPC does not say what is wrong with a file
    largest = max(body_bytes_max(model) for model in service.models.values())
    options = (
        *_OPTIONS,
        ("grpc.max_receive_message_length", largest),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_LIMIT_MS),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_CALLS_MAX)
    server.add_generic_rpc_handlers((GrpcDoor(service).handlers(),))
    try:
        if secure is None:
            port = server.add_insecure_port(address)
        else:
            pair = [(secure.key.read_bytes(), secure.cert.read_bytes())]
            port = server.add_secure_port(address, grpc.ssl_server_credentials(pair))
    except RuntimeError as error:
        raise ConfigError(
            f"grpc_listen tcp:{address}: can't be listened on",
            hint="end who listens there (ss -ltnp shows), or name another",
        ) from error
    assert port
    return server
