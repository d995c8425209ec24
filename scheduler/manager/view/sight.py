"""What a caller sees of jobs: operators all of them, users their own, and of others' jobs no number. PURE.

How it works
  The manager's texts name jobs as ``job 7`` and ``job 7, 8_0``. That is how `Sight.words` finds them again, in reasons
  that the log has and in what the scheduler process says, and puts ``another user's job`` there. So a new text names
  jobs in this way; numbers that stand alone, as in a node's shares, are left out where the view is made.

  A job's user never changes. So what one user sees of a job or a node changes with that job or node alone, and can be
  kept as long as they are the same object: a job that is forgotten meanwhile changes nothing in it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any, TypeVar

from msgspec import Struct, structs

from farside.agent.gpu_share import Share
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState

EventT = TypeVar("EventT", bound=Struct)
_NUMBER = r"\d+(?:_\d+)?"
_NAMED = re.compile(rf"\b[Jj]obs? ({_NUMBER}(?:, {_NUMBER})*)\b")
_NUMBERS = re.compile(rf"\b{_NUMBER}\b")
# What an agent of the version before says where a GPU is taken, also in logs of then: by which task, without a word.
_TAKEN = re.compile(rf"\bin use by ({_NUMBER})\.\d+\b")
# Fields of entries about one job that have the number of another; empty: of none.
OTHERS_NUMBERS = frozenset({"winner", "other"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one caller sees. ``user``: None: of a caller that sees all jobs."""

    jobs: Mapping[str, LiveJob]
    user: str | None

    def sees(self, job_id: str) -> bool:
        """Whether the caller may know this number: an operator any, a user those of own jobs."""
        return self.user is None or self.has(job_id)

    def has(self, job_id: str) -> bool:
        """Whether there is such a job, and the caller sees it."""
        job = self.jobs.get(job_id)
        return job is not None and self.user in (None, job.user)

    def array(self, state: LiveState, number: str) -> tuple[LiveJob, ...]:
        """The tasks of an array that the caller sees; as quick for another's as for one that is not there."""
        return state.array(number) if self.has(f"{number}_0") else ()

    def words(self, text: str) -> str:
        """A text of the manager, without the numbers of jobs that the caller does not see."""
        if self.user is None:
            return text
        if "in use by" in text:
            text = _TAKEN.sub(r"in use by job \1", text)
        return _NAMED.sub(self._hidden, text) if "job" in text.lower() else text

    def _hidden(self, found: re.Match[str]) -> str:
        names = found[1].split(", ")
        own, others = list(filter(self.sees, names)), list(filterfalse(self.sees, names))
        if not others:
            return found[0]
        # Whose a forgotten one was, nobody knows any more.
        whose = "another user's job" if all(name in self.jobs for name in others) else "another job"
        words = whose if len(others) == 1 else f"{len(others)} jobs of others"
        return f"job {', '.join(own)} and {words}" if own else words

    def may_read(self, text: str) -> bool:
        """Whether each number in a text is that of a job that the caller sees; an operator may read all."""
        return self.user is None or all(map(self.sees, _NUMBERS.findall(text)))

    def spec(self, spec: JobSpec) -> JobSpec:
        """What a job asked for, without others' jobs that it waits for: a version before let it name these."""
        if self.user is None or all(map(self._may_name, spec.after)):
            return spec
        return structs.replace(spec, after=tuple(filter(self._may_name, spec.after)))

    def _may_name(self, job_id: str) -> bool:
        return job_id not in self.jobs or self.sees(job_id)

    def event(self, event: EventT) -> EventT:
        """An entry about a job that the caller sees, with null in the place of another's number."""
        if self.user is None:
            return event
        changes: dict[str, Any] = {}
        for name in event.__struct_fields__:
            value = getattr(event, name)
            if name in OTHERS_NUMBERS and value and not self.sees(value):
                changes[name] = None  # as JSON alone: the log has a text there
            elif isinstance(value, str) and (words := self.words(value)) != value:
                changes[name] = words
            elif isinstance(value, JobSpec) and (spec := self.spec(value)) is not value:
                changes[name] = spec
        return structs.replace(event, **changes) if changes else event


SEES_ALL = Sight(jobs={}, user=None)
"""An operator's sight, where nobody asks whether there is such a job."""


def users_of(shares: Iterable[Share], jobs: Mapping[str, LiveJob]) -> frozenset[str]:
    """The users whose jobs hold these shares of a node's GPUs."""
    found = (jobs.get(share.holder[0]) for share in shares)
    return frozenset(job.user for job in found if job is not None)
