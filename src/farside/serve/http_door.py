"""HTTP door: the Open Inference Protocol as a bare ASGI application, and limits on its connections."""

import asyncio
import socket
import ssl
from asyncio import constants
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
import uvicorn

from farside.log import get_log
from farside.scheduler.manager.api.limit.connections import (
    HEADER_BYTES_MAX,
    HEADER_LIMIT_S,
    Connections,
    say_rarely,
)
from farside.scheduler.manager.api.limit.handshake import CountedListener, forget_failed
from farside.scheduler.manager.api.limit.http_connection import LimitedProtocol
from farside.serve.description import model_metadata
from farside.serve.inference import (
    BODY_BYTES_MAX,
    InferenceError,
    Kind,
    body_bytes_max,
    head_bytes,
    read_request,
    written_answer,
    written_error,
)
from farside.serve.service import Service

CONNECTIONS_MAX = 1024
# Clients keep connections for their next request, and see a reset where one that they use is closed.
KEEP_ALIVE_S = 75
WRITE_LIMIT_S = 30.0
_HEAD_LENGTH = b"inference-header-content-length"
_JSON, _BINARY = (b"content-type", b"application/json"), (b"content-type", b"application/octet-stream")
_UNSERVED = ("systemsharedmemory", "cudasharedmemory", "trace", "logging")

_log = get_log("serve.http")

Headers = tuple[tuple[bytes, bytes], ...]
Answer = tuple[int, Headers, bytes]


class Gone(Exception):
    """The client has hung up."""


class HttpDoor:
    """The ASGI application.

    Args:
        service: What it serves.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._largest = {name: body_bytes_max(model) for name, model in service.models.items()}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers one request."""
        model = ""
        try:
            headers: Mapping[bytes, bytes] = dict(scope["headers"])
            parts = scope["path"].strip("/").split("/")
            model = parts[2] if len(parts) > 2 and parts[1] == "models" else ""
            self._service.check_token(headers.get(b"authorization"))
            status, extra, body = await self._answer(scope, headers, parts, receive)
        except InferenceError as error:
            if error.kind.counted == "refused":
                self._service.pool.refuse(model)
            status, extra, body = error.kind.http, _error_headers(error), written_error(error)
        except Gone:
            return
        except Exception as error:  # the top of this task: a fault of ours is recorded, and the door stays open
            _log.error("a request failed", path=scope["path"], cause=error)
            fault = InferenceError(Kind.RAISED, "the server failed on this request; its log says why")
            status, extra, body = 500, (_JSON,), written_error(fault)
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*extra, length]})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, scope: dict[str, Any], headers: Mapping[bytes, bytes], parts: list[str], receive: Any
    ) -> Answer:
        service, method = self._service, scope["method"]
        match parts:
            case ["v2", "models", name, *rest] if rest and rest[-1] == "infer":
                version = _version(rest[:-1])
                _only(method, "POST")
                return await self._infer(scope, headers, name, version, receive)
            case ["v2"]:
                _only(method, "GET")
                return _said(service.metadata())
            case ["v2", "health", "live"]:
                return 200, (), b""
            case ["v2", "health", "ready"]:
                return (200 if service.is_ready() else 503), (), b""
            case ["v2", "models", "stats"]:
                return _said(service.statistics(list(service.models.values())))
            case ["v2", "models", name, *rest]:
                _only(method, "GET")
                return self._of_model(name, rest)
            case ["v2", "repository", "index"]:
                _only(method, "POST")
                return _said(service.index())
            case ["v2", "repository", *_]:
                raise InferenceError(
                    Kind.UNSUPPORTED, "models are not loaded or unloaded one by one; change the deployment"
                )
            case ["v2", first, *_] if first in _UNSERVED:
                raise InferenceError(Kind.UNSUPPORTED, f"{first} is not served")
        raise InferenceError(Kind.UNKNOWN, f"no path {scope['path']!r:.100}")

    def _of_model(self, name: str, rest: list[str]) -> Answer:
        what = rest[-1] if rest and rest[-1] in ("ready", "config", "stats") else ""
        model = self._service.model(name, _version(rest[:-1] if what else rest))
        if what == "ready":
            return (200 if self._service.pool.is_ready(name) else 503), (), b""
        if what == "config":
            return _said(self._service.config(model))
        return _said(self._service.statistics([model]) if what else model_metadata(model))

    async def _infer(
        self, scope: dict[str, Any], headers: Mapping[bytes, bytes], name: str, version: str, receive: Any
    ) -> Answer:
        service = self._service
        model = service.model(name, version)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise InferenceError(Kind.COMPRESSED, "compressed bodies are not taken")
        body = await _body(receive, self._largest[name])
        arrived_s = self._loop.time()
        length = headers.get(_HEAD_LENGTH)
        head = head_bytes(length.decode("latin-1") if length is not None else None, len(body))
        request = read_request(model, body, head)
        task = asyncio.current_task()
        assert task is not None
        # Told by the connection when it is lost.
        scope["farside.gone"] = task.cancel
        try:
            answer, head = await service.infer(model, request, partial(written_answer, model, request), arrived_s)
        except asyncio.CancelledError as error:
            if task.uncancel():
                raise
            raise Gone from error
        finally:
            scope.pop("farside.gone", None)
        if head is None:
            return 200, (_JSON,), answer
        return 200, (_BINARY, (_HEAD_LENGTH, str(head).encode())), answer


