"""Preemption times measured on this cluster: how long jobs took to stop, and to work again. PURE.

Both follow from the log: a pause is the time from the decision to stop a job until none of its processes is left, a
resume the time from the decision to start it again until all of them run, or until the first says that it makes
progress (FARSIDE_READY), where one does. Kept apart by the number of GPUs in the steps of `SteppedCost`, so that the
simulator can be told the same: ``--set cost=helios`` with `as_settings`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.state import Job

STEPS = ("one_s", "few_s", "many_s")
_STEPPED = SteppedCost()


@dataclass(slots=True)
class Times:
    """Number of measurements, and their total time."""

    count: int = 0
    total_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """NaN before there is one."""
        return self.total_s / self.count if self.count else math.nan

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.total_s += seconds

    def correct(self, before_s: float, after_s: float) -> None:
        """One that was counted already took another time."""
        self.total_s += after_s - before_s


def _steps() -> dict[str, Times]:
    return {step: Times() for step in STEPS}


@dataclass(slots=True)
class PreemptionTimes:
    """All that was measured so far, by step."""

    pauses: dict[str, Times] = field(default_factory=_steps)
    resumes: dict[str, Times] = field(default_factory=_steps)

    def pause_s(self, gpus: int) -> float:
        """Mean pause of the jobs of this step, or of all jobs if there are none; NaN: nothing was measured."""
        return _mean_s(self.pauses, gpus)

    def resume_s(self, gpus: int) -> float:
        """Mean time to resume, chosen as in `pause_s`."""
        return _mean_s(self.resumes, gpus)


def step_of(gpus: int) -> str:
    """The step of a job with this number of GPUs."""
    if gpus <= 1:
        return "one_s"
    return "few_s" if gpus <= _STEPPED.few_gpus else "many_s"


def _mean_s(measured: Mapping[str, Times], gpus: int) -> float:
    own = measured[step_of(gpus)]
    found = [own] if own.count else measured.values()
    return Times(sum(times.count for times in found), sum(times.total_s for times in found)).mean_s


def as_settings(preemption_times: PreemptionTimes) -> Mapping[str, str]:
    """Settings by which a simulation charges the measured times; empty: nothing was measured.

    The simulator charges pause and resume together when a job goes on.
    """
    told: dict[str, str] = {}
    for step, gpus in zip(STEPS, (1, _STEPPED.few_gpus, _STEPPED.few_gpus + 1), strict=True):
        parts = [
            part for part in (preemption_times.pause_s(gpus), preemption_times.resume_s(gpus)) if not math.isnan(part)
        ]
        if parts:
            told[step] = f"{sum(parts):.3f}"
    return {"cost": "helios", **told} if told else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """The cost model of the live cycle: what resuming has cost so far; nothing before the first.

    The pause is no part of it here: who is preempted has really spent it, at the end of the run interval before.
    """

    preemption_times: PreemptionTimes

    @property
    def name(self) -> str:
        """``measured``."""
        return "measured"

    def preemption_s(self, job: Job) -> float:
        """Seconds until a job that starts again makes progress, as far as is known."""
        resume_s = self.preemption_times.resume_s(job.gpus)
        return 0.0 if math.isnan(resume_s) else resume_s
