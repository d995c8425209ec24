"""Decisions that a planner has made and the log does not have yet. PURE.

Decisions are on their way from when they are made until they are read again. And a job that was given another place
while the processes of its last start still go has that place in the plan alone, until it waits again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.state import Allocation


@dataclass(frozen=True, slots=True)
class Deferred:
    """A place that a job will be given when the processes of its last start have gone."""

    allocation: Allocation
    reason: str


class Pending:
    """Decisions by the job that they are about."""

    def __init__(self) -> None:
        self._ahead: dict[str, int] = {}  # how many of them are on their way to the log
        self._deferred: dict[str, Deferred] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ahead or self._deferred)

    def clear(self) -> None:
        """Forgets all."""
        self._ahead.clear()
        self._deferred.clear()

    def send(self, events: Iterable[log.Event]) -> None:
        """These are on their way."""
        for event in events:
            if isinstance(event, log.JobAllocated | log.AllocationReleased | log.JobPromoted | log.JobStopping):
                self._ahead[event.job_id] = self._ahead.get(event.job_id, 0) + 1

    def arrive(self, event: log.Event) -> None:
        """The log has this; it may be one of ours."""
        if not isinstance(event, log.JobAllocated | log.AllocationReleased | log.JobPromoted | log.JobStopping):
            return
        if isinstance(event, log.JobStopping) and event.cause is not log.StopCause.PREEMPTED:
            return
        ahead = self._ahead.get(event.job_id, 0) - 1
        if ahead > 0:
            self._ahead[event.job_id] = ahead
        else:
            self._ahead.pop(event.job_id, None)

    def is_ahead(self, job_id: str) -> bool:
        """Whether the log does not have yet what was decided about a job."""
        return job_id in self._ahead

    def defer(self, job_id: str, allocation: Allocation, reason: str) -> None:
        """A job gets this place once its processes have gone."""
        self._deferred[job_id] = Deferred(allocation, reason)

    def is_deferred(self, job_id: str) -> bool:
        """Whether a job has such a place."""
        return job_id in self._deferred

    def drop_deferred(self, job_id: str) -> bool:
        """A job does not get that place after all; False: it had none."""
        return self._deferred.pop(job_id, None) is not None

    def take_ready(self, state: LiveState) -> Iterator[tuple[str, Deferred]]:
        """The jobs whose processes have gone, with the places that they get now."""
        for job_id, deferred in list(self._deferred.items()):
            if state.jobs[job_id].phase is Phase.WAITING and job_id not in self._ahead:
                del self._deferred[job_id]
                yield job_id, deferred
