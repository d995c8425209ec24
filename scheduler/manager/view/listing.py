"""Listings of jobs and of nodes, kept as JSON. PURE.

How it works
  A listing of jobs is one person's: the jobs of one user, or everybody's; those that are not over, or all. It is made
  when somebody looks at it first, follows the jobs from then on (job_table.py), and is dropped when nobody has looked
  at it for `IDLE_S`. Nodes are listed twice: with the numbers of all jobs for operators, and with none for users; those
  rows that have jobs of one user are made for that user when it looks, and stay until their node changes. So users who
  look cost one listing together, and a row for each node and user with jobs there at most.

  Making it and encoding what changed is cut into steps: who answers calls `renew` until it says no, lets
  others have their turn in between, and what changes meanwhile is simply renewed as well. So an answer shows all jobs
  as they were at one entry of the log.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice

import msgspec

from farside.scheduler.manager.model.job_table import JobTable
from farside.scheduler.manager.model.record import LiveJob, LiveNode
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.json_blocks import Blocks
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory
from farside.scheduler.manager.view.partition import NOBODYS, Whose
from farside.scheduler.manager.view.sight import SEES_ALL, Sight, users_of
from farside.scheduler.manager.view.view import Node, show_job, show_node

IDLE_S = 600.0
# Jobs that are looked at in one step when a listing is made.
STEP = 1000
# In a block: some 60 KiB, which a socket takes at once, and which are joined again in some microseconds.
JOBS, NODES = 256, 64
# Nodes that are shown for one user in one step.
OWN = 16

_Key = tuple[str | None, bool, bool]
_ENCODER = msgspec.json.Encoder()
NOTHING_SAID: Mapping[str, NodeMemory] = {}
NO_JOBS: Mapping[str, LiveJob] = {}
_NOBODY = frozenset[str]()
SEES_NONE = Sight(jobs=NO_JOBS, user="")


class JobListing:
    """The jobs of one user, or of everybody (None), as ``sight`` has them; ``everything``: also those that are over."""

    def __init__(self, state: LiveState, user: str | None, sight: Sight, *, everything: bool, number: int) -> None:
        self._jobs, self._user, self._everything, self._number = state.jobs, user, everything, number
        self._rows: Blocks[LiveJob] = Blocks(lambda job: show_job(job, sight), JOBS)
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

    def of(
        self, state: LiveState, user: str | None, *, everything: bool, now_s: float, is_operator: bool = True
    ) -> JobListing:
        """One of them; ``now_s``: any clock, always the same. ``is_operator``: otherwise it is for the user alone."""
        if self._jobs is not state.jobs:
            self._jobs = state.jobs
            self._jobs.follow(self._hear)
            self._kept.clear()
        key = user, everything, is_operator
        self._looked_s[key] = now_s
        if now_s - self._swept_s >= IDLE_S:
            self._sweep(now_s)
        found = self._kept.get(key)
        if found is None:
            sight = SEES_ALL if is_operator else Sight(jobs=state.jobs, user=user)
            found = self._kept[key] = JobListing(state, user, sight, everything=everything, number=next(self._numbers))
        return found

    def _sweep(self, now_s: float) -> None:
        self._swept_s = now_s
        self._looked_s = {key: at_s for key, at_s in self._looked_s.items() if now_s - at_s < IDLE_S}
        self._kept = {key: one for key, one in self._kept.items() if key in self._looked_s}

    def _hear(self, job: LiveJob, is_known: bool) -> None:
        for everything in (False, True):
            for key in ((None, everything, True), (job.user, everything, True), (job.user, everything, False)):
                listing = self._kept.get(key)
                if listing is not None:
                    listing.hear(job, is_known)

    def __len__(self) -> int:
        """Number of records that are kept."""
        return len(self._kept)


@dataclass(slots=True, eq=False)
class _SeenNode:
    """A node as it was looked at. ``users``: whose jobs hold something there; ``own``: its row as each sees it."""

    node: LiveNode
    reserved: str
    whose: Whose
    memory: NodeMemory
    users: frozenset[str]
    own: dict[str, bytes] = field(default_factory=dict)

    def shown(self, sight: Sight) -> Node:
        return show_node(self.node, self.reserved, self.whose, self.memory, sight)

    def row(self, sight: Sight) -> bytes:
        """Its row as one of ``users`` sees it, made once."""
        user = sight.user or ""
        if user not in self.own:
            self.own[user] = _ENCODER.encode(self.shown(sight))
        return self.own[user]


class NodeListing:
    """All nodes by name, as it was looked at last."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._seen: list[_SeenNode | None] = []
        self._full: Blocks[_SeenNode] = Blocks(lambda seen: seen.shown(SEES_ALL), NODES)
        self._bare: Blocks[_SeenNode] = Blocks(lambda seen: seen.shown(SEES_NONE), NODES)
        self._places: dict[str, set[int]] = {}  # by user who has jobs there

    def look(
        self,
        nodes: Mapping[str, LiveNode],
        reserved: Mapping[str, str],
        whose: Callable[[LiveNode], Whose] = lambda node: NOBODYS,
        memory: Mapping[str, NodeMemory] = NOTHING_SAID,
        jobs: Mapping[str, LiveJob] = NO_JOBS,
    ) -> None:
        """Takes in the nodes as they are, why nothing starts on some, whose they are, and what they lend and borrow.

        ``jobs``: all that may hold something of a node.
        """
        names = sorted(nodes)
        if names != self._names:
            self._names, self._seen = names, [None] * len(names)
            self._places = {}
            self._full.clear()
            self._bare.clear()
        for at, name in enumerate(names):
            node, why, seen, lent = nodes[name], reserved.get(name, ""), self._seen[at], memory.get(name, NO_MEMORY)
            if seen is None or seen.node is not node or seen.reserved != why or seen.memory != lent:
                # Most changes are of figures, and leave its shares the same object.
                is_held_anew = seen is None or seen.node.shares is not node.shares
                users = users_of(node.shares, jobs) if seen is None or is_held_anew else seen.users
                self._put(at, _SeenNode(node, why, whose(node), lent, users), seen)

    def _put(self, at: int, now: _SeenNode, before: _SeenNode | None) -> None:
        self._seen[at] = now
        self._full.put(at, now)
        self._bare.put(at, now)
        were = _NOBODY if before is None else before.users
        if were is now.users:
            return
        for user in now.users - were:
            self._places.setdefault(user, set()).add(at)
        for user in were - now.users:
            self._places[user].discard(at)
            if not self._places[user]:
                del self._places[user]

    def seen_by(self, sight: Sight) -> "NodesSeen":
        """The listing as one caller sees it, up to the next look."""
        if sight.user is None:
            return NodesSeen(self._full, "all", sight, {})
        own = {at: seen for at in self._places.get(sight.user, ()) if (seen := self._seen[at]) is not None}
        # What one user knows is no answer to another; a name need not be one that may stand in a header.
        reader = hashlib.sha256(sight.user.encode()).hexdigest()[:16]
        return NodesSeen(self._bare, reader, sight, own)


