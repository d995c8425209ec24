"""An archive as the kernel wants its initrd: pure, "newc" format of Documentation/driver-api/early-userspace."""

from collections.abc import Iterable
from dataclasses import dataclass

_DIRECTORY = 0o040755
_PROGRAM = 0o100755


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, or with `body` None a folder. Folders must come before what is in them."""

    name: str
    body: bytes | None = None


def archive(entries: Iterable[Entry]) -> bytes:
    """The whole archive, not compressed; every file is executable and root's."""
    packed = [_record(number, entry) for number, entry in enumerate(entries, start=1)]
    return b"".join([*packed, _record(0, Entry(name="TRAILER!!!", body=b""))])


def _record(number: int, entry: Entry) -> bytes:
    mode, links = (_DIRECTORY, 2) if entry.body is None else (_PROGRAM, 1)
    body = entry.body or b""
    name = entry.name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device's and node's major and minor, name's length, checksum
    fields = (number, mode, 0, 0, links, 0, len(body), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(body)


def _padded(part: bytes) -> bytes:
    return part + b"\0" * (-len(part) % 4)
