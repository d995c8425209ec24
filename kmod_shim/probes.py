"""Probes of system calls: each is tried to learn whether it is allowed, and leaves nothing behind."""

import ctypes
import errno
import fcntl
import os
from pathlib import Path

_SYS_IO_URING_SETUP = 425  # the same number on every architecture
# sizeof(struct io_uring_params): all zero, which asks for a ring without any options.
_IO_URING_PARAMS_BYTES = 120


def engine_features() -> str:
    """Features of the built engine.

    Raises:
        ImportError: It is not built, or a library is missing.
    """
    # Here, so that a doctor without a built engine can say so instead of failing at its own start.
    from farside.kmod_shim.engine import binding

    return ", ".join(binding.features())


def io_uring_error() -> int:
    """0 when a ring can be made, otherwise the errno of the attempt."""
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(_IO_URING_PARAMS_BYTES)
    fd = libc.syscall(_SYS_IO_URING_SETUP, 1, parameters)
    if fd < 0:
        return ctypes.get_errno() or errno.EIO
    os.close(fd)
    return 0


def memfd_error() -> int:
    """0 when a memory file can be made and sealed, otherwise the errno of the attempt."""
    try:
        fd = os.memfd_create("farside-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        # The engine maps a donor's memory only if it can't shrink: a truncated file would be SIGBUS at the next access.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(fd)
    return 0


def direct_size_bytes(path: Path) -> int:
    """Size of a file or block device that can be opened with O_DIRECT for reading and writing.

    Raises:
        OSError: It can't.
    """
    fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    try:
        return os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)
