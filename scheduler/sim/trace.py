"""A job of a trace: what was submitted, and what only the simulator knows. PURE."""

from dataclasses import dataclass

from farside.scheduler.state import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """``duration_s``: how long it runs at full speed, undisturbed."""

    job: Job
    duration_s: float
