"""What gRPC puts into HTTP/2: a call's head, its one message, the answer and its status. PURE.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, for calls of one message each way.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farside.serve.http2.frame import field, status
from farside.serve.http2.head import Head

PREFIX_BYTES = 5
# Status by name: those that a call may end with here.
CODES = MappingProxyType(
    {
        "OK": 0, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "RESOURCE_EXHAUSTED": 8,
        "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "UNAUTHENTICATED": 16,
    }
)  # fmt: skip
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])\Z")
# zlib's window, by what gRPC calls it: zlib's own format, and gzip's.
_WINDOW_BITS = {b"deflate": zlib.MAX_WBITS, b"gzip": 16 + zlib.MAX_WBITS}
_TEXT_BYTES_MAX = 1024
# A compressed message may become so many times larger, or so large: what it costs is in proportion to what was sent.
_SWELLS_MAX, _SWOLLEN_BYTES = 16, 64 << 10

_KIND = field(b"content-type", b"application/grpc")
ANSWER_HEAD = status(200) + _KIND + field(b"grpc-accept-encoding", b"identity,deflate,gzip")
ANSWER_END = field(b"grpc-status", b"0")


class CallError(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, code: str, line: str) -> None:
        super().__init__(line)
        self.code, self.line = code, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call's head.

    ``message_bytes_max``: the largest message that is taken. ``within_s``: that its client waits; infinite without a
    deadline. ``refusal``: the block that answers it where it is not one that is served; empty: it is.
    """

    path: bytes
    message_bytes_max: int = 0
    within_s: float = float("inf")
    encoding: bytes = b"identity"
    refusal: bytes = b""

    @property
    def is_refused(self) -> bool:
        """Whether it is answered before its message has come."""
        return bool(self.refusal)

    def is_too_large(self, body: bytes | bytearray) -> bool:
        """Whether the message is too large by its length, which a body begins with, or by what is here of it."""
        most = self.message_bytes_max
        if len(body) < PREFIX_BYTES:
            return False
        return len(body) - PREFIX_BYTES > most or int.from_bytes(body[1:PREFIX_BYTES], "big") > most


def read_call(head: Head, known: Mapping[bytes, int], barred: Callable[[bytes], str] = lambda _: "") -> Call:
    """The call in a head.

    Args:
        head: The head.
        known: The paths that are served, and the largest message of each.
        barred: Why an authorization does not let a call pass; empty: it does.
    """
    fields = head.fields
    refusal, within_s = b"", float("inf")
    timeout = fields.get(b"grpc-timeout")
    encoding = fields.get(b"grpc-encoding", b"identity")
    if head.method != b"POST":
        refusal = status(405)
    elif not re.match(rb"application/grpc([+;]|\Z)", fields.get(b"content-type", b"")):
        refusal = status(415)
    elif line := barred(fields.get(b"authorization", b"")):
        refusal = failed("UNAUTHENTICATED", line)
    elif head.path not in known:
        refusal = failed("UNIMPLEMENTED", "there is no such method")
    elif encoding != b"identity" and encoding not in _WINDOW_BITS:
        refusal = failed("UNIMPLEMENTED", "the message's compression is none of identity, deflate and gzip")
    elif timeout is not None:
        found = _TIMEOUT.match(timeout)
        if found is None:
            refusal = failed("INVALID_ARGUMENT", "grpc-timeout is no number with a unit")
        else:
            within_s = int(found[1]) * _UNIT_S[found[2]]
    return Call(
        path=head.path, message_bytes_max=known.get(head.path, 0), within_s=within_s, encoding=encoding,
        refusal=refusal,
    )  # fmt: skip


def read_message(call: Call, body: bytes | bytearray, bytes_max: int) -> bytes:
    """The one message of a call.

    Raises:
        CallError: There is none, more than one, it is too large, or it swells too much.
    """
    if len(body) < PREFIX_BYTES:
        raise CallError("INVALID_ARGUMENT", "the call has no message")
    size = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if size > bytes_max:
        raise too_large(bytes_max)
    if len(body) - PREFIX_BYTES != size:
        more = "more than one message" if len(body) - PREFIX_BYTES > size else "a message that ends before its length"
        raise CallError("INVALID_ARGUMENT", f"the call has {more}")
    if body[0] == 0:
        return bytes(body[PREFIX_BYTES:])
    if body[0] != 1 or call.encoding == b"identity":
        raise CallError("INTERNAL", "the message is marked as compressed, and grpc-encoding does not say by what")
    unpack = zlib.decompressobj(_WINDOW_BITS[call.encoding])
    swollen_max = max(_SWOLLEN_BYTES, _SWELLS_MAX * size)
    try:
        data = unpack.decompress(body[PREFIX_BYTES:], min(bytes_max, swollen_max) + 1)
    except zlib.error as error:
        raise CallError("INTERNAL", "the message can not be decompressed") from error
    if len(data) > bytes_max:
        raise too_large(bytes_max)
    if len(data) > swollen_max:
        line = f"the message becomes more than {_SWELLS_MAX} times larger when it is decompressed; send it as it is"
        raise CallError("RESOURCE_EXHAUSTED", line)
    if not unpack.eof or unpack.unused_data:
        raise CallError("INTERNAL", "the message can not be decompressed")
    return data


def too_large(bytes_max: int) -> CallError:
    """The error for a message beyond the largest."""
    return CallError("RESOURCE_EXHAUSTED", f"the message is larger than {bytes_max} bytes, the largest that is taken")


def written(message: bytes) -> bytes:
    """A message with its prefix."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def failed(code: str, line: str) -> bytes:
    """The block that is all of an answer without a message."""
    text = b"".join(
        b"%c" % one if 0x20 <= one < 0x7F and one != 0x25 else b"%%%02X" % one
        for one in line.encode("utf-8", "replace")[:_TEXT_BYTES_MAX]
    )
    return status(200) + _KIND + field(b"grpc-status", b"%d" % CODES[code]) + field(b"grpc-message", text)
