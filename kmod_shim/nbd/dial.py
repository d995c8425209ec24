"""Client's side of an NBD connection: connect and negotiate up to the point where the kernel takes the socket.

How it works. Each socket is dialled, not made as a pair. The server then treats the kernel as it treats every client,
and its supervisor keeps the other end across restarts as it does for every client. Size, flags and block size come from
the server itself. Once it is connected, a unix socket that was dialled is the same as one of a pair: nothing is between
the kernel and the server's thread.

Replies are read to the byte, never further: what follows the last one belongs to the kernel.
"""

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from farside.endpoint import parse_endpoint
from farside.errors import PeerError, RemoteProtocolError

# Numbers of the NBD protocol (proto.md). blockdev/client/handshake.py has them too, and may not be imported here; a
# test compares the two.
NBDMAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
REPLY_MAGIC = 0x0003E889045565A9
FLAG_FIXED_NEWSTYLE = 1
FLAG_NO_ZEROES = 2
OPT_GO = 7
REP_ACK, REP_INFO = 1, 3
REP_IS_ERROR = 1 << 31
INFO_EXPORT, INFO_BLOCK_SIZE = 0, 3
CAN_MULTI_CONN = 1 << 8
REPLY_BYTES_MAX = 65536  # far above any reply: the protocol's strings have 4096 bytes at most

DIAL_LIMIT_S = 10.0

_GREETING = struct.Struct(">QQH")
_OPTION = struct.Struct(">QII")
_REPLY = struct.Struct(">QIII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Export as a server describes it. ``block_bytes`` is the least that it takes, 1 when it did not say."""

    size_bytes: int
    flags: int
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """Sockets past the handshake, all of one export; the caller closes them."""

    offer: Offer
    sockets: tuple[socket.socket, ...]


def dial(endpoint: str, export: str, *, count: int, limit_s: float = DIAL_LIMIT_S) -> Dialled:
    """Connects ``count`` times to ``unix:PATH`` or ``tcp:HOST:PORT``.

    Raises:
        PeerError: Nobody answers, it refused, or it does not answer within ``limit_s``.
        RemoteProtocolError: What answers is no NBD server, or offers another export to each socket.
    """
    sockets: list[socket.socket] = []
    offers: set[Offer] = set()
    try:
        for _ in range(count):
            sockets.append(_connected(endpoint, limit_s))
            offers.add(negotiate(sockets[-1], export))
            # A time limit makes a socket non-blocking; the kernel is to have one that blocks.
            sockets[-1].settimeout(None)
        # The kernel takes one size and one set of flags for all sockets.
        if len(offers) != 1:
            raise RemoteProtocolError(f"{endpoint}: reports a different size or flags on each connection")
        (offer,) = offers
        if count > 1 and not offer.flags & CAN_MULTI_CONN:
            raise RemoteProtocolError(f"{endpoint}: allows one connection only", hint="attach with --connections 1")
    # Also for an interrupt: a socket that is left open keeps one of the server's workers.
    except BaseException as error:
        hang_up(sockets)
        if isinstance(error, OSError):
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
            raise PeerError(f"{endpoint}: {reason}", hint="is `farside blockdev` running there?") from error
        raise
    return Dialled(offer=offer, sockets=tuple(sockets))


def hang_up(sockets: Sequence[socket.socket]) -> None:
    """Closes them; a server sees clients that leave."""
    for sock in sockets:
        with suppress(OSError):
            sock.close()


def negotiate(sock: socket.socket, export: str) -> Offer:
    """Newstyle negotiation up to the first request. Raises OSError, PeerError and RemoteProtocolError."""
    magic, style, flags = _GREETING.unpack(_exactly(sock, _GREETING.size))
    if (magic, style) != (NBDMAGIC, IHAVEOPT) or not flags & FLAG_FIXED_NEWSTYLE:
        raise RemoteProtocolError("the server does not speak fixed newstyle NBD")
    sock.sendall(struct.pack(">I", FLAG_FIXED_NEWSTYLE | (flags & FLAG_NO_ZEROES)) + _go(export))
    size_bytes = transmission = block_bytes = None
    while True:
        kind, data = _reply(sock)
        if kind == REP_ACK:
            if size_bytes is None or transmission is None:
                raise RemoteProtocolError("the server did not send the export's size")
            return Offer(size_bytes=size_bytes, flags=transmission, block_bytes=block_bytes or 1)
        if kind & REP_IS_ERROR:
            reason = " ".join(data.decode(errors="replace").split()) or f"error {kind & ~REP_IS_ERROR}"
            raise PeerError(f"the server refuses export '{export}': {reason}")
        # Other kinds of information are passed over: the protocol allows a server to send what was not asked for.
        if kind == REP_INFO and len(data) == 12 and data[:2] == INFO_EXPORT.to_bytes(2):
            size_bytes, transmission = struct.unpack(">QH", data[2:])
        elif kind == REP_INFO and len(data) == 14 and data[:2] == INFO_BLOCK_SIZE.to_bytes(2):
            block_bytes, _, _ = struct.unpack(">III", data[2:])


def _go(export: str) -> bytes:
    name = export.encode()
    # One kind of information is asked for; the export's size and flags come in any case.
    body = struct.pack(">I", len(name)) + name + struct.pack(">HH", 1, INFO_BLOCK_SIZE)
    return _OPTION.pack(IHAVEOPT, OPT_GO, len(body)) + body


def _reply(sock: socket.socket) -> tuple[int, bytes]:
    magic, option, kind, length = _REPLY.unpack(_exactly(sock, _REPLY.size))
    if magic != REPLY_MAGIC or option != OPT_GO or length > REPLY_BYTES_MAX:
        raise RemoteProtocolError("the server's answer to NBD_OPT_GO is no option reply")
    return kind, _exactly(sock, length)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise PeerError("the server hung up during the negotiation")
        data += part
    return bytes(data)


def _connected(endpoint: str, limit_s: float) -> socket.socket:
    where = parse_endpoint(endpoint)
    if isinstance(where, tuple):
        sock = socket.create_connection(where, timeout=limit_s)
        # A page-in waits for each small request: Nagle's algorithm would hold them back.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(limit_s)
        sock.connect(where)
    except OSError:
        sock.close()
        raise
    return sock
