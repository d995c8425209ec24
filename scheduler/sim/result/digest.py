"""Digest of a run's decisions: equal runs have equal digests, on any machine. PURE.

It is made of all actions in their order with their times, by the jobs' own ids. The words of their reasons are left
out, so that a digest stands for decisions and outlives better wording.
"""

import hashlib
from collections.abc import Sequence

from farside.scheduler.domain import Domain
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Preempt, Promote, Start


class Digest:
    """Digest of a `Simulation` of these jobs, as an observer. ``actions``: the number of actions so far."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self.actions = 0
        self._jobs = jobs
        self._hash = hashlib.sha256()

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        """Takes in what one cycle decided."""
        self.actions += len(actions)
        for action in actions:
            told = (domain.name, now_s, self._id(action.row), *self._told(action))
            # repr of a float is exact, and the same on every machine.
            self._hash.update(f"{told!r}\n".encode())

    @property
    def value(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()

    def _id(self, row: int) -> str:
        return self._jobs[row].job.job_id

    def _told(self, action: Action) -> tuple[object, ...]:
        match action:
            case Start():
                return "start", action.host, action.allocation, action.delay_s
            case Preempt():
                return "preempt", self._id(action.winner)
            case Promote():
                return ("promote",)
