"""Attributes of netlink messages, and the generic netlink message that carries them, as bytes. PURE.

An attribute is its length, its type and its value, padded to four bytes (struct nlattr of <linux/netlink.h>). The
length counts header and value, without the padding. The value of a nested attribute is attributes again. Numbers are in
the byte order of this machine, and texts end with a zero byte.

pyroute2 does this as well, but its import takes 0.1 s and 20 MiB, in each agent and in each process that guards a swap
device while memory is out.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from farside.errors import RemoteProtocolError

HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
GENERIC = struct.Struct("=BBH")  # struct genlmsghdr: command, version, reserved

_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NUMBERS = {1: struct.Struct("=B"), 2: struct.Struct("=H"), 4: struct.Struct("=I"), 8: struct.Struct("=Q")}
_ALIGNMENT = 4  # NLA_ALIGNTO
_TYPE = 0x3FFF  # NLA_TYPE_MASK; the two bits above it say that a value is nested, or in network byte order


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A generic netlink message without its netlink header; ``attributes`` is encoded."""

    command: int
    version: int
    attributes: bytes = b""


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded. A nested one has attributes as its value."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % _ALIGNMENT)


def uint32(kind: int, value: int) -> bytes:
    """An attribute that is a number of four bytes."""
    return attribute(kind, struct.pack("=I", value))


def uint64(kind: int, value: int) -> bytes:
    """An attribute that is a number of eight bytes."""
    return attribute(kind, struct.pack("=Q", value))


def text(kind: int, value: str) -> bytes:
    """An attribute that is a text."""
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute in the bytes, in their order.

    Raises:
        RemoteProtocolError: One is longer than the bytes, or shorter than its own header.
    """
    start = 0
    # What is left may be padding, which is shorter than a header.
    while len(data) - start >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if not _ATTRIBUTE.size <= length <= len(data) - start:
            raise RemoteProtocolError(f"netlink: an attribute of {length} bytes, where {len(data) - start} are left")
        yield kind & _TYPE, data[start + _ATTRIBUTE.size : start + length]
        start += length + -length % _ALIGNMENT


def read_message(data: bytes) -> Message:
    """The generic netlink message after the netlink header.

    Raises:
        RemoteProtocolError: The bytes are shorter than both headers.
    """
    if len(data) < HEADER.size + GENERIC.size:
        raise RemoteProtocolError(f"netlink: a message of {len(data)} bytes is shorter than its headers")
    length, *_ = HEADER.unpack_from(data)
    command, version, _ = GENERIC.unpack_from(data, HEADER.size)
    # A datagram may have bytes after the message.
    return Message(command=command, version=version, attributes=data[HEADER.size + GENERIC.size : length])


def read_number(value: bytes) -> int:
    """The number of an attribute of one, two, four or eight bytes.

    Raises:
        RemoteProtocolError: The value has another length.
    """
    if len(value) not in _NUMBERS:
        raise RemoteProtocolError(f"netlink: a number of {len(value)} bytes")
    (number,) = _NUMBERS[len(value)].unpack(value)
    return int(number)


def read_text(value: bytes) -> str:
    """The text of an attribute, without the zero byte at its end."""
    return value.rstrip(b"\0").decode(errors="replace")
