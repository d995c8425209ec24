"""Messages that make, remove and list RDMA devices: pure bytes, of include/uapi/rdma/rdma_netlink.h.

One request is one message of the family NETLINK_RDMA. A change is answered by one error message whose number is 0 when
all went well, a listing by one message a device and a last one. pyroute2 knows everything but this family.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from farside.errors import RemoteProtocolError

NETLINK_RDMA = 20
ANSWER_BYTES = 65536  # the kernel fills at most 32 KiB at a time

_CLIENT_NLDEV = 5
_GET = 1
_NEWLINK = 3
_DELLINK = 4
_ATTR_DEVICE_INDEX = 1
_ATTR_DEVICE_NAME = 2
_ATTR_NETDEV_NAME = 51
_ATTR_LINK_TYPE = 65

_ERROR = 2
_DONE = 3
_REQUEST_WITH_ACK = 0x1 | 0x4
_REQUEST_DUMP = 0x1 | 0x300
_HEADER = struct.Struct("=IHHII")
_ATTR = struct.Struct("=HH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The kernel's last word on the request with this sequence number: an errno, 0 for done."""

    sequence: int
    errno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One device of a listing, by the number that the kernel knows it by."""

    sequence: int
    index: int
    name: str


Answer = Acknowledged | Listed


def new_link(sequence: int, *, name: str, kind: str, netdev: str) -> bytes:
    """Makes the RDMA device `name` of a kind (rxe, siw) on top of a network device."""
    body = _text(_ATTR_DEVICE_NAME, name) + _text(_ATTR_LINK_TYPE, kind) + _text(_ATTR_NETDEV_NAME, netdev)
    return _message(_NEWLINK, _REQUEST_WITH_ACK, sequence, body)


def delete_link(sequence: int, *, index: int) -> bytes:
    """Removes the RDMA device with this index."""
    body = _attribute(_ATTR_DEVICE_INDEX, struct.pack("=I", index))
    return _message(_DELLINK, _REQUEST_WITH_ACK, sequence, body)


def list_devices(sequence: int) -> bytes:
    """Asks for every RDMA device: a `Listed` each, then one `Acknowledged`."""
    return _message(_GET, _REQUEST_DUMP, sequence, b"")


def parse_answers(received: bytes) -> Iterator[Answer]:
    """What the kernel said in one datagram.

    Raises:
        RemoteProtocolError: It is cut short, or of another kind.
    """
    rest = received
    while rest:
        if len(rest) < _HEADER.size:
            raise RemoteProtocolError(f"RDMA netlink: {len(rest)} bytes where a message was due")
        length, kind, _, sequence, _ = _HEADER.unpack_from(rest)
        if not _HEADER.size <= length <= len(rest):
            raise RemoteProtocolError(f"RDMA netlink: a message of {length} bytes in {len(rest)}")
        yield _answer(kind, sequence, rest[_HEADER.size : length])
        rest = rest[_padded(length) :]


def _answer(kind: int, sequence: int, body: bytes) -> Answer:
    if kind == _ERROR and len(body) >= 4:
        return Acknowledged(sequence=sequence, errno=-int.from_bytes(body[:4], sys.byteorder, signed=True))
    if kind == _DONE:
        return Acknowledged(sequence=sequence, errno=0)
    if kind == (_CLIENT_NLDEV << 10 | _GET):
        found = dict(_attributes(body))
        name = found.get(_ATTR_DEVICE_NAME, b"").rstrip(b"\0").decode(errors="replace")
        return Listed(
            sequence=sequence, index=int.from_bytes(found.get(_ATTR_DEVICE_INDEX, b""), sys.byteorder), name=name
        )
    raise RemoteProtocolError(f"RDMA netlink: an answer of type {kind}")


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    rest = body
    while len(rest) >= _ATTR.size:
        length, kind = _ATTR.unpack_from(rest)
        if not _ATTR.size <= length <= len(rest):
            raise RemoteProtocolError(f"RDMA netlink: an attribute of {length} bytes in {len(rest)}")
        yield kind, rest[_ATTR.size : length]
        rest = rest[_padded(length) :]


def _message(operation: int, flags: int, sequence: int, body: bytes) -> bytes:
    kind = _CLIENT_NLDEV << 10 | operation
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _attribute(kind: int, body: bytes) -> bytes:
    return _ATTR.pack(_ATTR.size + len(body), kind) + body + b"\0" * (_padded(len(body)) - len(body))


def _padded(length: int) -> int:
    return length + 3 & ~3
