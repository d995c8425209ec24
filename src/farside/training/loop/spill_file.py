"""Blocks as bytes: on a disk, or on a block device that is a peer's memory, each with its check sum.

Nothing is deserialised: a block that was read is arrays over the buffer that it was read into. The file on the disk has
no name, so that it is gone with this process however that ends.
"""

import errno
import fcntl
import mmap
import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from farside.errors import ConfigError
from farside.kmod_shim.engine.binding import crc32c
from farside.log import get_log

_log = get_log("training")

ALIGN_BYTES = 4096
"""O_DIRECT reads and writes whole ones of these, which is at least a sector of any disk."""
ARRAY_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One array of a block: where its bytes begin, and how they are read."""

    offset: int
    size_bytes: int
    dtype: Any
    shape: tuple[int, ...]
    is_fortran: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a block's arrays lie in a buffer of ``size_bytes``."""

    parts: tuple[_Part, ...]
    is_tuple: bool
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a block is written, and the check sum of its bytes."""

    offset: int
    layout: Layout
    check: int


def rounded(size_bytes: int, to: int = ALIGN_BYTES) -> int:
    """The next multiple."""
    return -(-size_bytes // to) * to


def arrays_in(data: Any) -> tuple[Any, ...]:
    """The arrays of a block: itself, or the members of a tuple.

    Raises:
        ConfigError: It is something else, which has no bytes to be written.
    """
    arrays = data if isinstance(data, tuple) else (data,)
    if not all(isinstance(one, np.ndarray) and not one.dtype.hasobject for one in arrays):
        raise ConfigError(
            f"an input block is a {type(data).__name__}; blocks that are spilled are arrays or tuples of arrays",
            hint="leave out --spill-dir, or make them arrays",
        )
    return arrays


def layout_of(data: Any) -> Layout:
    """How a block is laid out.

    Raises:
        ConfigError: It is not made of arrays.
    """
    parts, at = list[_Part](), 0
    for one in arrays_in(data):
        is_fortran = bool(one.flags.f_contiguous and not one.flags.c_contiguous)
        parts.append(
            _Part(offset=at, size_bytes=one.nbytes, dtype=one.dtype, shape=one.shape, is_fortran=is_fortran)
        )  # fmt: skip
        at = rounded(at + one.nbytes, ARRAY_ALIGN_BYTES)
    return Layout(parts=tuple(parts), is_tuple=isinstance(data, tuple), size_bytes=max(ALIGN_BYTES, rounded(at)))


class Buffer:
    """Memory on page boundaries, which arrays may lie over."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = mmap.mmap(-1, rounded(size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._root = np.frombuffer(self._memory, np.uint8)
        self._read_only = np.frombuffer(self._memory, np.uint8)
        self._read_only.flags.writeable = False

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return len(self._root)

    @property
    def is_held(self) -> bool:
        """Whether an array that lies over it is still used."""
        # One is this object's, one the argument's of the call.
        return sys.getrefcount(self._read_only) > 2

    def view(self, size_bytes: int) -> memoryview:
        """Its first bytes."""
        return memoryview(self._memory)[:size_bytes]

    def take(self, data: Any, layout: Layout) -> int:
        """Copies a block into it; the check sum of its bytes."""
        self._root[: layout.size_bytes] = 0
        for part, one in zip(layout.parts, arrays_in(data), strict=True):
            self._place(self._root, part)[...] = one
        return self.check(layout)

    def check(self, layout: Layout) -> int:
        """The check sum of the bytes that a block takes."""
        return crc32c(self.view(layout.size_bytes))

    def block(self, layout: Layout) -> Any:
        """The block over this buffer, read-only."""
        arrays = tuple(self._place(self._read_only, part) for part in layout.parts)
        return arrays if layout.is_tuple else arrays[0]

    def _place(self, root: Any, part: _Part) -> Any:
        order: Any = "F" if part.is_fortran else "C"
        return np.ndarray(part.shape, part.dtype, root, part.offset, order=order)