class NodesSeen:
    """All nodes by name, as one caller sees them at this moment."""

    def __init__(self, rows: Blocks[_SeenNode], reader: str, sight: Sight, own: Mapping[int, _SeenNode]) -> None:
        """``own``: nodes that are shown otherwise than in ``rows``, by their place."""
        self._rows, self._reader, self._sight, self._own = rows, reader, sight, own
        self._unmade = iter(own.values())

    @property
    def mark(self) -> str:
        """Names what it shows now."""
        return f"n-{self._reader}-{self._rows.version}"

    def renew(self) -> bool:
        """Takes one step; False: it shows what was taken in last."""
        if self._rows.renew():
            return True
        step = tuple(islice(self._unmade, OWN))
        for seen in step:
            seen.row(self._sight)
        return bool(step)

    def pieces(self) -> tuple[bytes, ...]:
        """The answer, once it is renewed."""
        own = {at: seen.row(self._sight) for at, seen in self._own.items()}
        return self._rows.pieces("nodes", len(self._rows), own)


class NodeRows:
    """Nodes as JSON, kept: there are thousands, and few of them are others than a moment ago.

    Each has a row for operators, one for users without jobs there, and one for each other user who looks.
    """

    def __init__(self, show: Callable[[LiveNode, Sight], Node]) -> None:
        self._show = show
        self._kept: dict[str, tuple[LiveNode, frozenset[str], dict[str | None, msgspec.Raw]]] = {}

    def row(self, node: LiveNode, sight: Sight) -> msgspec.Raw:
        """A node as a caller sees it, to be put into an answer; the same object is the same for ever."""
        kept = self._kept.get(node.name)
        if kept is None or (kept[0] is not node and kept[0] != node):
            kept = self._kept[node.name] = node, users_of(node.shares, sight.jobs), {}
        _, users, rows = kept
        reader = sight.user if sight.user is None or sight.user in users else ""
        if reader not in rows:
            rows[reader] = msgspec.Raw(_ENCODER.encode(self._show(node, sight)))
        return rows[reader]
