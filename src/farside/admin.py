"""Admin sockets of running processes: one line of JSON in, one line of JSON out, for the owner only.

    {"command": "status"}                       ->  {"ok": true, "result": {...}}
    {"command": "fault", "donor": "d1", ...}    ->  {"ok": false, "error": "one line"}

A connection may carry several requests, one after another. Lines are at most `LINE_BYTES_MAX` long in both directions;
the socket is its owner's before anybody can connect. `serve` is the process's side, `call`, `call_process_of` and `ask`
are the caller's.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from farside.errors import FarsideError, PeerError
from farside.listen import clear_stale, open_listener, peer_process
from farside.log import get_log

LINE_BYTES_MAX = 1 << 20  # a status of thousands of slabs fits; a runaway caller does not
REQUEST_LIMIT_S = 60.0  # a connection that says nothing for so long is closed
CALL_LIMIT_S = 10.0
START_LIMIT_S = 150.0  # what starts a process answers when that serves; its own limit is shorter, and has a reason
IS_IT_RUNNING = "is it running?"
BY_SOCKET = f"{IS_IT_RUNNING} name its socket with --socket"  # for commands that have this option
_BEGINS = (b"{", b" ", b"\t")  # a request does
_STARTING = ("replace", "guard", "start_agent", "start_aggregator", "start_manager", "start_donor")

Handler = Callable[[Mapping[str, object]], Awaitable[object]]

_log = get_log("admin")


class Requests:
    """Requests that are not answered yet, those begun before the end of `serve` included."""

    def __init__(self) -> None:
        self._open = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._open += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if not self._open:
            self._none.set()

    async def answered(self, limit_s: float) -> None:
        """Waits until all are answered and sent, or for so long: a caller may have stopped reading."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._none.wait()


@asynccontextmanager
async def serve(
    path: Path, handlers: Mapping[str, Handler], *, listener: socket.socket | None = None
) -> AsyncIterator[Requests]:
    """Answer requests on a unix socket during the body, each by the handler that has its command's name.

    The socket file is removed at the end, unless another process has put its own there since, or listens there still.
    ``listener``: one that listens at this path already.

    A handler takes the request's arguments (without the command) and returns what JSON or `msgspec` can say. A
    `FarsideError` from it becomes the answer's error.

    Raises:
        ConfigError: The socket can't be made, or another live process serves it.
    """
    if listener is None:
        listener = open_listener(f"unix:{path}", setting="admin_socket")
    requests = Requests()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _converse(reader, writer, handlers, requests)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(converse, sock=listener, limit=LINE_BYTES_MAX)
    try:
        yield requests
    finally:
        server.close()
        with suppress(OSError):
            clear_stale(os.fspath(path))
        await asyncio.sleep(0)


def limit_of(command: str) -> float:
    """Seconds within which a healthy process answers a command."""
    return START_LIMIT_S if command in _STARTING else CALL_LIMIT_S


class AnswerLost(PeerError):
    """The process ended before it had answered; whether it did what it was asked is not known."""


def call(
    path: Path, command: str, /, *, timeout_s: float = CALL_LIMIT_S, absent_hint: str = IS_IT_RUNNING,
    **arguments: object,
) -> Any:  # fmt: skip
    """The result of a command at a running process, as JSON values; ``absent_hint``: what to do where nobody answers.

    Raises:
        AnswerLost: The process ended before it answered.
        PeerError: Nobody answers there, or the process refused; its own words, in one line.
    """
    return _call_checked(path, {"command": command, **arguments}, timeout_s, None, absent_hint)[0]


def call_process_of(
    owners: Collection[int], path: Path, command: str, *, timeout_s: float = CALL_LIMIT_S,
    absent_hint: str = IS_IT_RUNNING, **arguments: object,
) -> tuple[Any, int]:  # fmt: skip
    """The result of a command at a process of one of these users, and that process's pid.

    For a caller that does more for the process than its user may: who can write in the socket's folder can put a socket
    of their own there. The kernel says who listens, before a byte is sent.

    Raises:
        PeerError: as `call`, and it is another user's process.
    """
    return _call_checked(path, {"command": command, **arguments}, timeout_s, owners, absent_hint)


