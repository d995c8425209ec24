"""Server's side of the NBD newstyle negotiation, sans-I/O.

How it works. The caller reads exactly ``needed()`` bytes and gives them to ``receive()``; it never reads more, so what
a client sends right behind its last option stays in the socket, where the engine finds it. ``receive()`` returns a
``Step``: bytes to send, and what to do next.

    greeting() -> flags -> [option header -> option data]* -> ASKED -> accept() | refuse() -> TRANSMIT
                                                            -> START_TLS -> secured() -> options again, by TLS
                                                            -> CLOSE

Where TLS is required, all that comes before it is refused but NBD_OPT_STARTTLS and NBD_OPT_ABORT. Nothing that was said
in the clear counts behind it but the client's flags, which the protocol has said once; and no byte is read that was
sent in the clear behind NBD_OPT_STARTTLS: the TLS handshake finds it in the socket, and ends there. [M11]

ASKED comes before the answer to NBD_OPT_GO and NBD_OPT_EXPORT_NAME, so that the caller can look for a free worker
first: after the answer the client may already be in transmission, and there is no way to refuse it there.

Guarantees: any bytes give a Step, never an exception; nothing larger than ``OPTION_MAX_BYTES`` is asked for; an option
that is not known is answered, not punished. Rejected: reading ahead and handing a rest to the engine (two places that
hold bytes of one stream), and a coroutine that reads by itself (can't be fuzzed).

The protocol is https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md; names are its names.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar

NBDMAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
REPLY_MAGIC = 0x0003E889045565A9

# Flags of the handshake, then of transmission
FLAG_FIXED_NEWSTYLE = 1
FLAG_NO_ZEROES = 2

HAS_FLAGS = 1 << 0
SEND_FLUSH = 1 << 2
SEND_FUA = 1 << 3
SEND_TRIM = 1 << 5
SEND_WRITE_ZEROES = 1 << 6
CAN_MULTI_CONN = 1 << 8  # a promise: a flush on one connection covers what was answered on all others
SEND_CACHE = 1 << 10

# Not ROTATIONAL: remote memory has no seek. Not SEND_DF: simple replies are all there is.
TRANSMISSION_FLAGS = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN | SEND_CACHE

MIN_BLOCK_BYTES = 4096  # the engine's page
PREFERRED_BLOCK_BYTES = 131072  # 32 pages: the largest request Linux swap makes, and what the disk writes at once
MAX_BLOCK_BYTES = 32 << 20  # NE_REQUEST_MAX_BYTES

STRING_MAX_BYTES = 4096  # the protocol's own bound for names
OPTION_MAX_BYTES = 65536  # a name and 32 k information requests; a client that wants more is cut off

_OPTION = struct.Struct(">QII")
_REPLY = struct.Struct(">QIII")


class Option(IntEnum):
    """The options that get more than NBD_REP_ERR_UNSUP."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    STARTTLS = 5
    INFO = 6
    GO = 7
    STRUCTURED_REPLY = 8


# NBD_OPT_EXPORT_NAME has no error reply: a client that has to begin TLS first is cut off.
_BEFORE_TLS = (Option.EXPORT_NAME, Option.ABORT, Option.STARTTLS)


class Rep(IntEnum):
    """Types of option replies; errors have the top bit."""

    ACK = 1
    SERVER = 2
    INFO = 3
    ERR_UNSUP = (1 << 31) + 1
    ERR_POLICY = (1 << 31) + 2
    ERR_INVALID = (1 << 31) + 3
    ERR_TLS_REQD = (1 << 31) + 5
    ERR_UNKNOWN = (1 << 31) + 6
    ERR_SHUTDOWN = (1 << 31) + 7
    ERR_TOO_BIG = (1 << 31) + 9


class Info(IntEnum):
    """Kinds of NBD_REP_INFO."""

    EXPORT = 0
    NAME = 1
    DESCRIPTION = 2
    BLOCK_SIZE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is on offer: one device under its name, and under the empty name as the default."""

    name: str
    description: str
    size_bytes: int
    flags: int = TRANSMISSION_FLAGS


class TlsRule(Enum):
    """Whether a client may begin TLS, or has to."""

    NONE = "none"
    OFFERED = "offered"
    REQUIRED = "required"


class Next(Enum):
    """What the caller does after a Step."""

    READ = "read"  # needed() bytes more
    START_TLS = "start tls"  # have the client prove itself, call secured(), and go on through TLS
    ASKED = "asked"  # call accept() or refuse()
    TRANSMIT = "transmit"  # the socket is the engine's now
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Bytes to send first, what to do then, and why where a connection ends."""

    send: bytes = b""
    next: Next = Next.READ
    reason: str = ""


