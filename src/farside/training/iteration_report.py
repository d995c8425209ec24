"""Reports how long iterations take to the agent of this process's node, by FARSIDE_READY, as any program may.

Launchers such as torchrun close what their workers would inherit, and keep it open themselves. So the pipe is looked
for by its inode: here, and then in the processes that this one descends from. A descriptor of that number which is
another file's is never written to.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping

READY, READY_PIPE = "FARSIDE_READY", "FARSIDE_READY_PIPE"
"""Environment variables: the pipe as a path, /dev/fd/NUMBER, and its device and inode."""
ANCESTORS_MAX = 16


class IterationReport:
    """Iterations of one process. Nothing waits for it, and nothing fails by it.

    What nobody takes in time is not told. Outside of a manager's job nothing is told at all.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._fd = _opened(environment.get(READY, ""), environment.get(READY_PIPE, ""))
        self._last_s: float | None = None

    def over(self, now_s: float) -> None:
        """An iteration is over now, by a clock that never goes back; from the second on its time is reported."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is not None and now_s > last_s and self._fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fd, b"iteration %.9g\n" % (now_s - last_s))

    def close(self) -> None:
        """Nothing is reported from now on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _opened(path: str, pipe: str) -> int:
    """A descriptor of the pipe, which never waits; -1: there is none."""
    folder, _, number = path.rpartition("/")
    if folder != "/dev/fd" or not number.isdecimal() or not pipe:
        return -1
    for pid in _lineage():
        there = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):
            # Looked at before it is opened, as to open another file may do something; and after, as it may be another.
            if not _is_pipe(os.stat(there), pipe):
                continue
            fd = os.open(there, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if _is_pipe(os.fstat(fd), pipe):
                return fd
            os.close(fd)
    return -1


def _is_pipe(found: os.stat_result, pipe: str) -> bool:
    return stat.S_ISFIFO(found.st_mode) and f"{found.st_dev}:{found.st_ino}" == pipe


def _lineage() -> Iterator[int]:
    """Process ids of this process, its parent, and so on."""
    pid = os.getpid()
    for _ in range(ANCESTORS_MAX):
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # Its name, in parentheses, may have any characters.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if pid <= 1:
            return
