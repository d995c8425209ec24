"""Parser of ``sacct --parsable2 --duplicates`` with `FIELDS`: one line for each run interval of a job. PURE.

A job that was requeued has a line for each time it ran, and its last one says how it ended. Names may hold the
separator, so the name stands last. Times must be seconds (SLURM_TIME_FORMAT=%s).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.tres import gpus_of

FIELDS = (
    "JobIDRaw", "User", "Partition", "State", "Submit", "Start", "End", "ElapsedRaw", "TimelimitRaw", "AllocTRES",
    "JobName",
)  # fmt: skip
OVER = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunInterval:
    job_id: str
    user: str
    partition: str
    state: str
    submit_s: float
    start_s: float
    end_s: float
    held_s: float
    limit_s: float
    gpus: int
    name: str


def ended_of(text: str) -> tuple[Ended, ...]:
    """The GPU jobs that are over and have run, in the order of their ends. A line that makes no sense is left out."""
    jobs: dict[str, list[_RunInterval]] = {}
    for run_interval in _run_intervals(text):
        jobs.setdefault(run_interval.job_id, []).append(run_interval)
    found = [_ended(stints) for stints in jobs.values() if stints[-1].state in OVER]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: (one.end_s, int(one.job_id))))


def _ended(stints: list[_RunInterval]) -> Ended | None:
    ran = [one for one in stints if one.end_s > one.start_s and one.gpus]
    if not ran:
        return None
    last = ran[-1]
    return Ended(
        job_id=last.job_id,
        user=last.user,
        name=last.name,
        partition=last.partition,
        gpus=last.gpus,
        submit_s=stints[0].submit_s,
        start_s=ran[0].start_s,
        end_s=last.end_s,
        held_s=sum(one.held_s for one in ran),
        limit_s=last.limit_s,
        is_requeueable=True,  # sacct does not tell; it is Slurm's default
    )


def _run_intervals(text: str) -> Iterator[_RunInterval]:
    for line in text.splitlines():
        parts = line.split("|", len(FIELDS) - 1)
        if len(parts) != len(FIELDS) or not parts[0].isdigit():
            continue  # a part of a heterogeneous job, or the rest of a name with a line break
        job_id, user, partition, state, submit, start, end, elapsed, limit, tres, name = parts
        yield _RunInterval(
            job_id=job_id,
            user=user,
            partition=partition,
            state=state.partition(" ")[0],  # CANCELLED by 1000
            submit_s=_number(submit),
            start_s=_number(start),
            end_s=_number(end),
            held_s=_number(elapsed),
            limit_s=60.0 * _number(limit) if limit.isdigit() else 0.0,
            gpus=gpus_of(tres),
            name=name,
        )


def _number(text: str) -> float:
    return float(text) if text.isdigit() else math.nan