class Handshake:
    """One connection's negotiation; see the module for how to drive it."""

    def __init__(self, export: Export, tls: TlsRule = TlsRule.NONE) -> None:
        self._export = export
        self._tls = tls
        self._is_secure = False
        self._no_zeroes = False
        self._asked = Option.GO  # the option that accept() and refuse() answer
        self._wants: frozenset[int] = frozenset()  # kinds of information that GO or INFO asked for
        self._option = 0  # the option in hand; each reply names it
        self._needed = 4  # the client's flags
        self._state: Callable[[bytes], Step] = self._on_flags

    def greeting(self) -> bytes:
        """The bytes that open the connection, before anything is read."""
        return struct.pack(">QQH", NBDMAGIC, IHAVEOPT, FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)

    def needed(self) -> int:
        """How many bytes the next ``receive()`` takes, 0 to OPTION_MAX_BYTES."""
        return self._needed

    def receive(self, data: bytes) -> Step:
        """The answer to exactly ``needed()`` bytes from the client."""
        assert len(data) == self._needed, "receive() takes exactly needed() bytes"
        step = self._state(data)
        # An option without data is complete with its header.
        while step.next is Next.READ and self._needed == 0:
            step = self._state(b"")
        return step

    def accept(self) -> Step:
        """The answer that starts transmission, after ASKED."""
        if self._asked is Option.EXPORT_NAME:
            # The old option has padding that only a client with NO_ZEROES does without.
            zeroes = b"" if self._no_zeroes else bytes(124)
            return Step(send=self._size_and_flags() + zeroes, next=Next.TRANSMIT)
        return Step(send=self._infos() + self._reply(Rep.ACK), next=Next.TRANSMIT)

    def refuse(self, reason: str, *, shutting_down: bool = False) -> Step:
        """The answer that denies the export now, after ASKED; NBD_OPT_EXPORT_NAME has none, so there it is a close."""
        if self._asked is Option.EXPORT_NAME:
            return Step(next=Next.CLOSE, reason=reason)
        return self._error(Rep.ERR_SHUTDOWN if shutting_down else Rep.ERR_POLICY, reason)

    def secured(self) -> None:
        """What comes from now on has come through TLS, of a client that has proved itself."""
        self._is_secure = True

    # ----------------------------------------------------------------- states

    def _on_flags(self, data: bytes) -> Step:
        (flags,) = struct.unpack(">I", data)
        # The protocol has the server drop a client whose flags it did not offer: it might rely on them.
        if flags & ~(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES):
            return Step(next=Next.CLOSE, reason=f"unknown client flags {flags:#x}")
        self._no_zeroes = bool(flags & FLAG_NO_ZEROES)
        return self._wait_for_option()

    def _on_option(self, data: bytes) -> Step:
        magic, self._option, length = _OPTION.unpack(data)
        if magic != IHAVEOPT:
            return Step(next=Next.CLOSE, reason="option without its magic number")
        # Before the data is read, so that no client can make us keep more.
        if length > OPTION_MAX_BYTES:
            return Step(next=Next.CLOSE, reason=f"option of {length} bytes")
        self._needed, self._state = length, self._on_data
        return Step()

    def _on_data(self, data: bytes) -> Step:
        # Whatever the answer, an option header comes next; only TRANSMIT and CLOSE end that.
        self._wait_for_option()
        if self._tls is TlsRule.REQUIRED and not self._is_secure and self._option not in _BEFORE_TLS:
            return self._error(Rep.ERR_TLS_REQD, "this device serves such clients by TLS only")
        try:
            option = Option(self._option)
        except ValueError:
            return self._error(Rep.ERR_UNSUP, f"option {self._option} is not supported")
        return self._ANSWERS[option](self, data)

    def _wait_for_option(self) -> Step:
        self._needed, self._state = _OPTION.size, self._on_option
        return Step()

    # ---------------------------------------------------------------- options

    def _export_name(self, data: bytes) -> Step:
        # NBD_OPT_EXPORT_NAME has no error reply.
        if self._tls is TlsRule.REQUIRED and not self._is_secure:
            return Step(next=Next.CLOSE, reason="it does without TLS")
        if self._export_named(data) is None:
            return Step(next=Next.CLOSE, reason="no such export")
        self._asked = Option.EXPORT_NAME
        return Step(next=Next.ASKED)

    def _abort(self, data: bytes) -> Step:
        return Step(send=self._reply(Rep.ACK), next=Next.CLOSE, reason="client aborted")

    def _list(self, data: bytes) -> Step:
        if data:
            return self._error(Rep.ERR_INVALID, "NBD_OPT_LIST takes no data")
        name = self._export.name.encode()
        server = self._reply(Rep.SERVER, struct.pack(">I", len(name)) + name + self._export.description.encode())
        return Step(send=server + self._reply(Rep.ACK))

    def _unsupported(self, data: bytes) -> Step:
        if data:
            return self._error(Rep.ERR_INVALID, f"{Option(self._option).name} takes no data")
        return self._error(Rep.ERR_UNSUP, f"{Option(self._option).name} is not supported")

    def _start_tls(self, data: bytes) -> Step:
        if self._is_secure:
            return self._error(Rep.ERR_INVALID, "TLS has begun already")
        if data or self._tls is TlsRule.NONE:
            return self._unsupported(data)
        return Step(send=self._reply(Rep.ACK), next=Next.START_TLS)

    def _info_or_go(self, data: bytes) -> Step:
        if len(data) < 6:
            return self._error(Rep.ERR_INVALID, "too short")
        (length,) = struct.unpack_from(">I", data)
        if length > STRING_MAX_BYTES:
            return self._error(Rep.ERR_TOO_BIG, f"export name longer than {STRING_MAX_BYTES} bytes")
        if 6 + length > len(data):
            return self._error(Rep.ERR_INVALID, "the name is longer than the option")
        (count,) = struct.unpack_from(">H", data, 4 + length)
        if 6 + length + 2 * count != len(data):
            return self._error(Rep.ERR_INVALID, "the number of requests does not fit the option's length")
        if self._export_named(data[4 : 4 + length]) is None:
            return self._error(Rep.ERR_UNKNOWN, "no such export")
        self._wants = frozenset(struct.unpack_from(f">{count}H", data, 6 + length))
        if self._option == Option.INFO:
            return Step(send=self._infos() + self._reply(Rep.ACK))
        self._asked = Option.GO
        return Step(next=Next.ASKED)

    # INFO and GO take the same data; only GO starts transmission. Structured replies are not served.
    _ANSWERS: ClassVar = {
        Option.EXPORT_NAME: _export_name,
        Option.ABORT: _abort,
        Option.LIST: _list,
        Option.STARTTLS: _start_tls,
        Option.INFO: _info_or_go,
        Option.GO: _info_or_go,
        Option.STRUCTURED_REPLY: _unsupported,
    }

    # ---------------------------------------------------------------- answers

    def _export_named(self, name: bytes) -> Export | None:
        return self._export if name in (b"", self._export.name.encode()) else None

    def _size_and_flags(self) -> bytes:
        return struct.pack(">QH", self._export.size_bytes, self._export.flags)

    def _infos(self) -> bytes:
        # EXPORT must be sent; BLOCK_SIZE is sent unasked too, because requests below a page are refused later.
        parts = [struct.pack(">H", Info.EXPORT) + self._size_and_flags()]
        if Info.NAME in self._wants:
            parts.append(struct.pack(">H", Info.NAME) + self._export.name.encode())
        if Info.DESCRIPTION in self._wants:
            parts.append(struct.pack(">H", Info.DESCRIPTION) + self._export.description.encode())
        sizes = (MIN_BLOCK_BYTES, PREFERRED_BLOCK_BYTES, MAX_BLOCK_BYTES)
        parts.append(struct.pack(">HIII", Info.BLOCK_SIZE, *sizes))
        return b"".join(self._reply(Rep.INFO, part) for part in parts)

    def _reply(self, kind: Rep, data: bytes = b"") -> bytes:
        return _REPLY.pack(REPLY_MAGIC, self._option, kind, len(data)) + data

    def _error(self, kind: Rep, message: str) -> Step:
        return Step(send=self._reply(kind, message.encode()))
