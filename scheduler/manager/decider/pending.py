"""Decisions that a planner has made and the log does not have yet. PURE.

Decisions are on their way from when they are made until they are read again. And a job that was given another
allocation while the processes of its last start still go has that in the plan alone, until it waits again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.state import LiveState

_Own = log.JobAllocated | log.AllocationReleased | log.JobPromoted | log.JobStopping


class Pending:
    """Decisions by the job that they are about.

    Attributes:
        deferred: Allocations that jobs will be given when the processes of their last start have gone.
    """

    def __init__(self) -> None:
        self.deferred: dict[str, log.JobAllocated] = {}
        self._ahead: Counter[str] = Counter()  # how many of them are on their way to the log

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ahead or self.deferred)

    def clear(self) -> None:
        """Forget all."""
        self._ahead.clear()
        self.deferred.clear()

    def send(self, events: Iterable[log.Event]) -> None:
        """Note that these are on their way."""
        self._ahead.update(event.job_id for event in events if isinstance(event, _Own))

    def arrive(self, event: log.Event) -> None:
        """Note that the log has an event; it may be one of ours."""
        if not isinstance(event, _Own):
            return
        # Only a preemption is a decision of the cycle; other stops are consequences, which `send` was not told of.
        if isinstance(event, log.JobStopping) and event.cause is not log.StopCause.PREEMPTED:
            return
        # A job may have several on their way, such as a release and a new allocation in one cycle, so they are counted.
        self._ahead[event.job_id] -= 1
        if self._ahead[event.job_id] <= 0:
            del self._ahead[event.job_id]

    def is_ahead(self, job_id: str) -> bool:
        """Whether the log does not have yet what was decided about a job."""
        return job_id in self._ahead

    def take_ready(self, state: LiveState) -> Iterator[log.JobAllocated]:
        """Take the deferred allocations of jobs whose processes have gone."""
        for job_id in list(self.deferred):
            if state.jobs[job_id].phase is Phase.WAITING and job_id not in self._ahead:
                yield self.deferred.pop(job_id)
