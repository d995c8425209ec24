"""Ring file, which a job's processes write to: made before they start, read while they run, then removed.

It lies in memory that all users share, as programs of the task's user open it by its name. It has all its pages from
the beginning: a process that writes to a page that memory has no room for would die of it.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from farside.agent.profile import ring
from farside.errors import Unavailable

FOLDER = Path("/dev/shm")  # noqa: S108 - a name that nobody guesses, made with O_EXCL
LIBRARY = Path(__file__).parent / "libfarside-profile.so"
FILE_VARIABLE = "FARSIDE_PROFILE"


def new_path() -> Path:
    """Path of a new file, with a name that no other has."""
    return FOLDER / f"farside-profile-{secrets.token_hex(16)}"


class RingFile:
    """One task's file, from its making to its end. It is read by its descriptor, whatever becomes of its name."""

    def __init__(self, path: Path, *, uid: int, gid: int) -> None:
        """Make the file for this user.

        Raises:
            Unavailable: There is no library, or no room.
        """
        if not LIBRARY.is_file():
            raise Unavailable("the profiler's library was not built")
        self.path = path
        # O_EXCL and O_NOFOLLOW: every user may write to the folder, and may have put a file or a link there.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise Unavailable(f"{FOLDER}: {error.strerror}") from error
        try:
            # All pages now: a write to a page for which there is no room kills the process that writes, with SIGBUS.
            os.posix_fallocate(self._fd, 0, ring.FILE_BYTES)
            os.pwrite(self._fd, ring.blank_head(), 0)
            if os.geteuid() == 0:
                os.fchown(self._fd, uid, gid)
        except OSError as error:
            self.close()
            raise Unavailable(f"{FOLDER}: {error.strerror}") from error

    def read(self) -> ring.Recorded:
        """What has been recorded so far; the job may have done anything to it.

        Raises:
            Unavailable: It is not what we made any more.
        """
        try:
            return ring.parse(os.pread(self._fd, ring.EVENTS_AT, 0), self._lane)
        except (OSError, ValueError) as error:
            raise Unavailable(f"the profile cannot be read: {error}") from error

    def close(self) -> None:
        """Remove the file. Processes that still have it open write into nothing."""
        os.close(self._fd)
        remove(self.path)

    def _lane(self, number: int) -> bytes:
        return os.pread(self._fd, ring.LANE_BYTES, ring.EVENTS_AT + number * ring.LANE_BYTES)


def remove(path: Path) -> None:
    """Remove the file of a task whose supervisor is gone, if there is one."""
    with suppress(OSError):
        path.unlink()
