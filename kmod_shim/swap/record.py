"""Records of `farside swap attach` for detach and status: one small file a device, in /run/farside.

The folder is in /run because a record is about the running kernel, and /run is empty after each boot. What the kernel
knows (whether the device is connected, whether swap is on) is asked of the kernel each time; the record has what only
we know. A device without a record, and a record without a device, are both noticed and handled.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farside.errors import ConfigError
from farside.kmod_shim.nbd.sysfs import device_path, read_block
from farside.whole_file import write_whole

FOLDER = Path("run/farside")
RECORD_BYTES_MAX = 65536  # of some hundreds that one has
_PREFIX, _SUFFIX = "attached-nbd", ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """One attached device. ``*_before`` are settings of the machine to put back with the last one; None: untouched."""

    index: int
    export: str
    endpoint: str
    admin_socket: str
    connections: int
    size_bytes: int
    server_flags: int
    backend: str
    is_swap: bool
    priority: int
    by_nbd_client: bool = False
    page_cluster_before: int | None = None
    min_free_kbytes_before: int | None = None
    watermark_boost_before: int | None = None

    @property
    def device(self) -> str:
        """The device file."""
        return device_path(self.index)


def save_record(root: Path, attached: Attached) -> None:
    """Write the record, whole or not at all. Raises ConfigError."""
    path = _path(root, attached.index)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole, because others may read it now. Readable for all, less the umask: `farside swap status` needs no root.
        write_whole(path, msgspec.json.encode(attached) + b"\n", mode=0o666)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="/run/farside must be writable") from error


def forget_record(root: Path, index: int) -> None:
    """Remove the record; do nothing where there is none, or where this user may not: root's next command does then."""
    with suppress(PermissionError):
        _path(root, index).unlink(missing_ok=True)


def read_records(root: Path) -> tuple[Attached, ...]:
    """All records by index; other files are skipped, and records of users other than root and this one. [M10]"""
    return tuple(sorted(_records(root), key=lambda attached: attached.index))


def live_records(root: Path) -> tuple[Attached, ...]:
    """The records whose device the kernel still has connected; those of others are forgotten."""
    live = []
    for record in read_records(root):
        block = read_block(root, record.index)
        if block is None or block.pid is None:
            # The kernel has no such connection: the record is from before a disconnect by other means.
            forget_record(root, record.index)
        else:
            live.append(record)
    return tuple(live)


def _records(root: Path) -> Iterator[Attached]:
    for path in (root / FOLDER).glob(f"{_PREFIX}*{_SUFFIX}"):
        # A file that another version wrote, or that vanishes now, is skipped: its device can be detached without it.
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            yield msgspec.json.decode(_own_bytes(path), type=Attached)


def _own_bytes(path: Path) -> bytes:
    """Content of a record that root or this user wrote: the services' users may write in the folder too."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()) or not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EACCES, "another user's", str(path))
        return file.read(RECORD_BYTES_MAX)


def _path(root: Path, index: int) -> Path:
    return root / FOLDER / f"{_PREFIX}{index}{_SUFFIX}"
