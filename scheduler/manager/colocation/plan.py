"""Groups of the manager's co-located jobs: what changes when one comes, is measured, or ends. PURE.

How it works
  Each job runs on one node, and the jobs of a node are a group. The decisions are those that the simulator makes
  (`farside.scheduler.sharing.colocation.regroup`); here they are asked with jobs whose times are measured, not known:

  * A job that nobody has measured gets a free node, or joins the smallest group in which no other is measured. Such a
    group is left as it is meanwhile.
  * Once its times are known it goes where it keeps most machines busy: it stays unless another place is better by more
    than `RegroupRules.near_best`, and waits where it would keep none busier.
  * When a job ends, one like it takes its place, or one that waits joins, or jobs move, by the rules for that event.

  Nodes on which nothing may start, or without an executor, keep the jobs that run there and get no others. Those that
  will be closed get only jobs that are over by then; so jobs change places only among nodes that close together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from farside.group_time import WorkProfile
from farside.scheduler.manager.colocation.node_size import NodeSize
from farside.scheduler.manager.colocation.state import Colocation, GroupsPlanned, PlannedGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules, decide
from farside.scheduler.sharing.colocation.regroup import Cluster, Regrouping, RegroupRules, RunningGroup
from farside.units import format_bytes

NO_GAIN = "it would keep no more machines busy beside the jobs that run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationRules:
    """How groups are decided.

    Attributes:
        nodes: Names of the nodes that are set aside for co-located jobs.
        min_run_s: A job that has run for less is not moved when another ends.
        age_limit_s: Who has waited longer is in the next grouping.
        events: The rules of arrivals and ends.
    """

    nodes: frozenset[str] = frozenset()
    min_run_s: float = 60.0
    age_limit_s: float = 8 * 3600.0
    events: RegroupRules = field(default_factory=RegroupRules)


NO_RULES = ColocationRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job that is not over.

    Attributes:
        node: Where it holds something, and need not leave it by another's will than the plan's; empty: nowhere.
        may_start: It may be given a node.
        threads: CPUs that it computes with.
        since_s: Since when it waits, or runs.
        ends_s: When it is over at the latest if it starts now; infinite: it may run for ever.
    """

    node: str = ""
    may_start: bool = False
    threads: int = 1
    since_s: float = 0.0
    ends_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node that is set aside.

    Attributes:
        why_not: Why no co-located job may start there now; empty: one may.
        closes_s: Jobs that start there have to be over by then; infinite: it stays open.
        closes_why: Why it closes.
    """

    why_not: str = ""
    closes_s: float = math.inf
    closes_why: str = ""

    def takes(self, job: Candidate) -> bool:
        """Whether a job may start there now."""
        return not self.why_not and job.ends_s <= self.closes_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What groups are decided by. ``jobs`` are in the order of submission; ``size`` is that of each usable site."""

    state: Colocation
    size: NodeSize
    sites: Mapping[str, Site]
    jobs: Mapping[str, Candidate]
    now_s: float
    rules: ColocationRules = NO_RULES

    def problems(self, job_id: str) -> tuple[str, ...]:
        """Why no node takes a job, also if nothing runs there."""
        found = self.size.problems(self.jobs[job_id].threads, self.state.jobs[job_id])
        return tuple(why for _, why in found)


@dataclass(slots=True, kw_only=True)
class _Sorted:
    """The jobs of the last plan and those that wait, as they are now.

    Attributes:
        groups: By node, who stays there unless it is decided otherwise.
        left: Who was in a group and is over, or may not start any more, by the node of the group.
        timed: Who was placed to be measured, and has been.
        waiting: Measured jobs without a place.
        new: Jobs that nobody has measured, without a place.
    """

    groups: dict[str, list[str]] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def replan(outlook: Outlook) -> GroupsPlanned | None:
    """The next plan; None: the last one holds."""
    return _Planning(outlook).plan()


