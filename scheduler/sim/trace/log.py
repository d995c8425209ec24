"""Job log as columns: all jobs and their final status, also jobs without GPUs. PURE."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.table import Floats
from farside.units import CALENDAR_FROM_S

Codes = NDArray[np.int32]


class Status(IntEnum):
    """How a job ended. What a cluster's errors ended counts as failed, as in [helios §2.3.1]."""

    UNKNOWN = 0
    COMPLETED = 1
    CANCELED = 2
    FAILED = 3


_STATUSES = {
    **dict.fromkeys(("completed", "pass", "succeeded", "success"), Status.COMPLETED),
    **dict.fromkeys(("cancelled", "canceled", "killed", "revoked"), Status.CANCELED),
    **dict.fromkeys(
        ("failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted"), Status.FAILED
    ),
}


def status_of(text: str) -> Status:
    """The status that a scheduler's word means; ``CANCELLED by 1000`` and ``CANCELLED+`` are Slurm's."""
    word = text.split(" ", 1)[0] if " " in text else text
    return _STATUSES.get(word.rstrip("+").lower(), Status.UNKNOWN)


class Logged(NamedTuple):
    """One row of a log; a tuple, since there are millions. NaN and empty where the log does not say."""

    job_id: str
    submit_s: float
    duration_s: float
    gpus: int
    line: int
    start_s: float = math.nan
    cpus: float = math.nan
    status: Status = Status.UNKNOWN
    status_word: str = ""
    user: str = ""
    vc: str = ""


def logged_of(entry: TraceJob, **known: Any) -> Logged:
    """The row of a job, and what else the log says of it."""
    job = entry.job
    return Logged(job.job_id, job.submit_s, entry.duration_s, job.gpus, entry.line, user=job.user, vc=job.vc, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """A column a figure, a place a job, by submit time.

    Attributes:
        path: Where it was read from; ``fmt``: its format.
        submit_s: On the log's time line.
        start_s: NaN where the log does not say.
        duration_s: From the start to the end.
        gpus: 0 of jobs without.
        cpus: NaN where the log does not say.
        status: As `Status` numbers them.
        user: Place in ``users``; -1 where the log names none. ``vc``: place in ``vcs``.
        skipped: Bad rows, and ``problems``: the first lines about them.
        notes: What else was done to rows, and to how many.
    """

    path: str
    fmt: str
    submit_s: Floats
    start_s: Floats
    duration_s: Floats
    gpus: Codes
    cpus: Floats
    status: Codes
    user: Codes
    vc: Codes
    users: tuple[str, ...]
    vcs: tuple[str, ...]
    skipped: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def has_calendar(self) -> bool:
        """Whether times have an hour of day and a month."""
        return bool(len(self)) and float(self.submit_s[0]) >= CALENDAR_FROM_S

    @property
    def wait_s(self) -> Floats:
        """From submission to start; NaN where that is not known, or negative."""
        with np.errstate(invalid="ignore"):
            wait_s = self.start_s - self.submit_s
            return np.where(wait_s >= 0, wait_s, math.nan)

    def of(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "JobLog":
        """Only these rows."""
        return JobLog(
            path=self.path, fmt=self.fmt, submit_s=self.submit_s[rows], start_s=self.start_s[rows],
            duration_s=self.duration_s[rows], gpus=self.gpus[rows], cpus=self.cpus[rows], status=self.status[rows],
            user=self.user[rows], vc=self.vc[rows], users=self.users, vcs=self.vcs,
        )  # fmt: skip

    def with_starts(self, start_s: Floats) -> "JobLog":
        """This log with other starts."""
        return replace(self, start_s=start_s)


class LogBuilder:
    """Rows in, columns out; about 60 bytes a row."""

    def __init__(self) -> None:
        self._floats = [array("d") for _ in range(4)]  # submit, start, duration, CPUs
        self._numbers = [array("i") for _ in range(4)]  # GPUs, status, user, virtual cluster
        self._users: dict[str, int] = {"": -1}
        self._vcs: dict[str, int] = {"": -1}

    def __len__(self) -> int:
        return len(self._numbers[0])

    def add(self, row: Logged) -> None:
        """One more."""
        submit, start, duration, cpus = self._floats
        submit.append(row.submit_s)
        start.append(row.start_s)
        duration.append(row.duration_s)
        cpus.append(row.cpus)
        gpus, status, user, vc = self._numbers
        gpus.append(row.gpus)
        status.append(row.status)
        # The empty name is -1 and in the dict already, so that the first other one is 0.
        user.append(self._users.setdefault(row.user, len(self._users) - 1))
        vc.append(self._vcs.setdefault(row.vc, len(self._vcs) - 1))

    def build(
        self,
        *,
        path: str,
        fmt: str,
        skipped: int = 0,
        problems: Sequence[str] = (),
        notes: Sequence[tuple[int, str]] = (),
    ) -> JobLog:
        """All rows by submit time; those of one second in the order of the file."""
        submit_s = np.array(self._floats[0])
        order = np.argsort(submit_s, kind="stable")
        start_s, duration_s, cpus = (np.array(column)[order] for column in self._floats[1:])
        gpus, status, user, vc = (np.array(column, dtype=np.int32)[order] for column in self._numbers)
        return JobLog(
            path=path, fmt=fmt, submit_s=submit_s[order], start_s=start_s, duration_s=duration_s, gpus=gpus,
            cpus=cpus, status=status, user=user, vc=vc, users=tuple(self._users)[1:], vcs=tuple(self._vcs)[1:],
            skipped=skipped, problems=tuple(problems), notes=tuple(notes),
        )  # fmt: skip
