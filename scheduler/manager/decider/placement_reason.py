"""Placement by skew: which jobs are profiled, and the reason for a placement in words. PURE."""

from farside.scheduler.manager.decider.adapter import job_of
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.model_zoo import find_model, skew_of
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.skew import Skew

TOGETHER, ANYWHERE = "it goes to as few nodes as possible", "it goes where it leaves the fewest fragments"


def is_to_be_profiled(job: LiveJob, placement: PlacementPolicy) -> bool:
    """Whether what a job sends is noted when it starts now.

    As it says itself; else until a start has told something, where places go by it and there is more than one.
    """
    if job.spec.profile is not None:
        return job.spec.profile
    is_told = job.profile is not None and not job.profile.problem
    is_named = find_model(job.spec.model) is not None
    return isinstance(placement, Skew) and job.spec.gpus > 1 and not is_told and not is_named


def why_there(job: LiveJob, placement: PlacementPolicy) -> tuple[str, ...]:
    """A line that says why it is consolidated or spread; nothing where that has no meaning."""
    if not isinstance(placement, Skew) or job.spec.gpus == 1 or job.is_over:
        return ()
    seen = job_of(job)
    where, skew = TOGETHER if placement.consolidates(seen) else ANYWHERE, skew_of(seen)
    if not skew:
        return (f"{where}: {_unknown(job)}",)
    side = "over" if skew > placement.packlimit else "not over"
    source = f"as start {job.profile.start} showed" if seen.skew and job.profile is not None else "by its model's name"
    return (f"{where}: its largest tensor is {skew:.1%} of its model, {side} {placement.packlimit:.1%} ({source})",)


def _unknown(job: LiveJob) -> str:
    if job.profile is not None:
        return f"the skew of its model is not known: {job.profile.problem}"
    return "the skew of its model is not measured yet"
