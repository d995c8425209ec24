"""Listings of jobs and of nodes, kept as JSON. PURE.

How it works
  A listing is one person's: the jobs of one user, or everybody's; those that are not over, or all. It is made when
  somebody looks at it first, follows the jobs from then on (job_table.py), and is dropped when nobody has looked at it
  for `IDLE_S`. Making it and encoding what changed is cut into steps: who answers calls `renew` until it says no, lets
  others have their turn in between, and what changes meanwhile is simply renewed as well. So an answer shows all jobs
  as they were at one entry of the log.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice

from farside.scheduler.manager.model.job_table import JobTable
from farside.scheduler.manager.model.record import LiveJob, LiveNode
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.json_blocks import Blocks
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory
from farside.scheduler.manager.view.partition import NOBODYS, Whose
from farside.scheduler.manager.view.view import show_job, show_node

IDLE_S = 600.0
# Jobs that are looked at in one step when a listing is made.
STEP = 1000
# In a block: some 60 KiB, which a socket takes at once, and which are joined again in some microseconds.
JOBS, NODES = 256, 64

_Key = tuple[str | None, bool]
_SeenNode = tuple[LiveNode, str, Whose, NodeMemory]
NOTHING_SAID: Mapping[str, NodeMemory] = {}


class JobListing:
    """The jobs that one person sees; ``user``: None, everybody's; ``everything``: also those that are over."""

    def __init__(self, state: LiveState, user: str | None, *, everything: bool, number: int) -> None:
        self._jobs, self._user, self._everything, self._number = state.jobs, user, everything, number
        self._rows = Blocks(show_job, JOBS)
        self._users: Counter[str] = Counter()
        self._unread: Iterator[str] = iter(tuple(state.jobs if everything else state.unfinished))
        self._is_read = False

    @property
    def mark(self) -> str:
        """Names what it shows now: another one is another answer, in this process."""
        return f"{self._number}-{self._rows.version}"

    def hear(self, job: LiveJob, is_known: bool) -> None:
        """A job of this user is as it is from now on."""
        if is_known and (self._everything or not job.is_over):
            self._users[job.user] += self._rows.put(job.sequence, job)
        else:
            self._users[job.user] -= self._rows.drop(job.sequence)

    def renew(self) -> bool:
        """Takes one step; False: it shows all as it is, until something changes."""
        if self._is_read:
            return self._rows.renew()
        for job_id in (step := tuple(islice(self._unread, STEP))):
            job = self._jobs.get(job_id)
            if job is not None and self._user in (None, job.user):
                self.hear(job, True)
        self._is_read = len(step) < STEP
        return True

    def has_others_than(self, user: str) -> bool:
        """Whether it shows jobs that are not this user's."""
        return len(self._rows) > self._users[user]

    def pieces(self, last: int) -> tuple[bytes, ...]:
        """The answer, with the ``last`` of its jobs; the listing must be renewed."""
        return self._rows.pieces("jobs", last)


class JobListings:
    """All listings of jobs that somebody has looked at lately."""

    def __init__(self) -> None:
        self._jobs: JobTable | None = None
        self._kept: dict[_Key, JobListing] = {}
        self._looked_s: dict[_Key, float] = {}
        self._swept_s = 0.0
        self._numbers = count()

    def of(self, state: LiveState, user: str | None, *, everything: bool, now_s: float) -> JobListing:
        """One of them; ``now_s``: any clock, always the same."""
        if self._jobs is not state.jobs:
            self._jobs = state.jobs
            self._jobs.follow(self._hear)
            self._kept.clear()
        key = user, everything
        self._looked_s[key] = now_s
        if now_s - self._swept_s >= IDLE_S:
            self._sweep(now_s)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = JobListing(state, user, everything=everything, number=next(self._numbers))
        return found

    def _sweep(self, now_s: float) -> None:
        self._swept_s = now_s
        self._looked_s = {key: at_s for key, at_s in self._looked_s.items() if now_s - at_s < IDLE_S}
        self._kept = {key: one for key, one in self._kept.items() if key in self._looked_s}

    def _hear(self, job: LiveJob, is_known: bool) -> None:
        for key in ((None, False), (None, True), (job.user, False), (job.user, True)):
            listing = self._kept.get(key)
            if listing is not None:
                listing.hear(job, is_known)

    def __len__(self) -> int:
        """Number of records that are kept."""
        return len(self._kept)


class NodeListing:
    """All nodes by name; everybody sees the same."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._seen: list[_SeenNode | None] = []
        self._rows: Blocks[_SeenNode] = Blocks(lambda seen: show_node(*seen), NODES)

    @property
    def mark(self) -> str:
        """Names what it shows now."""
        return f"n-{self._rows.version}"

    def look(
        self,
        nodes: Mapping[str, LiveNode],
        reserved: Mapping[str, str],
        whose: Callable[[LiveNode], Whose] = lambda node: NOBODYS,
        memory: Mapping[str, NodeMemory] = NOTHING_SAID,
    ) -> None:
        """Takes in the nodes as they are, why nothing starts on some, whose they are, and what they lend and borrow."""
        names = sorted(nodes)
        if names != self._names:
            self._names, self._seen = names, [None] * len(names)
            self._rows.clear()
        for at, name in enumerate(names):
            node, why, seen, lent = nodes[name], reserved.get(name, ""), self._seen[at], memory.get(name, NO_MEMORY)
            if seen is None or seen[0] is not node or seen[1] != why or seen[3] != lent:
                now = self._seen[at] = node, why, whose(node), lent
                self._rows.put(at, now)

    def renew(self) -> bool:
        """Takes one step; False: it shows what was taken in last."""
        return self._rows.renew()

    def pieces(self) -> tuple[bytes, ...]:
        """The answer, once it is renewed."""
        return self._rows.pieces("nodes", len(self._rows))
