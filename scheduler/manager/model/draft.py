"""An entry that is not in the log yet, and the text of its cause. PURE.

The cause of what people and agents do names them. The cause of a decision is the newest entry that it rests on, or the
timer that made the scheduler look: ``entry 812``, ``timer time_limit``. Older versions wrote ``cycle`` for all.
"""

from enum import StrEnum

from msgspec import Struct

from farside.scheduler.manager.model.event import Event


class Timer(StrEnum):
    """Cause of a decision that is not an entry: time has passed."""

    TIME_LIMIT = "time_limit"  # a job has held its GPUs for as long as it may
    RESERVE = "reserve_after_s"  # a job has waited so long that GPUs are held for it
    MIN_RUN = "min_run_s"  # a job may be preempted from now on
    THRESHOLD = "threshold"  # a job came to what its policy told: a queue's limit, the end of a slice or of patience
    MAINTENANCE = "maintenance"  # reserved nodes are free again
    FAIR_SHARE = "fair_share"  # accounts are compared


def by_entry(seq: int) -> str:
    """The cause of what rests on an entry."""
    return f"entry {seq}"


def by_timer(timer: Timer) -> str:
    """The cause of what rests on a timer."""
    return f"timer {timer}"


class Draft(Struct, frozen=True, kw_only=True):
    """An entry that has no place yet."""

    event: Event
    cause: str
