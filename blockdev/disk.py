"""Backup file or partition: created, locked, checked, allocated in full, and opened for direct I/O.

Allocated in full, because a filesystem that allocates under memory pressure may wait for the very reclaim that waits
for us (memory-plane, "No malloc, no page-cache I/O"). It is not synced: swap content is worthless after a reboot.
"""

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from farside.errors import ConfigError

_HINTS = {
    errno.EINVAL: "this filesystem has no O_DIRECT, put it on another",
    errno.EBUSY: "it is mounted, swapped to, or another device's; give each device a disk of its own",
}


def open_disk(path: Path, size_bytes: int) -> int:
    """A descriptor of the disk, O_DIRECT, at least ``size_bytes`` long and locked; the caller closes it.

    A file that is missing is made, with mode 0600; holes are filled. The lock belongs to the open file: whoever is
    handed the descriptor has it too, and it ends with the last of them.

    Raises:
        ConfigError: one line on what is wrong with it.
    """
    fd, is_ours = _open(path)
    try:
        _lock(fd)
        _check(fd, size_bytes, may_grow=is_ours)
    except (OSError, ConfigError) as error:
        os.close(fd)
        if is_ours:
            # A file that was there before is never removed.
            path.unlink(missing_ok=True)
        reason = f"{error.strerror}; {size_bytes} bytes are needed" if isinstance(error, OSError) else error
        raise ConfigError(f"disk {path}: {reason}") from error
    return fd


def _open(path: Path) -> tuple[int, bool]:
    """The descriptor, and whether the file was made now."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT
    try:
        if path.is_block_device():
            # The kernel's own claim: it refuses what is mounted, swapped to or part of a volume, too.
            return os.open(path, flags | os.O_EXCL), False
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
        except FileExistsError:
            return os.open(path, flags), False
    except OSError as error:
        raise ConfigError(f"disk {path}: {error.strerror}", hint=_HINTS.get(error.errno or 0, "")) from error


def _lock(fd: int) -> None:
    """Lock the disk against a second device. (flock() is taken: by the engine, for its I/O.)"""
    # struct flock on 64-bit Linux: type, whence, start, length (0: to the end), process (0, as the call demands).
    whole_file = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, whole_file)
    except BlockingIOError as error:
        raise ConfigError(f"is in use by {_holder(fd)}", hint="give each device a disk of its own") from error


def _holder(fd: int) -> str:
    """Process that has the file open, as far as /proc may be read: the kernel does not name the owner of the lock."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # not ours to look at, or ended since it was listed
            if folder.parent.name != str(os.getpid()) and any(
                os.path.samestat(os.fstat(fd), other.stat()) for other in folder.iterdir()
            ):
                return f"process {folder.parent.name}"
    return "another process"


def _check(fd: int, size_bytes: int, *, may_grow: bool) -> None:
    mode = os.fstat(fd).st_mode
    if not stat.S_ISBLK(mode) and not stat.S_ISREG(mode):
        raise ConfigError("is neither a file nor a block device")
    # An existing file of another size may be somebody's data, or another device's disk: it is not grown.
    if not may_grow and (have := os.lseek(fd, 0, os.SEEK_END)) < size_bytes:
        raise ConfigError(
            f"has {have} bytes, {size_bytes} are needed", hint="make it larger, or name one that is not there"
        )
    if stat.S_ISREG(mode):
        # Fills holes of an existing file too; its content stays.
        os.posix_fallocate(fd, 0, size_bytes)
