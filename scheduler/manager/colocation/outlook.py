"""What groups of co-located jobs are decided by: rules, nodes and jobs as they are at one moment. PURE."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from farside.scheduler.manager.colocation.node_size import NodeSize
from farside.scheduler.manager.colocation.state import Colocation
from farside.scheduler.sharing.colocation.regroup import RegroupRules

Nodes = tuple[str, ...]
"""Nodes of a group, in the order of workers."""
STEP = 0.05
"""Times in the log are of this precision, as a share: a smaller change writes no entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationRules:
    """How groups are decided.

    Attributes:
        nodes: Names of the nodes that are set aside for co-located jobs.
        min_run_s: A job that has run for less is not moved when another ends, and gives way to nobody.
        age_limit_s: Who has waited for so long gets a place at once.
        kept_s: Who has got a place by that keeps it for so long, so that those who wait do not take it by turns.
        away_s: A node whose executor has been away for longer gives up its jobs.
        events: The rules of arrivals and ends.
    """

    nodes: frozenset[str] = frozenset()
    min_run_s: float = 60.0
    age_limit_s: float = 8 * 3600.0
    kept_s: float = 3600.0
    away_s: float = 60.0
    events: RegroupRules = field(default_factory=lambda: RegroupRules(noise=STEP))

    def is_owed(self, job: "Candidate", now_s: float) -> bool:
        """Whether a job that waits has waited too long."""
        return self.owed_at_s(job) <= now_s

    def owed_at_s(self, job: "Candidate") -> float:
        """When a job that waits will have waited too long."""
        return job.since_s + self.age_limit_s

    def has_by_age(self, job: "Candidate") -> bool:
        """Whether a job has its place because it had waited too long."""
        return job.waited_s >= self.age_limit_s

    def yields_at_s(self, job: "Candidate") -> float:
        """When a job that runs may give way to one that has waited too long; infinite: not before it runs."""
        if not job.is_running:
            return math.inf
        return job.since_s + (max(self.kept_s, self.min_run_s) if self.has_by_age(job) else self.min_run_s)


NO_RULES = ColocationRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job that is not over.

    Attributes:
        nodes: Where it holds something, and need not leave it by another's will than the plan's; empty: nowhere.
        may_start: It may be given a node.
        threads: CPUs that it computes with.
        since_s: Since when it waits, or runs.
        waited_s: For how long it had waited before it got what it holds.
        is_running: Its processes run.
        ends_s: When it is over at the latest if it starts now; infinite: it may run for ever.
        spills: Its input was seen not to fit in its memory.
    """

    nodes: tuple[str, ...] = ()
    may_start: bool = False
    threads: int = 1
    since_s: float = 0.0
    waited_s: float = 0.0
    is_running: bool = False
    ends_s: float = math.inf
    spills: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node that is set aside.

    Attributes:
        why_not: Why no co-located job may start there now; empty: one may.
        closes_s: Jobs that start there have to be over by then; infinite: it stays open.
        closes_why: Why it closes.
        why_alone: Why it can't be in a group of several nodes; empty: it can.
        why_unspilled: Why no job whose input does not fit in its memory may start there; empty: one may.
    """

    why_not: str = ""
    why_alone: str = ""
    why_unspilled: str = ""
    closes_s: float = math.inf
    closes_why: str = ""

    def takes(self, job: Candidate) -> bool:
        """Whether a job may start there now."""
        return not self.refusal(job)

    def refusal(self, job: Candidate) -> str:
        """Why a job may not start there now; empty: it may."""
        closes = (self.closes_why or "it closes before the job is over") if job.ends_s > self.closes_s else ""
        return self.why_not or closes or (self.why_unspilled if job.spills else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What groups are decided by.

    ``jobs`` are in the order of submission; ``size`` is that of each usable site; ``alone``: sites whose jobs are to go
    elsewhere, since nobody gives turns there.
    """

    state: Colocation
    size: NodeSize
    sites: Mapping[str, Site]
    jobs: Mapping[str, Candidate]
    now_s: float
    rules: ColocationRules = NO_RULES
    alone: frozenset[str] = frozenset()

    def problems(self, job_id: str) -> tuple[str, ...]:
        """Why no node takes a job, also if nothing runs there."""
        found = self.size.problems(self.jobs[job_id].threads, self.state.jobs[job_id])
        return tuple(why for _, why in found)
