"""Arrivals and exits of jobs, and what is measured after them: reverting a placement that costs too much. PURE.

A placement is judged by what jobs then need for an iteration: after 100 of them [autops §4.3.3.2, §4.5.2.3]. A job that
loses the limit or more has the newest placement near it undone: the new job is placed anew, away from the Aggregator
that it filled most, with a new one. That is repeated at most as often as the job would have had servers, and then the
loss is accepted, and told [autops §4.3.3.3]. The model of cycles decides where to try; what is measured has the last
word.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from farside.scheduler.sharing.aggregation.cycle import EXACT
from farside.scheduler.sharing.aggregation.placement import Aggregator, Placement, Profile, Refused

WATCHED_ITERATIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an event has changed.

    Attributes:
        refused: Why the job has no place; nothing has changed.
        allocated: Numbers of new Aggregators.
        released: Numbers of those that are gone.
        moved: By job, the tasks that have another Aggregator than before, in the order of their numbers.
        reverted: The job whose placement was undone.
        accepted: Jobs whose loss is accepted from now on, with the loss.
    """

    refused: str | None = None
    allocated: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    moved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reverted: str | None = None
    accepted: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Watch:
    """Jobs that a placement may have slowed down, with what was measured of each since."""

    seen: dict[str, tuple[int, float]]
    forbidden: set[int] = field(default_factory=set)
    reverted: int = 0


class Scaling:
    """A placement whose jobs are watched after each change."""

    def __init__(self, placement: Placement, *, watched_iterations: int = WATCHED_ITERATIONS) -> None:
        self.placement = placement
        self.accepted: dict[str, float] = {}
        self._watched_iterations = watched_iterations
        # By the job that was placed.
        self._watches: dict[str, _Watch] = {}

    def arrive(self, profile: Profile, *, new_max: int | None = None, near: int | None = None) -> Change:
        """A job, with the options of `Placement.add`."""
        before = self.placement.record()
        answer = self.placement.add(profile, new_max=new_max, near=near)
        if isinstance(answer, Refused):
            return Change(refused=answer.reason)
        self._watches[profile.job] = _Watch(self._near(profile.job))
        return self._changed(before, own=profile.job)

    def leave(self, job: str) -> Change:
        """A job has ended."""
        before = self.placement.record()
        self.placement.leave(job)
        self.accepted.pop(job, None)
        self._watches.pop(job, None)
        for watch in self._watches.values():
            watch.seen.pop(job, None)
        return self._changed(before, own=job)

    def measured(self, job: str, iterations: int, iteration_s: float) -> Change:
        """A job reports how many iterations it has done since its last report, and their mean time."""
        for placed in list(self._watches):
            watch = self._watches[placed]
            if job not in watch.seen:
                continue
            done, took_s = watch.seen[job]
            done, took_s = done + iterations, took_s + iterations * iteration_s
            watch.seen[job] = (done, took_s)
            if done < self._watched_iterations:
                continue
            lost = 1 - self.placement.profiles[job].iteration_s * done / took_s
            if lost >= self.placement.limits.loss_limit - EXACT:
                return self._revert(placed, job, lost)
            del watch.seen[job]
            if not watch.seen:
                del self._watches[placed]
        return Change()

    def _revert(self, placed: str, slowed: str, lost: float) -> Change:
        """Places a job anew, for the sake of one that it slows down, itself or another one."""
        watch, profile = self._watches[placed], self.placement.profiles[placed]
        before, jobs = self.placement.record(), dict(self.placement.profiles)
        shared = [number for number in self.placement.holders(placed) if number in self.placement.holders(slowed)]
        if watch.reverted < profile.servers and shared:
            watch.forbidden.add(max(shared, key=lambda number: (self.placement.load(number), -number)))
            self.placement.remove(placed)
            if self.placement.add(profile, forbidden=watch.forbidden) is None:
                again = _Watch(self._near(placed), watch.forbidden, watch.reverted + 1)
                self._watches[placed] = again
                return self._changed(before, own=None, reverted=placed)
            self.placement.undo(before, jobs)
        del self._watches[placed]
        self.accepted[slowed] = lost
        return Change(accepted={slowed: lost})

    def _near(self, job: str) -> dict[str, tuple[int, float]]:
        """The job, and all that share an Aggregator with it, with nothing measured yet."""
        held = [self.placement.aggregators[number] for number in self.placement.holders(job)]
        return dict.fromkeys(sorted({name for one in held for name in one.tasks} - self.accepted.keys()), (0, 0.0))

    def _changed(
        self, before: Mapping[int, Aggregator | None], *, own: str | None, reverted: str | None = None
    ) -> Change:
        now = self.placement.aggregators
        moved: dict[str, list[int]] = {}
        for number, was in before.items():
            for job, tasks in (now[number].tasks if number in now else {}).items():
                new = set(tasks) - set(was.tasks.get(job, ()) if was is not None else ())
                if new and job != own:
                    moved.setdefault(job, []).extend(new)
        return Change(
            allocated=tuple(sorted(number for number, was in before.items() if was is None and number in now)),
            released=tuple(sorted(number for number, was in before.items() if was is not None and number not in now)),
            moved={job: tuple(sorted(tasks)) for job, tasks in moved.items()},
            reverted=reverted,
        )
