"""The backup file or partition: made, checked, allocated in full, and opened past the page cache.

Allocated in full, because a filesystem that allocates under memory pressure may wait for the very reclaim that waits
for us (memory-plane, "No malloc, no page-cache I/O"). It is not synced: swap content is worthless after a reboot.
"""

import errno
import os
import stat
from pathlib import Path

from farside.errors import ConfigError


def open_disk(path: Path, size_bytes: int) -> int:
    """A descriptor of the disk, O_DIRECT, at least ``size_bytes`` long; the caller closes it.

    A file that is missing is made, with mode 0600; one that is too short, or has holes, is filled up.

    Raises:
        ConfigError: one line on what is wrong with it.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_DIRECT
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        hint = "this filesystem has no O_DIRECT, put it on another" if error.errno == errno.EINVAL else ""
        raise ConfigError(f"disk {path}: {error.strerror}", hint=hint) from error
    try:
        _make_large(fd, size_bytes)
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"disk {path}: {error.strerror}; {size_bytes} bytes are needed") from error
    except ConfigError as error:
        os.close(fd)
        raise ConfigError(f"disk {path}: {error}") from error
    return fd


def _make_large(fd: int, size_bytes: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISBLK(mode):
        if (have := os.lseek(fd, 0, os.SEEK_END)) < size_bytes:
            raise ConfigError(f"has {have} bytes, {size_bytes} are needed")
    elif stat.S_ISREG(mode):
        os.posix_fallocate(fd, 0, size_bytes)
    else:
        raise ConfigError("is neither a file nor a block device")
