"""HTTP door: the Open Inference Protocol over a server of HTTP/1.1 (`http1/`).

uvicorn and an ASGI application made a task, a dict and some timers of each request, and took twice the processor time
of all else that a request needs.
"""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import numpy as np

from farside.agent.serving.model_file import ModelFile
from farside.listen import open_listener
from farside.serve.description import model_metadata
from farside.serve.door_server import Cancel, door_connections
from farside.serve.http1.answer import JSON, error_body
from farside.serve.http1.connection import Head, Whole
from farside.serve.http1.server import HttpServer, Reply
from farside.serve.http2.call import CallError
from farside.serve.inference import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    Array,
    InferenceError,
    InferRequest,
    Kind,
    body_bytes_max,
    head_bytes,
    malformed,
    read_request,
    version_of,
    written_answer,
)
from farside.serve.large.message import LARGE_BYTES
from farside.serve.queues import Encode
from farside.serve.service import Service
from farside.tls import TlsFiles, server_tls

_BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
# Before the path in absolute form (RFC 9112 3.2.2), as clients write it for a proxy; any host is this one.
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_INDEX = ["v2", "repository", "index"]
_UNSERVED = ("systemsharedmemory", "cudasharedmemory", "trace", "logging")

# Status, lines of the head, body.
Answer = tuple[int, bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request by its head.

    ``model``: the one to infer with; None: something else is asked. ``name``: of the model that it names, or empty.
    ``refusal``: why it is not served.
    """

    method: bytes = b"GET"
    path: str = ""
    fields: Mapping[bytes, bytes]
    model: ModelFile | None = None
    name: str = ""
    body_bytes_max: int = 0
    refusal: InferenceError | None = None

    @property
    def wants_body(self) -> bool:
        """Whether anything of its body is kept."""
        return self.body_bytes_max > 0


class HttpDoor:
    """What is asked by HTTP.

    Args:
        service: What it serves.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._largest = {name: body_bytes_max(model) for name, model in service.models.items()}
        # What nearly all requests ask for, as clients write it.
        self._infer_targets: dict[bytes, ModelFile] = {}
        for name, model in service.models.items():
            for version in ("", f"/versions/{version_of(model)}"):
                self._infer_targets[f"/v2/models/{quote(name)}{version}/infer".encode()] = model

    def read(self, head: Head) -> Asked:
        """Judges a request before its body is there."""
        path, name, most = "", "", 0
        try:
            model = self._infer_targets.get(head.target) if head.method == b"POST" else None
            if model is not None:
                name = model.name
                self._service.check_token(head.fields.get(b"authorization"))
            else:
                target = head.target[origin.end() :] if (origin := _ORIGIN.match(head.target)) else head.target
                path = unquote(target.partition(b"?")[0].decode("latin-1"))
                parts = _parts(path)
                name = parts[2] if len(parts) > 2 and parts[1] == "models" else ""
                self._service.check_token(head.fields.get(b"authorization"))
                model = self._model_to_infer(head.method, parts)
                most = HEAD_BYTES_MAX if (head.method, parts) == (b"POST", _INDEX) else 0
            if model is not None:
                most = self._largest[model.name]
            if most:
                _check_codings(head.fields)
        except InferenceError as error:
            return Asked(fields=head.fields, name=name, refusal=error)
        return Asked(method=head.method, path=path, fields=head.fields, model=model, name=name, body_bytes_max=most)

    def _model_to_infer(self, method: bytes, parts: list[str]) -> ModelFile | None:
        match parts:
            case ["v2", "models", name, *rest] if rest and rest[-1] == "infer":
                version = _version(rest[:-1])
                _only(method, b"POST")
                return self._service.model(name, version)
        return None

    def serve(self, whole: Whole, reply: Reply) -> Cancel | None:
        """Answers a request, now or later."""
        asked: Asked = whole.head
        try:
            if asked.refusal is not None:
                raise asked.refusal
            if asked.model is not None:
                return self._infer(asked, asked.model, whole, reply)
            if asked.wants_body:
                _check_object(asked, whole)
            reply.answer(*self._told(asked.method, _parts(asked.path), asked.path))
        except InferenceError as error:
            self._refuse(reply, error, asked.name)
        return None

    def _told(self, method: bytes, parts: list[str], path: str) -> Answer:
        service = self._service
        match parts:
            case ["v2"]:
                _only(method, b"GET")
                return _said(service.metadata())
            case ["v2", "health", "live"]:
                _only(method, b"GET")
                return 200, b"", b""
            case ["v2", "health", "ready"]:
                _only(method, b"GET")
                return (200 if service.is_ready() else 503), b"", b""
            case ["v2", "models", "stats"]:
                _only(method, b"GET")
                return _said(service.statistics(list(service.models.values())))
            case ["v2", "models", _, "trace", *_] | ["v2", "models", _, "versions", _, "trace", *_]:
                raise _unserved("trace")
            case ["v2", "models", name, *rest]:
                _only(method, b"GET")
                return self._of_model(name, rest)
            case parts if parts == _INDEX:
                _only(method, b"POST")
                return _said(service.index())
            case ["v2", "repository", *_]:
                raise InferenceError(
                    Kind.UNSUPPORTED, "models are not loaded or unloaded one by one; change the deployment"
                )
            case ["v2", first, *_] if first in _UNSERVED:
                raise _unserved(first)
        raise InferenceError(Kind.UNKNOWN, f"no path {path!r:.100}")

    def _of_model(self, name: str, rest: list[str]) -> Answer:
        what = rest[-1] if rest and rest[-1] in ("ready", "config", "stats") else ""
        model = self._service.model(name, _version(rest[:-1] if what else rest))
        if what == "ready":
            return (200 if self._service.pool.is_ready(name) else 503), b"", b""
        if what == "config":
            return _said(self._service.config(model))
        return _said(self._service.statistics([model]) if what else model_metadata(model))

    def _infer(self, asked: Asked, model: ModelFile, whole: Whole, reply: Reply) -> Cancel | None:
        arrived_s = self._loop.time()
        if whole.why:
            raise _not_kept(whole.why, f"{asked.body_bytes_max} bytes, the model's largest")
        late = self._service.pool.turned_away(model.name)
        if late is not None:
            _fail(reply, late)
            return None
        body = whole.body
        length = asked.fields.get(b"inference-header-content-length")
        head = head_bytes(length.decode("latin-1") if length is not None else None, len(body))
        submit = partial(self._submit, reply, arrived_s)
        # Tensors behind a head are not looked at: a body is long to read where it is JSON.
        if head is None and len(body) > LARGE_BYTES:
            return self._service.large.read(body, submit, partial(self._refuse, reply), model=model.name)
        return submit(model, read_request(model, body, head))

    def _submit(self, reply: Reply, arrived_s: float, model: ModelFile, request: InferRequest) -> Cancel:
        encode: Encode = partial(written_answer, model, request)
        answer: Callable[[Any], None] = partial(_answer, reply)
        if request.answer_json_bytes(model) > LARGE_BYTES:
            encode, answer = partial(_copied, request), partial(self._write, reply, model, request)
        one = self._service.submit(model, request, encode, arrived_s, math.inf, answer, partial(_fail, reply))
        return partial(self._service.pool.cancel, one)

    def _write(self, reply: Reply, model: ModelFile, request: InferRequest, outputs: Sequence[Array]) -> None:
        """Has an answer written elsewhere: numbers in JSON are long to write. It is counted already."""
        fail = partial(_fail, reply)
        try:
            reply.later(self._service.large.write(model, request, outputs, partial(_answer, reply), fail))
        except InferenceError as error:
            fail(error)

    def _refuse(self, reply: Reply, error: InferenceError | CallError, model: str) -> None:
        assert isinstance(error, InferenceError), "others come by gRPC alone"
        self._service.pool.refuse(model, error.kind)
        _fail(reply, error)


def _fail(reply: Reply, error: InferenceError | CallError, model: str = "") -> None:
    assert isinstance(error, InferenceError), "others come by gRPC alone"
    reply.answer(error.kind.http, _error_fields(error), error_body(str(error)))


def _copied(request: InferRequest, arrays: Sequence[Array]) -> list[Array]:
    return [np.array(arrays[place]) for place in request.outputs]


def _answer(reply: Reply, written: tuple[bytes | memoryview, int | None]) -> None:
    body, head = written
    reply.answer(200, JSON if head is None else _BINARY % head, body)


def _parts(path: str) -> list[str]:
    return path.strip("/").split("/")


def _unserved(what: str) -> InferenceError:
    return InferenceError(Kind.UNSUPPORTED, f"{what} is not served")


def _only(method: bytes, wanted: bytes) -> None:
    if method != wanted and not (wanted == b"GET" and method == b"HEAD"):
        raise InferenceError(Kind.METHOD, f"{method.decode('latin-1'):.20} is not taken here; use {wanted.decode()}")


def _check_codings(fields: Mapping[bytes, bytes]) -> None:
    coding = fields.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise InferenceError(Kind.COMPRESSED, "compressed bodies are not taken")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        raise InferenceError(Kind.UNSUPPORTED, "no transfer coding but chunked is taken")


def _not_kept(why: str, largest: str) -> InferenceError:
    if why == "large":
        return InferenceError(Kind.TOO_LARGE, f"the body is larger than {largest}")
    return InferenceError(Kind.FULL, "the bodies that are under way are too large together", hint="try later")


def _check_object(asked: Asked, whole: Whole) -> None:
    """Refuses a body that is not empty and no JSON object; what is in it changes nothing."""
    if whole.why:
        raise _not_kept(whole.why, f"{asked.body_bytes_max} bytes")
    try:
        if whole.body:
            msgspec.json.decode(whole.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed("the body is no JSON object; an empty one will do") from error


def _version(rest: list[str]) -> str:
    match rest:
        case []:
            return ""
        case ["versions", version]:
            return version
    raise InferenceError(Kind.UNKNOWN, f"no path {'/'.join(rest)!r:.100} of a model")


def _said(value: object) -> Answer:
    return 200, JSON, msgspec.json.encode(value)


def _error_fields(error: InferenceError) -> bytes:
    if error.kind in (Kind.FULL, Kind.DIED):
        return JSON + b"retry-after: 1\r\n"
    if error.kind is Kind.UNAUTHENTICATED:
        return JSON + b"www-authenticate: Bearer\r\n"
    return JSON


def open_http(service: Service, address: str, secure: TlsFiles | None) -> HttpServer:
    """A server of a service that has HOST:PORT, and answers once it is started.

    Raises:
        ConfigError: The address can't be listened on, or a file of TLS is wrong.
    """
    tls = server_tls(secure) if secure is not None else None
    listener = open_listener(f"tcp:{address}", setting="http_listen")
    door = HttpDoor(service)
    return HttpServer(
        door.read, door.serve, head_bytes_max=HEAD_BYTES_MAX, wire_bytes_max=BODY_BYTES_MAX + HEAD_BYTES_MAX,
        listener=listener, tls=tls, connections=door_connections(),
    )  # fmt: skip