def _call_checked(
    path: Path, request: Mapping[str, object], timeout_s: float, owners: Collection[int] | None, absent_hint: str
) -> tuple[Any, int]:
    line = _line(request)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(os.fspath(path))
            pid, uid = peer_process(connection)
            if owners is not None and uid not in owners:
                raise PeerError(
                    f"{path}: a process of uid {uid} listens there, and it has to be one of uid "
                    + " or ".join(str(owner) for owner in sorted(owners)),
                    hint="who has put it there? the process that belongs there is to be started as that user",
                )
            connection.sendall(line)
            return _result(_receive_line(connection), path), pid
    except OSError as error:
        raise _no_answer(path, error, absent_hint) from error


async def ask(path: Path, command: str, *, timeout_s: float = CALL_LIMIT_S, **arguments: object) -> Any:
    """The result of a command at a running process, for a program with an event loop; see `call`."""
    request = _line({"command": command, **arguments})
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(os.fspath(path), limit=LINE_BYTES_MAX)
            try:
                writer.write(request)
                await writer.drain()
                return _result(await reader.readline(), path)
            finally:
                writer.close()
    except (OSError, ValueError) as error:
        raise _no_answer(path, error, IS_IT_RUNNING) from error


# --- the server's side


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handlers: Mapping[str, Handler],
    requests: Requests,
) -> None:
    try:
        while True:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                first = await reader.read(1)
                # Who speaks another protocol may never send the end of a line, and waits for an answer.
                line = first + await reader.readline() if first in _BEGINS else first
            if not line:
                return
            with requests:
                writer.write(await _answer(line, handlers))
                await writer.drain()
            if first not in _BEGINS:
                return
    except ValueError:
        writer.write(_failure(f"a request is one line of at most {LINE_BYTES_MAX} bytes"))
    except (OSError, TimeoutError):
        return  # the caller is gone, or never came to the point


async def _answer(line: bytes, handlers: Mapping[str, Handler]) -> bytes:
    try:
        request = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _failure(f"not a JSON object: {error}")
    command = request.pop("command", None)
    handler = handlers.get(command) if isinstance(command, str) else None
    if handler is None:
        return _failure(f"no command {command!r:.60}; there are {', '.join(sorted(handlers))}")
    try:
        answer = _line({"ok": True, "result": await handler(request)})
    except FarsideError as error:
        return _failure(str(error))
    except Exception as error:  # the top of this task: a fault of ours is recorded, and the process goes on
        _log.error("a command failed", command=command, cause=error)
        return _failure(f"internal error: {type(error).__name__}: {error}")
    if len(answer) > LINE_BYTES_MAX:
        return _failure(f"the answer is longer than {LINE_BYTES_MAX} bytes")
    return answer


def _failure(text: str) -> bytes:
    return _line({"ok": False, "error": " ".join(text.split())})


# --- both sides


def _line(value: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(value, enc_hook=_encode_other) + b"\n"


def _encode_other(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


# --- the caller's side


def _receive_line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            break
        received += part
        if len(received) > LINE_BYTES_MAX:
            raise OSError("the answer is too long")
    return bytes(received)


def _result(line: bytes, path: Path) -> Any:
    if not line.endswith(b"\n"):
        raise AnswerLost(f"{path}: the process there ended, or is no Farside process")
    try:
        answer = msgspec.json.decode(line, type=dict[str, Any])
        if answer["ok"] is True:
            return answer["result"]
        raise PeerError(str(answer["error"]))
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise PeerError(f"{path}: the process there is no Farside process") from error


def _no_answer(path: Path, error: OSError | ValueError, absent_hint: str) -> PeerError:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return PeerError(f"{path}: no process answers there", hint=absent_hint)
    if isinstance(error, PermissionError):
        return PeerError(f"{path}: permission denied", hint="ask as root, or as the user that runs it")
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return AnswerLost(f"{path}: {error.strerror}")
    if isinstance(error, TimeoutError):
        return PeerError(f"{path}: no answer in time", hint="the process is stopped or overloaded")
    return PeerError(f"{path}: {error}")
