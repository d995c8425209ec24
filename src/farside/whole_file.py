"""Files that are replaced as a whole, so that a crash leaves the old or the new content; locks and stamps of files."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replaces a file and returns when it is on the disk; whoever reads meanwhile has the old one or the new.

    Others may be able to write in the folder: nothing that they put there is written through, followed or kept. A link
    in the place of the file itself is replaced.

    Raises:
        OSError: it cannot be written; the old one stands.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fresh = f".{path.name}.{os.getpid()}"
    try:
        with suppress(FileNotFoundError):  # of a process of this number that was killed, or planted by somebody else
            os.unlink(fresh, dir_fd=folder)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.replace(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)
            raise
        os.fsync(folder)  # so that the rename outlives a power cut
    finally:
        os.close(folder)


def lock_file(path: Path) -> int | None:
    """A descriptor that holds the lock of this file, made if need be; None while another one does.

    Raises:
        OSError: it can't be opened, or is a link.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def sync_folder(folder: Path) -> None:
    """Puts the folder's entries on the disk, so that a rename outlives a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Value that differs once a file was changed or replaced; None where it can't be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
