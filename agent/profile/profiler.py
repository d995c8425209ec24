"""Profiler of one task: reads the task's file now and then while the task runs, and at its end."""

from pathlib import Path

from farside.agent import messages as m
from farside.agent.profile.library import Preload
from farside.agent.profile.ring_file import FILE_VARIABLE, LIBRARY, RingFile
from farside.agent.profile.task import problem, task_profile
from farside.errors import Unavailable

FIRST_LOOK_S = 5.0
LONGEST_WAIT_S = 640.0
"""A look takes some tenths of a second; while nothing can be told, each comes twice as late as the one before."""
NEVER_S = float("inf")


class Profiler:
    """Profiler of one task.

    Attributes:
        preload: What goes into the task's processes; None: nothing does.
        due_s: When it wants to look, by the caller's monotonic clock.
    """

    def __init__(self, path: Path, *, uid: int, gid: int, now_s: float) -> None:
        """Make the file. If that fails, the task runs without it, and its profile says why."""
        self._file: RingFile | None = None
        self._wait_s = FIRST_LOOK_S
        self.preload: Preload | None = None
        self.due_s = NEVER_S
        try:
            self._file = RingFile(path, uid=uid, gid=gid)
        except Unavailable as error:
            self._latest = problem(str(error))
            return
        self._latest = problem("it has only just begun")
        self.preload = Preload(library=str(LIBRARY), variables={FILE_VARIABLE: str(path)})
        self.due_s = now_s + self._wait_s

    def look(self, now_s: float) -> m.TaskProfile | None:
        """The profile so far; None: not enough data. After the first profile it looks again at the end only."""
        found = self._read()
        if not found.problem:
            self.due_s = NEVER_S
            return found
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
        self.due_s = now_s + self._wait_s
        return None

    def close(self) -> m.TaskProfile:
        """The last profile; one without a result does not replace an earlier one."""
        found = self._read()
        if self._file is not None:
            self._file.close()
            self._file = None
        self.due_s = NEVER_S
        return found

    def _read(self) -> m.TaskProfile:
        if self._file is None:
            return self._latest
        try:
            found = task_profile(self._file.read())
        except Unavailable as error:
            found = problem(str(error))
        if not found.problem or self._latest.problem:
            self._latest = found
        return self._latest
