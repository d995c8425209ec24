"""Header blocks of requests: decompressed by the package hpack, within bounds, and checked. PURE.

A client sends the same few blocks again and again: those that leave the table of the decompression as it is are read
once. A change of the table's size may change what any block does, so none is kept across one.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hpack import Decoder, HPACKError, OversizedHeaderListError

from farside.serve.http2.frame import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Fault

# Of a head: clients send some ten.
FIELDS_MAX = 100
# What SETTINGS_MAX_HEADER_LIST_SIZE counts for a field beside its name and value.
FIELD_BYTES = 32
# A change of the table's size, and back.
_SIZE_CHANGES_MAX = 2
_KEPT_MAX, _KEPT_BYTES_MAX = 64, 1024
# RFC 9113 8.2.2: they belong to a connection of HTTP/1.
_CONNECTION_FIELDS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
# All that is seen but upper-case letters, and no colon at the begin.
_NAME = re.compile(rb"[!-9;-@\[-~][!-@\[-~]*")
_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What begins a request; fields of one name are joined by commas."""

    method: bytes
    path: bytes
    fields: dict[bytes, bytes]


class HeadReader:
    """The decompression of one connection's blocks.

    Args:
        bytes_max: Of a list of fields, 32 for each beside name and value, as SETTINGS_MAX_HEADER_LIST_SIZE counts.
        read: Makes of a head what events have.

    Attributes:
        decoded: Bytes of fields that were decompressed, counted as for ``bytes_max``; the caller sets it to 0.
    """

    def __init__(self, bytes_max: int, read: Callable[[Head], Any]) -> None:
        self.decoded = 0
        self._decoder = Decoder(max_header_list_size=bytes_max)
        self._read = read
        self._kept: dict[bytes, tuple[Any, int]] = {}
        self._first: Any = None  # kept, not its id: another entry may get that
        self._count = 0

    def request(self, block: bytes) -> tuple[Any, int]:
        """What ``read`` makes of the head, None where it is malformed; and its content-length, or -1.

        Raises:
            Fault: The block can't be decompressed, so none that follows can.
        """
        found = self._kept.get(block)
        if found is not None:
            return found
        head = read_head(self._fields(block))
        length = b"" if head is None else head.fields.get(b"content-length", b"")
        if length and not (length.isdigit() and len(length) < 16):
            head = None
        made = (None if head is None else self._read(head), int(length) if head is not None and length else -1)
        entries = self._decoder.header_table.dynamic_entries
        # An entry that comes is a new first one, an entry that goes makes fewer: else the table is what it was.
        first, count = entries[0] if entries else None, len(entries)
        is_resized = bool(block) and block[0] & 0xE0 == 0x20
        if first is not self._first or count != self._count or is_resized or len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        elif len(block) <= _KEPT_BYTES_MAX:
            self._kept[block] = made
        self._first, self._count = first, count
        return made

    def trailers(self, block: bytes) -> bool:
        """Whether the fields that end a request are sound.

        Raises:
            Fault: The block can't be decompressed.
        """
        fields = self._fields(block)
        self._kept.clear()
        return all(_is_sound(name) for name, _ in fields)

    def _fields(self, block: bytes) -> list[tuple[bytes, bytes]]:
        at = changes = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:
            changes += 1
            if changes > _SIZE_CHANGES_MAX:
                raise Fault(COMPRESSION_ERROR, "a header block changes the table's size more than twice")
            if block[at] & 0x1F == 0x1F:
                while at + 1 < len(block) and block[at + 1] & 0x80:
                    at += 1
                at += 1
            at += 1
        try:
            decoded: Iterable[Any] = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise Fault(ENHANCE_YOUR_CALM, f"headers are larger than {self._decoder.max_header_list_size}") from error
        except (HPACKError, IndexError, ValueError) as error:
            raise Fault(COMPRESSION_ERROR, "a header block can not be decompressed") from error
        fields = [(bytes(name), bytes(value)) for name, value in decoded]
        if len(fields) > FIELDS_MAX:
            raise Fault(ENHANCE_YOUR_CALM, f"headers have {len(fields)} fields; at most {FIELDS_MAX} are taken")
        self.decoded += sum(len(name) + len(value) + FIELD_BYTES for name, value in fields)
        return fields


def read_head(fields: Iterable[tuple[bytes, bytes]]) -> Head | None:
    """The head in a list of fields; None where it is malformed (RFC 9113 8.2, 8.3)."""
    pseudo: dict[bytes, bytes] = {}
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] == b":":
            if found or name in pseudo or name not in _PSEUDO:
                return None
            pseudo[name] = value
        elif not _is_sound(name) or (name == b"te" and value != b"trailers") or _has_breaks(value):
            return None
        else:
            found[name] = found[name] + b"," + value if name in found else value
    path = pseudo.get(b":path", b"")
    if b":method" not in pseudo or b":scheme" not in pseudo or not path:
        return None
    return Head(method=pseudo[b":method"], path=path, fields=found)


def _is_sound(name: bytes) -> bool:
    return _NAME.fullmatch(name) is not None and name not in _CONNECTION_FIELDS


def _has_breaks(value: bytes) -> bool:
    return b"\r" in value or b"\n" in value or b"\x00" in value
