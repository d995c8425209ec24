"""Parser of ``sacct --parsable2 --duplicates`` with `FIELDS`: one line for each run interval of a job. PURE.

A job that was requeued has a line for each time it ran, and its last one says how it ended. Names may hold the
separator, so the name stands last. Times must be seconds (SLURM_TIME_FORMAT=%s).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.snapshot import limit_of
from farside.scheduler.slurm.tres import gpus_of

FIELDS = (
    "JobIDRaw", "User", "Partition", "State", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw",
    "AllocTRES", "JobName",
)  # fmt: skip
OVER = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"})


def ended_of(text: str) -> tuple[Ended, ...]:
    """The GPU jobs that are over and have run, in the order of their ends. A line that makes no sense is left out."""
    jobs: dict[str, list[tuple[str, Ended]]] = {}
    for state, interval in _run_intervals(text):
        jobs.setdefault(interval.job_id, []).append((state, interval))
    found = (_whole([interval for _, interval in told]) for told in jobs.values() if told[-1][0] in OVER)
    return tuple(sorted(filter(None, found), key=lambda one: (one.end_s, int(one.job_id))))


def _whole(intervals: list[Ended]) -> Ended | None:
    """One job of all its run intervals; None: it held no GPU in any."""
    ran = [one for one in intervals if one.end_s > one.start_s and one.gpus]
    if not ran:
        return None
    held_s = sum(one.held_s for one in ran)
    first = intervals[0]
    return replace(
        ran[-1], submit_s=first.submit_s, eligible_s=first.eligible_s, start_s=ran[0].start_s, held_s=held_s
    )  # fmt: skip


def _run_intervals(text: str) -> Iterator[tuple[str, Ended]]:
    """Each run interval as a job of its own, with the state that the job was in afterwards."""
    for line in text.split("\n"):
        parts = line.split("|", len(FIELDS) - 1)
        if len(parts) != len(FIELDS) or not parts[0].isdigit():
            continue  # a part of a heterogeneous job, or the rest of a name with a line break
        job_id, user, partition, state, submit, eligible, start, end, elapsed, limit, tres, name = parts
        yield (
            state.partition(" ")[0],  # CANCELLED by 1000
            Ended(
                job_id=job_id,
                user=user,
                name=name,
                partition=partition,
                gpus=gpus_of(tres),
                submit_s=_number(submit),
                eligible_s=float(eligible) if eligible.isdigit() else 0.0,
                start_s=_number(start),
                end_s=_number(end),
                held_s=_number(elapsed),
                limit_s=_limit_s(limit),
                is_requeueable=True,  # sacct does not say; it is Slurm's default
            ),
        )


def _limit_s(minutes: str) -> float:
    limit_s = limit_of(60.0 * _number(minutes))
    return limit_s if limit_s < math.inf else 0.0


def _number(text: str) -> float:
    return float(text) if text.isdigit() else math.nan
