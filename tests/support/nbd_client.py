"""A raw NBD client for the transmission phase: it does what libnbd is too well behaved to do.

It sends half a request, leaves answers unread, repeats a request on another connection, and hangs up in the middle. It
speaks the spec's simple replies and nothing else.
"""

import errno
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Self

REQUEST_MAGIC = 0x25609513
REPLY_MAGIC = 0x67446698
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")
FLAG_FUA = 1
FLAG_NO_HOLE = 2

LIMIT_S = 60.0  # only a test that fails waits so long, and a machine that others use may need it


class Command(IntEnum):
    """Commands of the NBD protocol."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    CACHE = 5
    WRITE_ZEROES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One simple reply: which request it answers, its error (0: none), and a READ's data."""

    cookie: int
    error: int
    data: bytes = b""


class NbdClient:
    """One connection past the handshake."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(LIMIT_S)
        self._next_cookie = 1
        self._reads: dict[int, int] = {}
        self._early: dict[int, Reply] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.sock.close()

    # --- asynchronous: what was sent, and what came back

    def send(self, command: Command, offset: int = 0, length: int = 0, data: bytes = b"", *, flags: int = 0) -> int:
        """Sends one request; returns its cookie."""
        cookie = self._next_cookie
        self._next_cookie += 1
        self.sock.sendall(self.encode(command, cookie, offset, len(data) or length, data, flags=flags))
        return cookie

    def encode(
        self, command: Command, cookie: int, offset: int, length: int, data: bytes = b"", *, flags: int = 0
    ) -> bytes:
        """The bytes of a request, to be sent whole or in pieces by the caller; its answer is then expected."""
        if command == Command.READ:
            self._reads[cookie] = length
        return REQUEST.pack(REQUEST_MAGIC, flags, command, cookie, offset, length) + data

    def reply(self) -> Reply:
        """The next answer that arrives, whichever request it is for."""
        magic, error, cookie = REPLY.unpack(self._exactly(REPLY.size))
        assert magic == REPLY_MAGIC, f"a reply starts with {magic:#x}"
        length = self._reads.pop(cookie, 0)
        data = self._exactly(length) if length and not error else b""
        return Reply(cookie=cookie, error=error, data=data)

    def wait(self, cookie: int) -> Reply:
        """The answer to one request; others that come first are kept for their own `wait`."""
        while cookie not in self._early:
            found = self.reply()
            self._early[found.cookie] = found
        return self._early.pop(cookie)

    # --- one request at a time

    def read(self, offset: int, length: int) -> bytes:
        """Data of a READ that must succeed."""
        return self._done(self.send(Command.READ, offset, length)).data

    def write(self, offset: int, data: bytes, *, flags: int = 0) -> None:
        """A WRITE that must succeed."""
        self._done(self.send(Command.WRITE, offset, data=data, flags=flags))

    def trim(self, offset: int, length: int) -> None:
        """A TRIM that must succeed."""
        self._done(self.send(Command.TRIM, offset, length))

    def zero(self, offset: int, length: int, *, flags: int = 0) -> None:
        """A WRITE_ZEROES that must succeed."""
        self._done(self.send(Command.WRITE_ZEROES, offset, length, flags=flags))

    def flush(self) -> None:
        """A FLUSH that must succeed."""
        self._done(self.send(Command.FLUSH))

    def error_of(self, command: Command, offset: int = 0, length: int = 0, data: bytes = b"") -> int:
        """The error that a request is answered with, 0 for none."""
        return self.wait(self.send(command, offset, length, data)).error

    def disconnect(self) -> None:
        """Says goodbye as the protocol has it."""
        self.sock.sendall(REQUEST.pack(REQUEST_MAGIC, 0, Command.DISC, 0, 0, 0))

    def _done(self, cookie: int) -> Reply:
        found = self.wait(cookie)
        assert found.error == 0, f"answered with {errno.errorcode.get(found.error, found.error)}"
        return found

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self.sock.recv(length - len(parts))
            if not part:
                raise ConnectionResetError("the server hung up")
            parts += part
        return bytes(parts)
