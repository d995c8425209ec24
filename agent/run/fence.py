"""Fence: a node's tasks end a while after it lost its manager, before the manager starts their jobs elsewhere. [M4]

How it works: the agent writes down when it sent the last of what the manager has acknowledged. At that moment or later
the manager heard of this node. Each task supervisor reads that, whether or not the agent still runs, and ends its task
``fence_s`` after it, by SIGTERM, and by SIGKILL after half of ``fence_s`` more at most. The manager calls a node with
a fence lost only when it has not heard of it for `protocol.lost_after_s`. Both measure spans: clocks need not agree.
A longer ``fence_s``, or none, counts once the manager was heard: until then it knows of the one before.
"""

import math
import os
import struct
import time
from pathlib import Path

LOOK_EVERY_S = 1.0
_HEARD = struct.Struct("<ddd")  # when, fence_s, and when again: one that is read half written is read again later


def now_s() -> float:
    """CLOCK_BOOTTIME: the time in which the machine is suspended counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HeardRecord:
    """When the manager was last heard, for task supervisors."""

    def __init__(self, path: Path, fence_s: float) -> None:
        """Makes the file, or opens it as it is; with ``fence_s`` of 0 it says that there is no fence.

        Raises:
            OSError: it cannot be written.
        """
        self._setting_s = self._fence_s = fence_s
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        before = _read(os.pread(self._fd, _HEARD.size, 0))
        if before is not None and before[1]:
            self._fence_s = min(before[1], fence_s or before[1])
        # An agent that begins has heard nobody: what the one before wrote stands.
        self._write(now_s() if before is None else min(before[0], now_s()))

    def heard(self, at_s: float) -> None:
        """The manager has answered what was sent then, by `now_s`.

        Raises:
            OSError: it cannot be written.
        """
        self._fence_s = self._setting_s  # which is in the HELLO that came before
        self._write(at_s)

    def _write(self, at_s: float) -> None:
        os.pwrite(self._fd, _HEARD.pack(at_s, self._fence_s, at_s), 0)

    def close(self) -> None:
        """Closes the file, which stays."""
        os.close(self._fd)


class FenceWatch:
    """A task supervisor's view of the record."""

    def __init__(self, path: str) -> None:
        """``path``: of the record; empty: there is no fence."""
        self._path = path
        self._heard_s, self._fence_s = now_s(), 0.0

    def look(self) -> None:
        """Reads the record; one that can't be read counts as it was before."""
        try:
            found = _read(Path(self._path).read_bytes()) if self._path else None
        except OSError:
            found = None
        if found is not None:
            self._heard_s, self._fence_s = found

    @property
    def is_over(self) -> bool:
        """True when the manager was not heard for so long that the task ends."""
        return bool(self._fence_s) and now_s() >= self._heard_s + self._fence_s

    @property
    def grace_s(self) -> float:
        """How long a task that is over may end by itself after SIGTERM; at least 0."""
        return max(0.0, self._heard_s + 1.5 * self._fence_s - now_s())

    @property
    def wait_s(self) -> float:
        """How long may pass until the next look: a later agent may have another setting."""
        left_s = self._heard_s + self._fence_s - now_s() if self._fence_s else LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(left_s, 0.01)) if self._path else math.inf

    @property
    def cause(self) -> str:
        """Why the task ends."""
        return f"its node has not heard of the manager for {self._fence_s:g} s (fence_s)"


def _read(data: bytes) -> tuple[float, float] | None:
    if len(data) != _HEARD.size:
        return None
    at_s, fence_s, again_s = _HEARD.unpack(data)
    return (at_s, fence_s) if at_s == again_s and 0 <= fence_s < math.inf and at_s <= now_s() else None
