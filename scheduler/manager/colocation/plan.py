"""Groups of the manager's co-located jobs: what changes when one comes, is measured, or ends. PURE.

How it works
  Each job has a worker on each node of its group, which is one node unless its jobs may have several. The decisions are
  those that the simulator makes (`farside.scheduler.sharing.colocation.regroup`); here they are asked with jobs whose
  times are measured, not known:

  * A job that nobody has measured gets a free node, or joins the smallest group in which no other is measured. Such a
    group is left as it is meanwhile. One that may have several nodes is measured on two where they are free: on one
    nothing of it crosses the network. Measured on one it stays there, until it is alone there and another is free.
  * Once its times are known it goes where it keeps most machines busy: it stays unless another place is better by more
    than `RegroupRules.near_best`, and waits where it would keep none busier.
  * When a job ends, one like it takes its place, or one that waits joins, or jobs move, by the rules for that event.
  * Who has waited for `ColocationRules.age_limit_s` gets a place at once; where nothing is free, others that have run
    for a while wait in its stead (`farside.scheduler.sharing.colocation.aging`).

  Nodes on which nothing may start, or without an executor, keep the jobs that run there and get no others. Where only
  an executor stays away, jobs go elsewhere once other nodes take them, and run on without turns until then. Nodes that
  will be closed get only jobs that are over by then; so jobs change places only among nodes that close together. Nodes
  that can't be in a group of several have groups of one.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_struct

from farside.group_time import WorkProfile
from farside.scheduler.manager.colocation.admission import admit
from farside.scheduler.manager.colocation.outlook import Candidate, Nodes, Outlook
from farside.scheduler.manager.colocation.state import GroupsPlanned, PlannedGroup
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules, decide
from farside.scheduler.sharing.colocation.regroup import Regrouping
from farside.units import format_bytes

_Pool = tuple[float, bool, bool]
"""When nodes close, whether they can be in a group of several, and whether they take jobs whose input does not fit in
memory: jobs change places only within such a pool."""
NO_GAIN = "it would keep no more machines busy beside the jobs that run"


@dataclass(slots=True, kw_only=True)
class _Sorted:
    """The jobs of the last plan and those that wait, as they are now.

    Attributes:
        groups: By nodes, who stays there unless it is decided otherwise.
        left: Who was in a group and is over, or may not start any more, by the nodes of the group.
        timed: Who was placed to be measured, and has been.
        waiting: Measured jobs without a place.
        new: Jobs that nobody has measured, without a place.
        leaving: Of both, those that run where nobody gives turns, by the nodes of their group.
    """

    groups: dict[Nodes, list[str]] = field(default_factory=dict)
    left: list[tuple[Nodes, str]] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    leaving: dict[str, Nodes] = field(default_factory=dict)


def replan(outlook: Outlook) -> GroupsPlanned | None:
    """The next plan; None: the last one holds."""
    kept = frozenset[str]()
    while True:
        planning = _Planning(outlook, kept)
        plan = planning.plan()
        if not planning.stuck:
            return plan
        kept |= planning.stuck


class _Planning:
    """One look at all groups.

    Attributes:
        stuck: Jobs that were to leave nodes where nobody gives turns, found no other place, and have lost some of their
            own: there is no plan before another look, in which they stay.
    """

    def __init__(self, outlook: Outlook, kept: frozenset[str]) -> None:
        """``kept``: jobs that stay where they run though nobody gives turns there."""
        self._outlook, self._state, self._kept = outlook, outlook.state, kept
        self.stuck = frozenset[str]()
        # Nodes by number: a group that the rules leave on its machines keeps its number, and so its node.
        self._names = sorted(outlook.sites)
        self._order = {job: at for at, job in enumerate(outlook.jobs)}
        self._latest_s = max((one.ends_s for one in outlook.jobs.values()), default=0.0)
        self._spills = any(one.spills for one in outlook.jobs.values())
        self._sorted = self._sort()
        self._grouping = GroupingRules(memory_bytes=outlook.size.memory_bytes or 1 << 62)
        self._regrouping = Regrouping(self._grouping, decide, outlook.rules.events)
        self._reasons: list[str] = []

    def _sort(self) -> _Sorted:
        found, planned = _Sorted(), self._state.nodes_of
        for job, nodes in planned.items():
            one = self._outlook.jobs.get(job)
            # It may start there, or has to leave another place first.
            may_start = one is not None and (one.may_start or bool(one.nodes)) and self._takes(nodes, one)
            if one is not None and one.nodes == nodes and self._leaves(job, one):
                found.leaving[job] = nodes
            elif one is not None and (one.nodes == nodes or may_start):
                found.groups.setdefault(nodes, []).append(job)
            else:
                found.left.append((nodes, job))
        gone = {job for _, job in found.left}
        for job, one in self._outlook.jobs.items():
            is_measured = job in self._state.times
            if job in found.leaving:
                (found.waiting if is_measured else found.new).append(job)
            elif job in planned and job not in gone:
                is_timed = self._state.knows(job, len(planned[job])) and job in self._state.measuring
                found.timed += [job] if is_timed else []
            elif self._may_be_placed(job, one):
                (found.waiting if is_measured else found.new).append(job)
        return found

    def _takes(self, nodes: Nodes, job: Candidate) -> bool:
        """Whether a job may start on these nodes together."""
        sites = [self._outlook.sites.get(node) for node in nodes]
        return all(site is not None and site.takes(job) and not (site.why_alone and len(nodes) > 1) for site in sites)

    def _leaves(self, job_id: str, job: Candidate) -> bool:
        """Whether a job runs where nobody gives turns, and other nodes would take it."""
        if job_id in self._kept:
            return False
        is_taken = any(self._takes((node,), job) for node in self._names)
        return bool({*job.nodes} & self._outlook.alone) and is_taken and not self._outlook.problems(job_id)

    def _may_be_placed(self, job_id: str, job: Candidate) -> bool:
        is_taken = any(self._takes((node,), job) for node in self._names)
        return job.may_start and is_taken and not self._outlook.problems(job_id)

    def plan(self) -> GroupsPlanned | None:
        """See `replan`."""
        groups = {nodes: jobs for nodes, jobs in self._sorted.groups.items() if not self._is_open(nodes)}
        waiting = self._sorted.waiting
        for at, (pool, names) in enumerate(self._pools()):
            fitting = [job for job in waiting if self._fits(job, pool)]
            cluster = self._settled(self._cluster(names, fitting, pool[1]), names, is_first=not at)
            groups |= self._named(cluster, names)
            waiting = [*cluster.waiting, *(job for job in waiting if job not in fitting)]
        self._measure(groups, tuple(waiting))
        waiting = self._admit(groups, waiting)
        self._stay(groups)
        measuring = [job for nodes, jobs in groups.items() for job in jobs if not self._state.knows(job, len(nodes))]
        left_out = tuple(job for job in waiting if job not in self._sorted.leaving)
        return self._differs(groups, tuple(sorted(measuring, key=self._order.__getitem__)), left_out)

    def _stay(self, groups: dict[Nodes, list[str]]) -> None:
        """A job that was to leave and has found no other place stays where it is."""
        placed = {job for jobs in groups.values() for job in jobs}
        held = {node: nodes for nodes, jobs in groups.items() if jobs for node in nodes}
        for job, nodes in self._sorted.leaving.items():
            if job in placed:
                self._reasons.append(f"job {job} leaves {_words(nodes)}, where no executor gives turns")
            elif all(held.get(node, nodes) == nodes for node in nodes):
                groups.setdefault(nodes, []).append(job)
                held |= dict.fromkeys(nodes, nodes)
            else:
                self.stuck |= {job}

    def _fits(self, job: str, pool: _Pool) -> bool:
        """Whether a job that waits may run on nodes of a pool."""
        (closes_s, can_group, can_spill), one = pool, self._outlook.jobs[job]
        is_taken = one.ends_s <= closes_s and (can_spill or not one.spills)
        return is_taken and (can_group or self._state.workers_of(job)[0] == 1)

    def _pools(self) -> list[tuple[_Pool, list[str]]]:
        """Open nodes by their pool, those first that stay open for as long as any job may run."""
        kept = {node for nodes in self._sorted.groups if not self._is_open(nodes) for node in nodes}
        found: dict[_Pool, list[str]] = {}
        for node in self._names:
            if node not in kept and self._is_open((node,)):
                found.setdefault(self._pool_of(node), []).append(node)
        return sorted(found.items(), reverse=True) or [((math.inf, True, True), [])]

    def _pool_of(self, node: str) -> _Pool:
        site = self._outlook.sites[node]
        closes_s = site.closes_s if site.closes_s < self._latest_s else math.inf
        # Where no job asks for it, nobody is kept from other nodes by it.
        return closes_s, not site.why_alone, not site.why_unspilled or not self._spills

    def _settled(self, cluster: Cluster, names: Sequence[str], *, is_first: bool) -> Cluster:
        """What follows on nodes of one pool for those that have left, were measured or wait."""
        for nodes, job in self._sorted.left:
            if nodes[0] in names or (is_first and not self._is_open(nodes)):
                cluster = self._ended(cluster, nodes, job)
        for job in self._sorted.timed:
            nodes = self._state.nodes_of[job]
            if nodes[0] in names or (is_first and not self._is_open(nodes)):
                cluster = self._measured(cluster, job)
        fresh = [job for job in cluster.waiting if job not in self._state.waiting]
        if cluster.waiting and (fresh or cluster.free):
            change = self._regrouping.arrived(cluster, fresh or cluster.waiting)
            if change.cluster != cluster:
                self._reasons.append(f"job {', '.join(fresh or cluster.waiting)} waited")
            cluster = change.cluster
        return cluster

    # ---- what the rules are asked with

    def _is_open(self, nodes: Nodes) -> bool:
        """Whether the rules may change the group of nodes: jobs may start there, and all that run are measured."""
        sites = [self._outlook.sites.get(node) for node in nodes]
        if any(site is None or site.why_not or site.closes_s <= self._outlook.now_s for site in sites):
            return False
        pools = {self._pool_of(node) for node in nodes}
        if len(nodes) > 1 and (len(pools) > 1 or not all(can_group for _, can_group, _ in pools)):
            return False
        return all(self._state.knows(job, len(nodes)) for job in self._sorted.groups.get(nodes, ()))

    def _in_pool(self, names: Sequence[str]) -> dict[int, Nodes]:
        """By number, the nodes of groups that are on nodes of one pool alone, of those that have no job left too."""
        every = {*self._sorted.groups, *(nodes for nodes, _ in self._sorted.left)}
        return {self._names.index(nodes[0]) + 1: nodes for nodes in sorted(every) if {*nodes} <= {*names}}

    def _cluster(self, names: Sequence[str], waiting: Sequence[str], can_group: bool) -> Cluster:
        """What the rules decide by: nodes of one pool, and the jobs that wait and that these would take."""
        groups = [
            # That of a job that has left is there though it is empty: the rules for its end look at it.
            RunningGroup(number=number, machines=len(nodes), jobs=tuple(self._sorted.groups.get(nodes, ())))
            for number, nodes in self._in_pool(names).items()
        ]
        jobs = [*(job for group in groups for job in group.jobs), *waiting]
        outlook, rules = self._outlook, self._outlook.rules
        young_s = outlook.now_s - rules.min_run_s
        profiles = {job: profile for job in jobs if (profile := self._profile(job)) is not None}
        if not can_group:
            profiles = {job: replace(profile, machines_most=1) for job, profile in profiles.items()}
        return Cluster(
            machines=len(names),
            groups=tuple(groups),
            waiting=tuple(waiting),
            profiles=profiles,
            required=frozenset(job for job in waiting if rules.is_owed(outlook.jobs[job], outlook.now_s)),
            fixed=frozenset(
                job
                for group in groups
                for job in group.jobs
                if outlook.jobs[job].since_s > young_s or self._keeps_place(job)
            )
            | self._staying(names),
            next_number=len(self._names) + 1,
        )

    def _keeps_place(self, job: str) -> bool:
        """Whether a job got its place because it had waited too long, a short time ago."""
        one, rules = self._outlook.jobs[job], self._outlook.rules
        return bool(one.nodes) and rules.has_by_age(one) and rules.yields_at_s(one) > self._outlook.now_s

    def _staying(self, names: Sequence[str]) -> frozenset[str]:
        """Jobs that run on nodes of one pool, and that none of these would take again."""
        here = {nodes: found for nodes, found in self._sorted.groups.items() if {*nodes} <= {*names}}
        jobs = self._outlook.jobs
        return frozenset(job for nodes, found in here.items() for job in found if not self._takes(nodes, jobs[job]))

    def _profile(self, job: str) -> WorkProfile | None:
        return self._state.profile(job)

    def _ended(self, cluster: Cluster, nodes: Nodes, job: str) -> Cluster:
        number, where = self._names.index(nodes[0]) + 1 if nodes[0] in self._outlook.sites else 0, _words(nodes)
        profile = self._profile(job)
        group = next((one for one in cluster.groups if one.number == number), None)
        if group is None or profile is None:
            # Its group is not the rules' to change, or nobody knows what it needed: its place is free, no more.
            rest = tuple(one for one in cluster.groups if one.jobs)
            change = self._regrouping.arrived(replace(cluster, groups=rest), cluster.waiting)
            self._reasons.append(f"job {job} left {where}")
        else:
            waiting = tuple(one for one in cluster.waiting if one != job)
            others = replace(cluster, waiting=waiting, required=cluster.required & set(waiting))
            change = self._regrouping.ended(others, number, profile)
            self._reasons.append(f"job {job} left {where}: {change.why}")
            if waiting != cluster.waiting:  # its node was lost, and it waits itself
                change = replace(change, cluster=replace(change.cluster, waiting=(job, *change.cluster.waiting)))
        return change.cluster

    def _measured(self, cluster: Cluster, job: str) -> Cluster:
        """Where a job belongs now that its times are known."""
        group = next((one for one in cluster.groups if job in one.jobs), None)
        nodes, one = self._state.nodes_of[job], self._outlook.jobs[job]
        # Another job of its group is being measured, or the job could not start anew on its nodes.
        if group is None or not self._takes(nodes, one):
            self._reasons.append(f"job {job} was measured")
            return cluster
        rest = tuple(one for one in group.jobs if one != job)
        others = tuple(
            replace(one, jobs=rest) if one is group else one for one in cluster.groups if one is not group or rest
        )
        alone = replace(cluster, groups=others, waiting=(job,), required=frozenset[str](), fixed=frozenset[str]())
        after = self._regrouping.arrived(alone, (job,)).cluster
        rules, work = self._outlook.rules.events, self._regrouping.work(cluster)
        gain = work.all(cluster) - work.all(alone)
        is_near = work.all(cluster) >= (1 - rules.near_best) * work.all(after)
        if self._keeps_place(job) or (is_near and gain > rules.least_join * cluster.machines):
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

    def _named(self, cluster: Cluster, names: Sequence[str]) -> dict[Nodes, list[str]]:
        """By nodes, the jobs of each group; a new group gets free nodes, those of its jobs if it can."""
        before = self._in_pool(names)
        known = [group for group in cluster.groups if group.jobs and group.number in before]
        taken = {before[group.number]: list(group.jobs) for group in known}
        free = [node for node in names if not any(node in nodes for nodes in taken)]
        was = self._state.nodes_of
        for group in sorted(cluster.groups, key=lambda one: one.number):
            if not group.jobs or group in known:
                continue
            shared = {node: sum(node in was.get(job, ()) for job in group.jobs) for node in free}
            nodes = tuple(sorted(sorted(free, key=lambda node: -shared[node])[: group.machines]))
            free = [node for node in free if node not in nodes]
            taken[nodes] = list(group.jobs)
        return taken

    def _measure(self, groups: dict[Nodes, list[str]], waiting: Sequence[str]) -> None:
        """Places jobs that nobody has measured, one a group."""
        left = list[str]()
        for job in self._sorted.new:
            nodes = self._measured_on(job, groups)
            if not nodes:
                left.append(job)
                continue
            groups.setdefault(nodes, []).append(job)
            self._reasons.append(f"job {job} is measured on {_words(nodes)}")
        if not left and not waiting:
            self._measure_on_two(groups)

    def _pools_of(self, job: str) -> list[Sequence[str]]:
        """Nodes that take a job, together those that can be a group if it needs several."""
        one = self._outlook.jobs[job]
        able = [node for node in self._names if self._takes((node,), one)]
        if self._state.workers_of(job)[0] == 1:
            return [able]
        return [list(pool) for pool in dict.fromkeys(tuple(self._grouping_with(node, able)) for node in able) if pool]

    def _admit(self, groups: dict[Nodes, list[str]], waiting: Sequence[str]) -> list[str]:
        """Gives a place to who has waited too long; returns the measured jobs that wait then."""
        outlook, after = self._outlook, list(waiting)
        placed = {job for jobs in groups.values() for job in jobs} | self._sorted.leaving.keys()
        left = [job for job in (*waiting, *self._sorted.new) if job not in placed]
        owed = [job for job in left if outlook.rules.is_owed(outlook.jobs[job], outlook.now_s)]
        for job in sorted(owed, key=lambda one: outlook.jobs[one].since_s):
            change = admit(outlook, job, self._pools_of(job), groups, self._grouping)
            if change is not None:
                after = [one for one in after if one != job] + [one for one in change.moved if one in self._state.times]
                self._reasons.append(f"job {change.why}")
        return after

    def _measured_on(self, job: str, groups: Mapping[Nodes, Sequence[str]]) -> Nodes:
        """Where a job is measured: on one free node, on two if it may have two, in the smallest group, or nowhere."""
        one, (least, most) = self._outlook.jobs[job], self._state.workers_of(job)
        free, memory = self._free(job, groups), self._state.jobs
        joined = [
            nodes
            for nodes, jobs in groups.items()
            if least <= len(nodes) <= most
            and self._takes(nodes, one)
            and all(self._state.knows(other, len(nodes)) for other in jobs)
            and sum(memory[other] for other in (job, *jobs)) <= self._grouping.memory_bytes
        ]
        counts = (max(least, 2), 1) if most > 1 else (1,)
        for count in (count for count in counts if count >= least):
            # Nodes of two pools could be a group, but one that is never changed.
            pools = [free] if count == 1 else [self._grouping_with(node, free) for node in free]
            able = next((nodes for nodes in pools if len(nodes) >= count), None)
            if able is not None:
                return tuple(able[:count])
            alike = [nodes for nodes in joined if (len(nodes) > 1) == (count > 1)]
            if alike:
                return min(alike, key=lambda nodes: (len(groups[nodes]), nodes))
        return ()

    def _free(self, job: str, groups: Mapping[Nodes, Sequence[str]]) -> list[str]:
        """Nodes without a group that take a job."""
        taken = {node for nodes, jobs in groups.items() if jobs for node in nodes}
        one = self._outlook.jobs[job]
        able = (node for node in self._names if node not in taken and self._takes((node,), one))
        # One that nobody has measured may have more input than fits.
        return sorted(able, key=lambda node: bool(self._outlook.sites[node].why_unspilled))

    def _grouping_with(self, node: str, free: Sequence[str]) -> list[str]:
        """Which free nodes can be in a group of several with this one."""
        pool = self._pool_of(node)
        return [one for one in free if pool[1] and self._pool_of(one) == pool]

    def _measure_on_two(self, groups: dict[Nodes, list[str]]) -> None:
        """A job that is alone on one node, and was measured there alone though it may have more, gets a second one."""
        young_s = self._outlook.now_s - self._outlook.rules.min_run_s
        for nodes, jobs in list(groups.items()):
            node, job = nodes[0], jobs[0]
            is_known = self._state.knows(job, 1) and not self._state.knows(job, 2)
            if len(nodes) > 1 or len(jobs) > 1 or not is_known or self._state.workers_of(job)[1] < 2:
                continue
            one = self._outlook.jobs[job]
            if one.since_s > young_s or not self._takes(nodes, one):
                continue
            able = self._grouping_with(node, self._free(job, groups))
            both = tuple(sorted((*nodes, *able[:1])))
            if able:
                del groups[nodes]
                groups[both] = jobs
                self._reasons.append(f"job {job} is measured on {_words(both)}")

    def _differs(
        self, groups: dict[Nodes, list[str]], measuring: tuple[str, ...], waiting: tuple[str, ...]
    ) -> GroupsPlanned | None:
        planned = tuple(self._groups(groups))
        now = [(group.nodes, group.jobs) for group in planned]
        was = [(group.nodes, group.jobs) for group in self._state.groups]
        is_same = now == was and measuring == self._state.measuring
        if is_same and set(waiting) <= set(self._state.waiting):
            return None
        reason = "; ".join(self._reasons) or (f"job {waiting[-1]}: {NO_GAIN}" if waiting else "nodes have changed")
        return GroupsPlanned(groups=planned, measuring=measuring, waiting=waiting, reason=reason[:400])

    def _groups(self, groups: Mapping[Nodes, Sequence[str]]) -> Iterator[PlannedGroup]:
        """Groups as they are planned; one of several nodes keeps its epoch as long as it has these."""
        known = {group.nodes: group.epoch for group in self._state.groups}
        fresh = itertools.count(self._state.epoch + 1)
        for nodes, jobs in sorted(groups.items()):
            if not jobs:
                continue
            ordered = tuple(sorted(jobs, key=self._order.__getitem__))
            first, *beside = nodes
            epoch = (known.get(nodes) or next(fresh)) if beside else 0
            group = PlannedGroup(node=first, beside=tuple(beside), epoch=epoch, jobs=ordered)
            time = self._state.time_of(ordered, len(nodes))
            yield group if time is None else replace_struct(group, predicted_s=time.iteration_s, bound=time.bound)


def _words(nodes: Nodes) -> str:
    return ", ".join(nodes)


def why_waiting(outlook: Outlook, job_id: str) -> str:
    """Why a job that may start has no node."""
    if not outlook.rules.nodes:
        return "no node is set aside for co-located jobs: an operator names some in colocation_nodes of manager.toml"
    job, sites = outlook.jobs[job_id], sorted(outlook.sites.items())
    closed = {name: site.refusal(job) for name, site in sites if not site.takes(job)}
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
    least = outlook.state.workers_of(job_id)[0]
    able = [name for name, site in sites if name not in closed and not site.why_alone]
    if len(able) < least > 1:
        alone = "".join(f"; {name}: {closed.get(name) or site.why_alone}" for name, site in sites if name not in able)
        return f"it needs {least} nodes that can be a group, and {len(able)} of those that are set aside can{alone}"
    return _why_beside(outlook, job_id, [name for name in outlook.sites if name not in closed])


def _why_beside(outlook: Outlook, job_id: str, nodes: Sequence[str]) -> str:
    """Why a job that a node would take has no place beside those that run on these nodes."""
    state, asked = outlook.state, outlook.state.jobs[job_id]
    taken = {node: sum(state.jobs.get(job, 0) for job in one.jobs) for one in state.groups for node in one.nodes}
    free_bytes = max(outlook.size.memory_bytes - taken.get(node, 0) for node in nodes)
    if asked > free_bytes and outlook.size.memory_bytes:
        has = f"more than {format_bytes(free_bytes)} left" if free_bytes > 0 else "any left"
        return f"it asks for {format_bytes(asked)} of memory, and no node has {has} beside the jobs that run there"
    if job_id in state.times:
        return NO_GAIN
    if state.workers_of(job_id)[0] > 1:
        return "it has to be measured first, and neither enough nodes are free nor has a group of so many room for it"
    return "it has to be measured first, and each node that has memory for it measures another job"
