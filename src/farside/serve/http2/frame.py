"""Frames of HTTP/2 (RFC 9113): their numbers, how they are written, and header fields as bytes (RFC 7541). PURE.

What is written needs no table of the other side: fields are literals that nobody has to remember.
"""

import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# What each side takes without a setting, and what we keep: a body of 64 MiB is 4,096 frames, which is little beside it.
FRAME_BYTES = 16_384
FRAME_BYTES_MAX = (1 << 24) - 1
HEAD_BYTES = 9
WINDOW_MAX = (1 << 31) - 1
WINDOW_BYTES = 65_535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADER_LIST = 2, 3, 4, 5, 6

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0x0, 0x1, 0x2, 0x3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 0x5, 0x6, 0x7, 0x8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x9, 0xB

_LINE_BYTES_MAX = 256
_FRAME_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")


class Fault(Exception):
    """What the other side did wrong; the connection ends with this code."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code, self.line = code, line


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return _FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def read_head(buffer: bytes, at: int) -> tuple[int, int, int, int]:
    """Length, type, flags and stream of a frame whose head is at ``at``."""
    high, low, kind, flags, stream = _FRAME_HEAD.unpack_from(buffer, at)
    return high << 8 | low, kind, flags, stream & WINDOW_MAX


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """SETTINGS with these."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in values))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Settings by number.

    Raises:
        Fault: No whole number of them.
    """
    if len(payload) % _SETTING.size:
        raise Fault(FRAME_SIZE_ERROR, "SETTINGS is no whole number of settings")
    return list(_SETTING.iter_unpack(payload))


def window_frame(stream: int, size: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def reset_frame(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway_frame(last: int, code: int, line: str) -> bytes:
    """GOAWAY; ``line`` is for whoever looks into it."""
    told = line.encode("utf-8", "replace")[:_LINE_BYTES_MAX]
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + told)


def unpadded(flags: int, payload: bytes) -> bytes:
    """A payload without its padding.

    Raises:
        Fault: There is more padding than payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Fault(PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal that is not indexed."""
    return b"\x00" + _text(name) + _text(value)


def status(code: int) -> bytes:
    """The field :status."""
    return b"\x88" if code == 200 else b"\x08" + _text(b"%d" % code)


def _text(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    made, size = bytearray((0x7F,)), size - 0x7F
    while size >= 0x80:
        made.append(size & 0x7F | 0x80)
        size >>= 7
    made.append(size)
    return bytes(made) + text