class Store(Protocol):
    """Where blocks are written to and read from. Several threads may read at once.

    Attributes:
        name: For messages.
        is_gone: It has failed, and does not come back.
    """

    name: str
    is_gone: bool

    def room_for(self, size_bytes: int) -> int | None:
        """Where the next bytes are to be written; None: it is full. Raises OSError."""
        ...

    def forget(self) -> None:
        """Nothing that was written is needed any more."""

    def write(self, view: memoryview, offset: int) -> None:
        """Writes all of it. Raises OSError."""

    def read(self, view: memoryview, offset: int) -> None:
        """Fills all of it. Raises OSError."""

    def cpu_s(self) -> float:
        """CPU time that another process has taken for it."""
        ...

    def close(self) -> None:
        """Gives it back."""


class BlockFile:
    """A file or block device that blocks are written to and read from, past the page cache where that can be."""

    def __init__(self, fd: int, name: str, size_bytes: int | None) -> None:
        """Takes the descriptor.

        Args:
            fd: Open for reading and writing.
            name: For messages.
            size_bytes: How much it holds; None: it grows.
        """
        self.fd, self.name, self._size_bytes = fd, name, size_bytes
        self.is_gone = False
        self._end = 0
        self._is_direct = True
        self._use_direct(on=True)

    def room_for(self, size_bytes: int) -> int | None:
        """Where the next bytes are to be written; None: it is full."""
        if self._size_bytes is not None and self._end + size_bytes > self._size_bytes:
            return None
        at, self._end = self._end, self._end + size_bytes
        return at

    def forget(self) -> None:
        """Nothing that was written is needed any more."""
        self._end = 0

    def cpu_s(self) -> float:
        """The kernel reads it, in the time of who asks."""
        return 0.0

    def write(self, view: memoryview, offset: int) -> None:
        """Writes all of it.

        Raises:
            OSError: It can't be written.
        """
        while view:
            written = self._tried(os.pwritev, view, offset)
            view, offset = view[written:], offset + written
        if not self._is_direct:
            os.fdatasync(self.fd)

    def read(self, view: memoryview, offset: int) -> None:
        """Fills all of it.

        Raises:
            OSError: It can't be read.
        """
        start, whole = offset, len(view)
        while view:
            found = self._tried(os.preadv, view, offset)
            if not found:
                raise OSError(errno.EIO, "it ends too soon")
            view, offset = view[found:], offset + found
        if not self._is_direct:
            # The job's limit counts what the kernel keeps of a file.
            os.posix_fadvise(self.fd, start, whole, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self.fd)

    def _tried(self, call: Any, view: memoryview, offset: int) -> int:
        try:
            return int(call(self.fd, [view], offset))
        except OSError as error:
            # A file system may take the flag and then refuse what comes.
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        self._use_direct(on=False)
        return int(call(self.fd, [view], offset))

    def _use_direct(self, *, on: bool) -> None:
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
            self._is_direct = on
        except OSError:
            self._is_direct = False
        if not self._is_direct:
            _log.warning("no O_DIRECT: blocks go through the page cache, and are given up behind", place=self.name)


def file_in(folder: Path) -> BlockFile:
    """A file without a name in a folder.

    Raises:
        ConfigError: None can be made there.
    """
    try:
        fd, path = tempfile.mkstemp(prefix="farside-blocks-", dir=folder)
        os.unlink(path)
    except OSError as error:
        raise ConfigError(f"--spill-dir: no file can be made in '{folder}': {error.strerror}") from error
    return BlockFile(fd, path, None)


def peer_at(path: Path) -> BlockFile:
    """A block device, or a file of fixed size, that this process alone uses.

    Raises:
        ConfigError: It can't be opened, or somebody has it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"--spill-peer: '{path}' can't be opened: {error.strerror}") from error
    try:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISBLK(kind) and not stat.S_ISREG(kind):
            raise ConfigError(f"--spill-peer: '{path}' is neither a block device nor a file")
        size_bytes = os.lseek(fd, 0, os.SEEK_END)
        if size_bytes < ALIGN_BYTES:
            raise ConfigError(f"--spill-peer: '{path}' holds nothing; its size is {size_bytes} bytes")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"--spill-peer: '{path}' is in use by another worker", hint="give each worker a device of its own"
            ) from error
    except BaseException:
        os.close(fd)
        raise
    return BlockFile(fd, os.fspath(path), size_bytes)
