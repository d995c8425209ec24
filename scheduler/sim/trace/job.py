"""Job of a trace, and a whole trace: what users submitted, and what only the simulator knows. PURE."""

from dataclasses import dataclass

from farside.scheduler.state import Job
from farside.units import CALENDAR_FROM_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job, and how long it runs.

    Attributes:
        job: As it was submitted.
        duration_s: At full speed, undisturbed.
        line: In its file; 0 where there is none.
        ready_s: From then on it may start, as nothing but GPUs keeps it any more; None: from its submission on.
        since_s: From then on its wait counts; None: from its submission on.
    """

    job: Job
    duration_s: float
    line: int = 0
    ready_s: float | None = None
    since_s: float | None = None

    @property
    def comes_s(self) -> float:
        """When it comes into the queue."""
        return self.job.submit_s if self.ready_s is None else self.ready_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs, and what became of the rows that are none.

    Attributes:
        jobs: By submit time; those of one second in the order of the file. At least one when it was read from a file.
        path: Where it was read from.
        fmt: The format's name, as ``--format`` takes it.
        skipped: Rows that were bad and were skipped, because the operator chose so.
        problems: The first lines about them: file, line, column, reason, what to do.
        notes: What else was done to rows, and to how many: jobs without GPUs are no fault of the file, but are no jobs
            of this simulator.
    """

    jobs: tuple[TraceJob, ...]
    path: str = ""
    fmt: str = ""
    skipped: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[tuple[int, str], ...] = ()

    @property
    def has_calendar(self) -> bool:
        """Whether submit times have an hour of day and a day of week."""
        return bool(self.jobs) and self.jobs[0].job.submit_s >= CALENDAR_FROM_S
