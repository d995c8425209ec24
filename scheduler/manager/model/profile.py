"""A job's communication profile, from the figures of all its processes. PURE. [tiresias §3.3.3.2]

S_J is the share of the largest tensor in the model, as in Table 3.3. Each worker sends all its gradients in an
iteration, so what one sends is the model, and its largest message the largest tensor; the middle of all workers is
taken. Where only parameter servers tell, each sends its portion to every worker: the model is all portions together
("each parameter server periodically sends out its portion of the updated model to each worker").
"""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from farside.agent.messages import IterationTimes
from farside.scheduler.manager.model.event import TaskProfiled


class Part(Struct, frozen=True, kw_only=True):
    """The figures reported by one process of a job. ``is_server``: it has no GPU."""

    told: TaskProfiled
    is_server: bool


class JobProfile(Struct, frozen=True, kw_only=True):
    """A job's model as one of its starts has shown it.

    Attributes:
        start: Which one.
        parts: By rank, those that have told so far.
        iterations: The fewest that one of them has seen.
        iteration_s: Time of one.
        model_bytes: What one worker sends in it.
        skew: S_J, over 0 and at most 1; 0 where ``problem`` says why nobody can tell.
        problem: Empty: it tells.
    """

    start: int
    parts: tuple[Part, ...]
    iterations: int = 0
    iteration_s: float = 0.0
    model_bytes: int = 0
    skew: float = 0.0
    problem: str = ""


def is_known(profile: JobProfile | None, told: TaskProfiled) -> bool:
    """Whether these figures were reported before."""
    return profile is not None and any(part.told == told for part in profile.parts)


def joined(profile: JobProfile | None, told: TaskProfiled, *, is_server: bool) -> JobProfile | None:
    """The profile with the figures of one more process; this one if they change nothing.

    A later start replaces an earlier one, unless it has nothing to tell where the earlier had.
    """
    part = Part(told=told, is_server=is_server)
    if profile is None:
        return _profile((part,))
    if told.start < profile.start or is_known(profile, told):
        return profile
    if told.start > profile.start:
        return profile if told.problem and not profile.problem else _profile((part,))
    others = (other for other in profile.parts if other.told.rank != told.rank)
    return _profile((*others, part))


def joined_times(told: Iterable[IterationTimes | None]) -> IterationTimes | None:
    """Iterations of a start from those that its processes reported: the fewest, and the median of their times.

    All of them go at one pace, as each waits for the others; None: none of them told of any that is possible.
    """
    known = [one for one in told if one is not None and one.is_possible]
    if not known:
        return None
    return IterationTimes(count=min(one.count for one in known), median_s=median(one.median_s for one in known))


def _profile(parts: Iterable[Part]) -> JobProfile:
    ordered = tuple(sorted(parts, key=lambda part: part.told.rank))
    start = ordered[0].told.start
    tells = [part for part in ordered if _tells(part.told)]
    if not tells:
        problem = ordered[0].told.problem or "what it told makes no sense"
        return JobProfile(start=start, parts=ordered, problem=problem)
    workers = [part.told for part in tells if not part.is_server]
    model_bytes, skew = _of_workers(workers) if workers else _of_servers([part.told for part in tells])
    return JobProfile(
        start=start,
        parts=ordered,
        iterations=min(part.told.iterations for part in tells),
        iteration_s=median(part.told.iteration_s for part in tells),
        model_bytes=model_bytes,
        skew=skew,
    )


def _tells(told: TaskProfiled) -> bool:
    return not told.problem and 0 < told.largest_bytes <= told.sent_bytes


def _of_workers(workers: Sequence[TaskProfiled]) -> tuple[int, float]:
    return int(median(one.sent_bytes for one in workers)), median(one.largest_bytes / one.sent_bytes for one in workers)


def _of_servers(servers: Sequence[TaskProfiled]) -> tuple[int, float]:
    model_bytes = sum(max(one.portion_bytes, one.largest_bytes) for one in servers)
    return model_bytes, max(one.largest_bytes for one in servers) / model_bytes