class _Planning:
    """One look at all groups."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook, self._state = outlook, outlook.state
        # Nodes by number: a group that the rules leave on its machines keeps its number, and so its node.
        self._names = sorted(outlook.sites)
        self._order = {job: at for at, job in enumerate(outlook.jobs)}
        self._sorted = self._sort()
        self._grouping = GroupingRules(memory_bytes=outlook.size.memory_bytes or 1 << 62)
        self._regrouping = Regrouping(self._grouping, decide, outlook.rules.events)
        self._reasons: list[str] = []

    def _sort(self) -> _Sorted:
        found, planned = _Sorted(), self._state.node_of
        for job, node in planned.items():
            one = self._outlook.jobs.get(job)
            may_start = one is not None and one.may_start and self._takes(node, one)
            if one is not None and (one.node == node or may_start):
                found.groups.setdefault(node, []).append(job)
            else:
                found.left.append((node, job))
        gone = {job for _, job in found.left}
        for job, one in self._outlook.jobs.items():
            is_measured = job in self._state.times
            if job in planned and job not in gone:
                found.timed += [job] if is_measured and job in self._state.measuring else []
            elif self._may_be_placed(job, one):
                (found.waiting if is_measured else found.new).append(job)
        return found

    def _takes(self, node: str, job: Candidate) -> bool:
        site = self._outlook.sites.get(node)
        return site is not None and site.takes(job)

    def _may_be_placed(self, job_id: str, job: Candidate) -> bool:
        is_taken = any(self._takes(node, job) for node in self._names)
        return job.may_start and is_taken and not self._outlook.problems(job_id)

    def plan(self) -> GroupsPlanned | None:
        """See `replan`."""
        groups = {node: jobs for node, jobs in self._sorted.groups.items() if not self._is_open(node)}
        waiting = self._sorted.waiting
        for closes_s, nodes in self._pools():
            fitting = [job for job in waiting if self._outlook.jobs[job].ends_s <= closes_s]
            cluster = self._settled(self._cluster(nodes, fitting), nodes, is_first=math.isinf(closes_s))
            groups |= self._named(cluster, nodes)
            waiting = [*cluster.waiting, *(job for job in waiting if job not in fitting)]
        measuring = self._measure(groups)
        return self._differs(groups, measuring, tuple(waiting))

    def _pools(self) -> list[tuple[float, list[str]]]:
        """Open nodes by when they close, those first that stay open for as long as any job may run."""
        latest_s = max((job.ends_s for job in self._outlook.jobs.values()), default=0.0)
        found: dict[float, list[str]] = {math.inf: []}
        for node in filter(self._is_open, self._names):
            closes_s = self._outlook.sites[node].closes_s
            found.setdefault(closes_s if closes_s < latest_s else math.inf, []).append(node)
        return sorted(found.items(), reverse=True)

    def _settled(self, cluster: Cluster, nodes: Sequence[str], *, is_first: bool) -> Cluster:
        """What follows on nodes of one pool for those that have left, were measured or wait."""
        for node, job in self._sorted.left:
            if node in nodes or (is_first and not self._is_open(node)):
                cluster = self._ended(cluster, node, job)
        for job in self._sorted.timed:
            node = self._state.node_of[job]
            if node in nodes or (is_first and not self._is_open(node)):
                cluster = self._measured(cluster, job)
        fresh = [job for job in cluster.waiting if job not in self._state.waiting]
        if cluster.waiting and (fresh or cluster.free):
            change = self._regrouping.arrived(cluster, fresh or cluster.waiting)
            if change.cluster != cluster:
                self._reasons.append(f"job {', '.join(fresh or cluster.waiting)} waited")
            cluster = change.cluster
        return cluster

    # ---- what the rules are asked with

    def _is_open(self, node: str) -> bool:
        """Whether the rules may change the group of a node: jobs may start there, and all that run are measured."""
        site = self._outlook.sites.get(node)
        is_closed = site is None or bool(site.why_not) or site.closes_s <= self._outlook.now_s
        return not is_closed and all(job in self._state.times for job in self._sorted.groups.get(node, ()))

    def _cluster(self, nodes: Sequence[str], waiting: Sequence[str]) -> Cluster:
        """What the rules decide by: nodes of one pool, and the jobs that wait and that these would take."""
        left = {node for node, _ in self._sorted.left}
        groups = [
            RunningGroup(number=number, machines=1, jobs=tuple(jobs))
            for number, node in enumerate(self._names, 1)
            if node in nodes
            # That of a job that has left is there though it is empty: the rules for its end look at it.
            and ((jobs := self._sorted.groups.get(node, [])) or node in left)
        ]
        jobs = [*(job for group in groups for job in group.jobs), *waiting]
        outlook, rules = self._outlook, self._outlook.rules
        old_s, young_s = outlook.now_s - rules.age_limit_s, outlook.now_s - rules.min_run_s
        return Cluster(
            machines=len(nodes),
            groups=tuple(groups),
            waiting=tuple(waiting),
            profiles={job: profile for job in jobs if (profile := self._profile(job)) is not None},
            required=frozenset(job for job in waiting if outlook.jobs[job].since_s <= old_s),
            fixed=frozenset(job for group in groups for job in group.jobs if outlook.jobs[job].since_s > young_s)
            | self._staying(nodes),
            next_number=len(self._names) + 1,
        )

    def _staying(self, nodes: Sequence[str]) -> frozenset[str]:
        """Jobs that run on nodes of one pool, and that none of these would take again."""
        here = {node: self._sorted.groups.get(node, []) for node in nodes}
        jobs = self._outlook.jobs
        return frozenset(job for node, found in here.items() for job in found if not self._takes(node, jobs[job]))

    def _profile(self, job: str) -> WorkProfile | None:
        return self._state.profile(job)

    def _ended(self, cluster: Cluster, node: str, job: str) -> Cluster:
        number = self._names.index(node) + 1 if node in self._outlook.sites else 0
        profile = self._profile(job)
        group = next((one for one in cluster.groups if one.number == number), None)
        if group is None or profile is None:
            # Its group is not the rules' to change, or nobody knows what it needed: its place is free, no more.
            rest = tuple(one for one in cluster.groups if one.jobs)
            change = self._regrouping.arrived(replace(cluster, groups=rest), cluster.waiting)
            self._reasons.append(f"job {job} left {node}")
        else:
            waiting = tuple(one for one in cluster.waiting if one != job)
            others = replace(cluster, waiting=waiting, required=cluster.required & set(waiting))
            change = self._regrouping.ended(others, number, profile)
            self._reasons.append(f"job {job} left {node}: {change.why}")
            if waiting != cluster.waiting:  # its node was lost, and it waits itself
                change = replace(change, cluster=replace(change.cluster, waiting=(job, *change.cluster.waiting)))
        return change.cluster

    def _measured(self, cluster: Cluster, job: str) -> Cluster:
        """Where a job belongs now that its times are known."""
        group = next((one for one in cluster.groups if job in one.jobs), None)
        node, one = self._state.node_of[job], self._outlook.jobs[job]
        # Another job of its group is being measured, or the job could not start anew on its node.
        if group is None or not self._takes(node, one):
            self._reasons.append(f"job {job} was measured")
            return cluster
        rest = tuple(one for one in group.jobs if one != job)
        others = tuple(
            replace(one, jobs=rest) if one is group else one for one in cluster.groups if one is not group or rest
        )
        alone = replace(cluster, groups=others, waiting=(job,), required=frozenset[str](), fixed=frozenset[str]())
        after = self._regrouping.arrived(alone, (job,)).cluster
        rules, regrouping = self._outlook.rules.events, self._regrouping
        gain = regrouping.busy(cluster) - regrouping.busy(alone)
        is_near = regrouping.busy(cluster) >= (1 - rules.near_best) * regrouping.busy(after)
        if is_near and gain > rules.least_join * cluster.machines:
            self._reasons.append(f"job {job} was measured, and stays")
            return cluster
        self._reasons.append(f"job {job} was measured, and {'waits' if job in after.waiting else 'moves'}")
        return replace(
            after,
            waiting=(*after.waiting, *cluster.waiting),
            required=cluster.required,
            fixed=cluster.fixed,
        )

    # ---- the plan

    def _named(self, cluster: Cluster, nodes: Sequence[str]) -> dict[str, list[str]]:
        """By node, the jobs of each group; a new group gets a free node, that of its jobs if it can."""
        known = [group for group in cluster.groups if group.jobs and group.number <= len(self._names)]
        taken = {self._names[group.number - 1]: list(group.jobs) for group in known}
        free = [node for node in nodes if node not in taken]
        was = self._state.node_of
        for group in sorted(cluster.groups, key=lambda one: one.number):
            if not group.jobs or group in known:
                continue
            node = max(free, key=lambda name: (sum(was.get(job) == name for job in group.jobs), -free.index(name)))
            free.remove(node)
            taken[node] = list(group.jobs)
        return taken

    def _measure(self, groups: dict[str, list[str]]) -> tuple[str, ...]:
        """Places jobs that nobody has measured, one a group; returns all that are being measured."""
        measuring = [job for jobs in groups.values() for job in jobs if job not in self._state.times]
        for job in self._sorted.new:
            memory_bytes = self._state.jobs[job]
            open_nodes = [
                node
                for node in self._names
                if self._takes(node, self._outlook.jobs[job])
                and all(one in self._state.times for one in groups.get(node, ()))
                and memory_bytes + sum(self._state.jobs[one] for one in groups.get(node, ()))
                <= self._grouping.memory_bytes
            ]
            if not open_nodes:
                continue
            node = min(open_nodes, key=lambda name: len(groups.get(name, ())))
            groups.setdefault(node, []).append(job)
            measuring.append(job)
            self._reasons.append(f"job {job} is measured on {node}")
        return tuple(sorted(measuring, key=self._order.__getitem__))

    def _differs(
        self, groups: dict[str, list[str]], measuring: tuple[str, ...], waiting: tuple[str, ...]
    ) -> GroupsPlanned | None:
        planned = tuple(self._group(node, jobs) for node, jobs in sorted(groups.items()) if jobs)
        now = [(group.node, group.jobs) for group in planned]
        was = [(group.node, group.jobs) for group in self._state.groups]
        is_same = now == was and measuring == self._state.measuring
        if is_same and set(waiting) <= set(self._state.waiting):
            return None
        reason = "; ".join(self._reasons) or (f"job {waiting[-1]}: {NO_GAIN}" if waiting else "nodes have changed")
        return GroupsPlanned(groups=planned, measuring=measuring, waiting=waiting, reason=reason[:400])

    def _group(self, node: str, jobs: list[str]) -> PlannedGroup:
        ordered = tuple(sorted(jobs, key=self._order.__getitem__))
        time = self._state.time_of(ordered)
        if time is None:
            return PlannedGroup(node=node, jobs=ordered)
        return PlannedGroup(node=node, jobs=ordered, predicted_s=time.iteration_s, bound=time.bound)


def why_waiting(outlook: Outlook, job_id: str) -> str:
    """Why a job that may start has no node."""
    if not outlook.rules.nodes:
        return "no node is set aside for co-located jobs: an operator names some in colocation_nodes of manager.toml"
    job, sites = outlook.jobs[job_id], sorted(outlook.sites.items())
    closed = {name: site.why_not or site.closes_why for name, site in sites if not site.takes(job)}
    if len(closed) == len(sites):
        told = "; ".join(f"{name}: {why}" for name, why in closed.items()) or "none of them has joined"
        is_endless = math.isinf(job.ends_s) and any(
            site.closes_s > outlook.now_s for _, site in sites if not site.why_not
        )
        advice = "; a job whose time_limit is over before that may start" if is_endless else ""
        return f"no node that is set aside for co-located jobs takes it now: {told}{advice}"
    too_large = outlook.problems(job_id)
    if too_large:
        return f"{'; '.join(too_large)}: cancel it and ask for less, or an operator sets larger nodes aside"
    return _why_beside(outlook, job_id, [name for name in outlook.sites if name not in closed])


def _why_beside(outlook: Outlook, job_id: str, nodes: Sequence[str]) -> str:
    """Why a job that a node would take has no place beside those that run on these nodes."""
    state, asked = outlook.state, outlook.state.jobs[job_id]
    taken = {group.node: sum(state.jobs.get(job, 0) for job in group.jobs) for group in state.groups}
    free_bytes = max(outlook.size.memory_bytes - taken.get(node, 0) for node in nodes)
    if asked > free_bytes and outlook.size.memory_bytes:
        has = f"more than {format_bytes(free_bytes)} left" if free_bytes > 0 else "any left"
        return f"it asks for {format_bytes(asked)} of memory, and no node has {has} beside the jobs that run there"
    if job_id in state.times:
        return NO_GAIN
    return "it has to be measured first, and each node that has memory for it measures another job"
