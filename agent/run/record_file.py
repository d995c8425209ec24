"""Record files: small files that are read whole or not at all, even after a crash of writer or machine.

Written beside and renamed over, with the CRC of their content in front; a file that was damaged is told from one that
is not there.
"""

import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from farside.errors import FarsideError
from farside.whole_file import write_whole

RecordT = TypeVar("RecordT")


class Damaged(FarsideError):
    """A record that differs from what was written."""


def write_record(path: Path, record: object) -> None:
    """Replaces the record and returns when it is on the disk.

    Raises:
        OSError: it cannot be written; the old one stands.
    """
    body = msgspec.json.encode(record)
    # The rename guards against a crash while it is written; the checksum finds what is damaged later.
    write_whole(path, b"%08x %s\n" % (zlib.crc32(body), body))


def read_record(path: Path, kind: type[RecordT]) -> RecordT | None:
    """The record, or None where there is none.

    Raises:
        Damaged: it is not as it was written.
        OSError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    code, _, body = data.removesuffix(b"\n").partition(b" ")
    try:
        if code != b"%08x" % zlib.crc32(body):
            raise ValueError("its checksum is wrong")
        return msgspec.json.decode(body, type=kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Damaged(f"{path}: is damaged ({error})", hint="restore a backup; without one, remove the file") from error