async def _body(receive: Any, bytes_max: int) -> bytes:
    """The body of a request, without a copy where it comes in one piece.

    Raises:
        InferenceError: It is larger than the model's largest request.
        Gone: Its client hung up.
    """
    parts: list[bytes] = []
    size, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        part, is_more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        # What is too much is read and dropped, up to the connection's own limit: else its client would not hear why.
        if size <= bytes_max:
            parts.append(part)
        else:
            parts.clear()
    if size > bytes_max:
        raise InferenceError(Kind.TOO_LARGE, f"the body is larger than {bytes_max} bytes, the model's largest")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _only(method: str, wanted: str) -> None:
    if method != wanted and not (wanted == "GET" and method == "HEAD"):
        raise InferenceError(Kind.METHOD, f"{method} is not taken here; use {wanted}")


def _version(rest: list[str]) -> str:
    match rest:
        case []:
            return ""
        case ["versions", version]:
            return version
    raise InferenceError(Kind.UNKNOWN, f"no path {'/'.join(rest)!r:.100} of a model")


def _said(value: object) -> Answer:
    return 200, (_JSON,), msgspec.json.encode(value)


def _error_headers(error: InferenceError) -> Headers:
    headers: list[tuple[bytes, bytes]] = [_JSON]
    if error.kind in (Kind.FULL, Kind.DIED):
        headers.append((b"retry-after", b"1"))
    elif error.kind is Kind.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    return tuple(headers)


class _OneWrite:
    """A transport that sends the head of an answer with its body: one system call, and one packet where they fit."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Holds what begins an answer until more is written, or this turn of the loop is over."""
        if not self._head and data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        head, self._head = self._head, b""
        self._transport.write(head + data if head else data)

    def close(self) -> None:
        """Sends what is held, then closes."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class DoorProtocol(LimitedProtocol):
    """A connection of the door, with limits of time and size; it cancels the request of a client that has gone."""

    address_max = CONNECTIONS_MAX
    body_bytes_max = BODY_BYTES_MAX + HEADER_BYTES_MAX
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts it."""
        super().connection_made(_OneWrite(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the request that nobody waits for."""
        gone: Any = self.scope.get("farside.gone") if self.scope is not None else None
        if gone is not None:
            gone()
        self._read_again()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Its client does not read what it is sent."""
        super().pause_writing()
        self._read_again()
        self._unread = self.loop.call_later(WRITE_LIMIT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Its client reads on."""
        self._read_again()
        super().resume_writing()

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def door_connections() -> Connections:
    """Connections of the door, with its limit for an address."""
    return Connections(address_max=CONNECTIONS_MAX)


def counted_listener(listener: socket.socket, connections: Connections) -> socket.socket:
    """The listener of a door that speaks TLS: handshakes count as connections, and have a limit of time."""
    # Comes before a header; uvicorn passes no other on.
    constants.SSL_HANDSHAKE_TIMEOUT = HEADER_LIMIT_S
    forget_failed(asyncio.get_running_loop())
    return CountedListener(listener, connections)


class _Server(uvicorn.Server):
    """One that leaves signals to us."""

    capture_signals = nullcontext  # type: ignore[assignment]


def http_server(door: HttpDoor, secure: ssl.SSLContext | None, connections: Connections) -> uvicorn.Server:
    """What serves the door on sockets given to its `serve`; it ends when its ``should_exit`` is set."""
    say_rarely(asyncio.get_running_loop())
    return _Server(
        uvicorn.Config(
            door, http=partial(DoorProtocol, connections=connections),  # type: ignore[arg-type]
            ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False, server_header=False,
            date_header=False, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=2,
            ssl_context_factory=None if secure is None else lambda *_: secure,
        )
    )  # fmt: skip
