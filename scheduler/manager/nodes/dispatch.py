"""Commands to an agent, and the events that its reports mean for the log. PURE.

How it works
  Nothing is kept of what was sent: what it has to be sent follows from the log and from what it says it knows.
  One `AgentLine` a connection; a new connection starts anew with HELLO. So a command that was lost on the way is sent
  again after reconnection, and the agent does it once, as (task, start) names it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Raw, Struct, json, structs

from farside.agent import messages as m
from farside.agent.aggregator.plan import JobGrant
from farside.scheduler.admission.idle_gpus import NO_IDLE_RULES, IdleRules
from farside.scheduler.manager.aggregation import orders as aggregation
from farside.scheduler.manager.aggregation.state import MEMBERS_MAX
from farside.scheduler.manager.colocation.news import Written, timed
from farside.scheduler.manager.colocation.state import PlannedGroup
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.profile import is_known
from farside.scheduler.manager.model.record import LiveJob, LiveNode, LiveTask, Phase, TaskKey, members_of
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState, is_recall_awaited, member_nodes
from farside.scheduler.manager.nodes import services
from farside.scheduler.manager.nodes.donors import DonorRing, donor_at
from farside.scheduler.manager.nodes.energy_meter import PowerMeter
from farside.scheduler.manager.nodes.group_orders import granted, group_on, group_order, worker_variables
from farside.scheduler.manager.nodes.load_news import NodeClock, ServedUntil, idle_news, never_served
from farside.scheduler.manager.view.memory import NO_MEMORY, memory_of

# Headroom moves all the time; only so large a share of a node's memory is worth an entry in the log.
HEADROOM_STEP = 1 / 8
SWAP_STEP = 1 / 16  # the same of its Farside swap, and what its own programs use of that
LENT_STEP = 1 / 16  # the same of what its donor can lend, and has lent
ENDED = ("exited", "lost")
SaidT = TypeVar("SaidT", bound=m.ChangingFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the processes of a job find each other: the first of each role, and the variables that name all hosts."""

    masters: Mapping[str, LiveTask]
    hosts: Mapping[str, str]


class AgentLine:
    """One connection of an agent: what it knows, and what was sent to it."""

    def __init__(
        self,
        hello: m.Hello,
        address: str,
        *,
        move_s: float = 900.0,
        secret: bytes = b"",
        idle: IdleRules = NO_IDLE_RULES,
        rest_after_s: float = 0.0,
        now_s: float = 0.0,
        recall_s: float = 0.0,
        served_s: ServedUntil = never_served,
    ) -> None:
        """``rest_after_s``: idle time after which its node may rest; 0: it may not.

        ``secret``: the store's, from which jobs' keys follow; empty: nothing is aggregated. ``idle``: when GPUs
        count as idle. ``now_s``: when HELLO came. ``recall_s``: borrowers get so long to move what jobs there need.
        ``served_s``: when fronts reported last, whose leases may leave GPUs idle.
        """
        found = services.read(hello)
        self.aggregator: m.AggregatorFacts | None = found.facts.get(m.AGGREGATOR)
        self.executor: m.ExecutorFacts | None = found.facts.get(m.EXECUTOR)
        self.memory = NO_MEMORY  # that its node lends and has borrowed, as the last report says
        self.lend_refusal = self.swap_refusal = ""  # why no order about what it lends, or its swap, counts there
        self.swap_set_bytes: int | None = None  # size of its swap by its own settings; None: as it is
        self._secret, self._idle, self._served_s = secret, idle, served_s
        self._clock = NodeClock(hello.at_s, now_s)
        self._written_s: dict[str, float] = {}  # by job, when what is measured of it was written
        self._timed: dict[str, Written] = {}  # the same of its turns
        self._planned = -1  # the version of shared aggregation that this connection was told
        self._granted: tuple[JobGrant, ...] = ()
        self._plan: tuple[PlannedGroup, ...] = ()  # the last of groups
        self._group: PlannedGroup | None = None  # its node's, if that has several nodes
        self.hello, self._read = found.said, found
        self.report: m.Report | None = None  # the last, with what its services say in its own fields
        self.service_problems: Mapping[str, str] = found.problems  # by service, why its last state could not be read
        self.node = hello.node
        self._address = address
        self._known: dict[TaskKey, m.TaskState] = {key_of(task): task for task in hello.tasks}
        # Commands that were sent on this connection, by their kind.
        self._told: set[tuple[str, TaskKey]] = set()
        self._limits: dict[TaskKey, float] = {}  # to which tasks were extended, as told
        self._meter = PowerMeter()
        # No list of donors has this version, so the first comparison always looks.
        self._ring_version = -1
        self._donors: tuple[tuple[str, m.Donor], ...] | None = None
        self._move_s, self._recall_s = move_s, recall_s  # borrowers get so long to move what they have
        self._rest_after_s = rest_after_s
        self._closed_by: int | None = None  # as told; None: nothing was, and nobody knows what the donor does
        self._unknown_s: dict[str, float] = {}  # when a service that nobody here knows was written into the log
        self._ordered: dict[str, Struct] = {}  # by service, as told
        self._meetings: dict[tuple[str, int], Meeting] = {}  # by job and start, while commands are looked for

    # ------------------------------------------------------------------ agent to log

    def joined(self, state: LiveState) -> list[log.Event]:
        """What HELLO means: who joined, and what became of the processes that the log has there."""
        hello = self.hello
        said = self._lasting(hello, self._read.facts.get(services.DONOR), node=state.nodes.get(self.node))
        event = log.NodeJoined(node=self.node, address=self._address, **m.fields_of(m.NodeFacts, said))
        node = state.nodes.get(self.node)
        events: list[log.Event] = [event] if node is None or _is_news(node, event) else []
        events += self._changes(state, hello.tasks)
        events += self._service_changes(state, self._read, None)
        # After a reboot none of the old processes lives; `NodeJoined` with another boot says so for all of them.
        if node is not None and node.boot_id == hello.boot_id:
            events += self._forgotten(state, node)
        return events

    def _forgotten(self, state: LiveState, node: LiveNode) -> Iterator[log.Event]:
        """Processes that this agent should know, and does not: they are gone, or never came to be."""
        for key in node.tasks:
            task = state.task(key)
            if task is None or self._knows(state, key):
                continue
            # ASSIGNED: no agent has reported it yet, so its START command may have been lost on the way.
            is_new = task.phase is log.TaskPhase.ASSIGNED
            if is_new and _is_wanted(state.jobs[task.job_id], task):
                continue  # it will be told to start it
            cause = "it was never started" if is_new else "its node does not know it any more"
            yield log.TaskChanged(**_named(node.name, key), phase=log.TaskPhase.LOST, cause=cause)

    def reported(self, state: LiveState, report: m.Report, now_s: float = 0.0) -> list[log.Event]:
        """What REPORT means; nothing where it repeats what the log says. ``now_s``: by this manager's clock."""
        found = services.read(report)
        report, self.service_problems = found.said, found.problems
        self.report = report
        self._known.update((key_of(task), task) for task in report.tasks)
        node = state.nodes.get(self.node)
        if node is not None:
            there = (state.task(key) for key in node.tasks)
            self._meter.read((task for task in there if task is not None), report.gpus, report.at_s)
        events = self._changes(state, report.tasks)
        events += self._service_changes(state, found, report.at_s)
        events += self._told_of_jobs(state, report.told)
        said_s = self._clock.at_s(report.at_s, now_s)
        if self._idle and said_s is not None:
            late_s = max(0.0, now_s - said_s)
            served_s = self._served_s
            events += idle_news(state, self.node, report, said_s, self._idle, late_s=late_s, served_s=served_s)
        self.aggregator, self.executor = found.facts.get(m.AGGREGATOR), found.facts.get(m.EXECUTOR)
        donor, swap = found.facts.get(services.DONOR), found.facts.get(m.SWAP)
        self.memory = memory_of(report, donor, found.facts.get(services.BORROWER), swap)
        self.lend_refusal = self._refusal(m.can_service(services.DONOR, 2), donor)
        self.swap_refusal = self._refusal(m.can_service(m.SWAP), swap)
        self.swap_set_bytes = None if swap is None else swap.set_bytes
        events += _refused_orders(node, donor, swap) if node is not None else ()
        if self.aggregator is not None:
            events += aggregation.news_of(state.aggregation, self.node, self.aggregator, report.at_s, self._written_s)
        if self.executor is not None and state.colocation.jobs:
            here = [one for one in self.executor.takers if _runs(state, self.node, one)]
            workers = {one.job: len(state.jobs[one.job].tasks) for one in here}
            events += timed(state.colocation, self.node, here, report.at_s, self._timed, workers)
        if node is not None:
            drains = any(isinstance(event, log.DrainRequested) for event in events)
            if report.unfit and not node.drain_reason and not drains:
                events.append(log.DrainRequested(node=self.node, reason=report.unfit, by=f"node {self.node}"))
            said = self._lasting(report, donor, node=node)
            if _differs(m.ChangingFacts, node, _steadied(node, said)):
                events.append(log.NodeChanged(node=self.node, **m.fields_of(m.ChangingFacts, said)))
        return events

    def _service_changes(
        self, state: LiveState, found: services.Read[m.Hello] | services.Read[m.Report], at_s: float | None
    ) -> Iterator[log.Event]:
        """What services say that the log does not have yet. ``at_s``: of the report, by its node's clock."""
        node = state.nodes.get(self.node)
        known = {} if node is None else node.services
        for name in sorted({*known, *found.kept} - {*found.problems}):
            now = found.kept.get(name, "")
            if now == known.get(name, ""):
                continue
            if at_s is not None and name in found.unknown:
                if abs(at_s - self._unknown_s.get(name, -math.inf)) < services.UNKNOWN_PERIOD_S:
                    continue
                self._unknown_s[name] = at_s
            yield log.ServiceChanged(node=self.node, name=name, raw=now)

    def _told_of_jobs(self, state: LiveState, told: Iterable[m.Told]) -> Iterator[log.Event]:
        """What services say about jobs that are there; the log may have it twice, as it is a whole state."""
        for one in told:
            job = state.jobs.get(one.job)
            if job is None or job.is_over or one.start > job.start or not m.is_carried(one.raw):
                continue
            if one.service == m.AGGREGATOR:
                is_here = any(task.node == self.node for task in job.tasks)
                if is_here and one.start == job.start:
                    yield from aggregation.declared(state.aggregation, self.node, one)
            else:
                raw = services.text_of(one.raw)
                yield log.ServiceTold(node=self.node, service=one.service, job_id=one.job, start=one.start, raw=raw)

    def _refusal(self, word: str, facts: m.DonorFacts | m.SwapFacts | None) -> str:
        """Why a service takes no orders about memory, by the word for it in `Hello.can`, and by what it says."""
        if word not in self.hello.can:
            return "its agent is of a version before this one: update it"
        return "" if facts is None else facts.refusal

    def _lasting(self, said: SaidT, facts: m.DonorFacts | None, *, node: LiveNode | None) -> SaidT:
        """What an agent said of its node, as the log keeps it: without readings, and with the donor's true address.

        ``facts``: what its donor says; ``node``: as the log has it.
        """
        donor, swap = said.donor, said.swap
        donor = None if donor is None else donor_at(donor, self._address)
        if donor is not None:
            donor = structs.replace(donor, lent_bytes=self._recallable_bytes(facts, node))
        return structs.replace(
            said,
            gpus=tuple(gpu.lasting for gpu in said.gpus),
            donor=donor,
            swap=None if swap is None else _with_copies(swap.lasting, node),
        )

    def _recallable_bytes(self, facts: m.DonorFacts | None, node: LiveNode | None) -> int:
        """What the donor has lent, if it lends no more than a manager lets it."""
        if self._refusal(m.can_service(services.DONOR, 2), facts):
            return 0
        if facts is None or facts.lent is None:  # it does not answer now, and may have all that it had
            return 0 if node is None else node.borrowed_bytes
        return facts.lent.lent_bytes

    def _changes(self, state: LiveState, tasks: Iterable[m.TaskState]) -> list[log.Event]:
        events: list[log.Event] = []
        for told in tasks:
            key = key_of(told)
            task = state.task(key)
            if task is None or task.is_gone or not _is_of(told, state.jobs[task.job_id]):
                continue
            if told.unfit and not state.nodes[self.node].drain_reason:
                events.append(log.DrainRequested(node=self.node, reason=told.unfit, by=f"node {self.node}"))
            if told.profile is not None:  # before its end, which may be what its job waits for to start again
                figures = m.fields_of(m.ProfileFigures, told.profile)
                profiled = log.TaskProfiled(**_named(self.node, key), **figures)
                events += [] if is_known(state.jobs[task.job_id].profile, profiled) else [profiled]
            is_ready = told.ready_at_s is not None
            if task.phase == told.state and is_ready <= task.is_ready:
                continue
            # The meter is emptied at the end only, so that the energy of a process is in the log once.
            energy_j, metered_gpu_s = self._meter.take(key) if told.state in ENDED else (0.0, 0.0)
            events.append(
                log.TaskChanged(
                    **_named(self.node, key), phase=log.TaskPhase(told.state), exit_code=told.exit_code,
                    signal=told.signal, cause=told.cause, kind=told.kind, at_s=told.at_s, is_ready=is_ready,
                    energy_j=energy_j, metered_gpu_s=metered_gpu_s, iterations=told.iterations,
                )
            )  # fmt: skip
        return events

    # ------------------------------------------------------------------ log to agent

    def commands(self, state: LiveState) -> list[m.ManagerMessage]:
        """Commands for now that were not sent on this connection."""
        node = state.nodes.get(self.node)
        if node is None:
            return []
        found: list[m.ManagerMessage] = []
        for key in node.tasks:
            task = state.task(key)
            if task is not None:
                found += self._about(state, task)
        found += self._leftovers(state)
        # A job may change before the next look, so they are valid for one look only.
        self._meetings.clear()
        return found

    def awaits_donors(self, ring: DonorRing) -> bool:
        """Whether `donors` would look: there may be others than this node knows."""
        return m.CAN_DONORS in self.hello.can and ring.version != self._ring_version

    def donors(self, state: LiveState, ring: DonorRing) -> Iterator[m.Donors | m.Service]:
        """The donors that this node may borrow from, when they are others than those sent on this connection."""
        node = state.nodes.get(self.node)
        if node is None or not self.awaits_donors(ring):
            return
        found, self._ring_version = ring.lenders(node), ring.version
        if found != self._donors:
            self._donors = found
            addresses = tuple(
                m.DonorAddress(node=one.node, control=one.control, owner="" if owner == one.node else owner)
                for owner, one in found
            )
            order = self._order(services.BORROWER, m.BorrowerOrder(donors=addresses), state)
            is_told = m.can_service(services.BORROWER) in self.hello.can and m.is_carried(order.raw)
            yield order if is_told else m.Donors(donors=addresses)

    def orders(self, state: LiveState) -> Iterator[m.Service]:
        """The order of each service of its node, when it is another than the last on this connection."""
        node = state.nodes.get(self.node)
        outlook = services.Outlook(
            node=node, move_s=self._move_s, rest_after_s=self._rest_after_s,
            recall_s=self._recall_s if is_recall_awaited(state, node) else 0.0,
            has_jobs=bool(self._rest_after_s and node is not None and state.jobs_on(self.node)),
        )  # fmt: skip
        for name, service in services.KNOWN.items():
            order = service.order(outlook) if m.can_service(name) in self.hello.can else None
            if order is not None and order != self._ordered.get(name):
                self._ordered[name] = order
                yield self._order(name, order, state)

    def plans(self, state: LiveState) -> Iterator[m.Service]:
        """The plans of shared aggregation that its node has part in, when they are others than those sent."""
        takes_grants = m.can_service(m.AGGREGATOR, 2) in self.hello.can and self._secret
        grants = granted(state, self.node, self._secret) if takes_grants else ()
        if (self._planned, self._granted) == (state.aggregation.version, grants) or not self._secret:
            return
        self._planned, self._granted = state.aggregation.version, grants
        if m.can_service(m.AGGREGATOR) not in self.hello.can:
            return
        members = member_nodes(state)
        addresses = {name: node.address for name, node in state.nodes.items() if name in state.aggregation.numbers}
        order = aggregation.order_of(state.aggregation, self.node, members, addresses, self._secret)
        order = structs.replace(order, grants=grants)
        if order != self._ordered.get(m.AGGREGATOR):
            self._ordered[m.AGGREGATOR] = order
            yield self._order(m.AGGREGATOR, order, state)

    def groups(self, state: LiveState) -> Iterator[m.Service]:
        """The group of several nodes that its node is in, when it is another one than that sent."""
        if not self._secret or m.can_service(m.EXECUTOR, 2) not in self.hello.can:
            return
        # A plan has many groups, and is looked through once.
        if self._plan is not state.colocation.groups:
            self._plan = state.colocation.groups
            self._group = group_on(self._plan, self.node)
        order = group_order(state, self._group, self.node, self._secret)
        if order != self._ordered.get(m.EXECUTOR):
            self._ordered[m.EXECUTOR] = order
            yield self._order(m.EXECUTOR, order, state)

    def _order(self, name: str, order: Struct, state: LiveState) -> m.Service:
        """An order as of the newest entry of the log: who has read less of it can't undo it."""
        raw = Raw(json.encode(order))
        return m.Service(name=name, epoch=state.seq, generation=state.generation, raw=raw)

    def lending(self, state: LiveState) -> Iterator[m.Lending]:
        """Whether its donor may lend, when that is not what was sent last on this connection; not to a service."""
        node = state.nodes.get(self.node)
        closed_by = 0 if node is None or node.power is None else node.power.drain_number
        is_service = m.can_service(services.DONOR) in self.hello.can
        if m.CAN_LENDING in self.hello.can and not is_service and closed_by != self._closed_by:
            self._closed_by = closed_by
            yield m.Lending(closed_by=closed_by, generation=state.generation, deadline_s=self._move_s)

    def _about(self, state: LiveState, task: LiveTask) -> Iterator[m.ManagerMessage]:
        job, known = state.jobs[task.job_id], self._known.get(task.key)
        known = known if known is not None and _is_of(known, job) else None
        if _is_wanted(job, task):
            # None: where its workers are to meet is not known yet.
            found = worker_variables(state, job, self._secret) if known is None else None
            if found is not None and self._first_time("start", task.key):
                spills = state.nodes[task.node].executor.spills
                yield start_of(job, task, state.generation, self._meeting(job), found, may_spill=spills)
            if known is not None and known.state not in ENDED:
                yield from self._limit(state, job, task)
        elif (known is None or known.state not in ENDED) and self._first_time("stop", task.key):
            cause = job.stop_cause.value if job.stop_cause is not None and job.start == task.start else "an old start"
            yield stop_of(task.key, state.generation, cause, job.spec.grace_s)

    def _limit(self, state: LiveState, job: LiveJob, task: LiveTask) -> Iterator[m.Extend]:
        """The limit to which its job was extended, once a connection: it may have missed that."""
        if not job.extended_s or not self.hello.extends_limits:
            return
        if self._limits.get(task.key, 0.0) < job.extended_s:
            self._limits[task.key] = job.extended_s
            yield m.Extend(
                task_id=task_id_of(job.job_id, task.rank), start=task.start, generation=state.generation,
                time_limit_s=job.extended_s,
            )  # fmt: skip

    def _meeting(self, job: LiveJob) -> Meeting:
        """Made once for all processes of a job that this node gets."""
        key = job.job_id, job.start
        if key not in self._meetings:
            self._meetings[key] = meeting_of(job)
        return self._meetings[key]

    def _leftovers(self, state: LiveState) -> Iterator[m.ManagerMessage]:
        """What the agent knows and the log has done with, or never knew (it was restored from a backup)."""
        for key, told in list(self._known.items()):
            task = state.task(key)
            if task is not None and not task.is_gone and _is_of(told, state.jobs[task.job_id]):
                continue
            if told.state in ENDED:
                del self._known[key]
                if self._first_time("forget", key):
                    yield m.Forget(task_id=told.task_id, start=told.start)
            elif self._first_time("stop", key):
                yield stop_of(key, state.generation, "the manager does not know it", 30.0)

    def _knows(self, state: LiveState, key: TaskKey) -> bool:
        known = self._known.get(key)
        return known is not None and _is_of(known, state.jobs[key[0]])

    def _first_time(self, what: str, key: TaskKey) -> bool:
        if (what, key) in self._told:
            return False
        self._told.add((what, key))
        if what == "forget":
            self._told.difference_update((("start", key), ("stop", key)))
            self._limits.pop(key, None)
        return True


def _is_of(told: m.TaskState, job: LiveJob) -> bool:
    """Whether this is a process of this job.

    An agent may know one of another job with the same number: of a log that was lost, or of the part of it that a
    backup did not have. How that one ended is not how this one did.
    """
    return told.submitted_s is None or told.submitted_s == job.submit_s


def key_of(told: m.TaskState) -> TaskKey:
    """Job, start and rank of what an agent calls a task."""
    job_id, _, rank = told.task_id.rpartition(".")
    return job_id, told.start, int(rank)


def task_id_of(job_id: str, rank: int) -> str:
    """What agents call a process."""
    return f"{job_id}.{rank}"


def meeting_of(job: LiveJob) -> Meeting:
    """That of its latest start."""
    masters: dict[str, LiveTask] = {}
    for task in job.tasks:
        masters.setdefault(task.role, task)
    return Meeting(masters=masters, hosts=_rendezvous(job.tasks) if job.spec.roles else {})


def _rendezvous(tasks: Iterable[LiveTask]) -> Mapping[str, str]:
    """FARSIDE_HOSTS_WORKER and the like: HOST:PORT of each process of a role, by rank, with commas between.

    The port is one that no other job of Farside's has on that node; nobody but the job listens there.
    """
    hosts: dict[str, list[str]] = {}
    for one in sorted(tasks, key=lambda one: (one.role, one.role_rank)):
        hosts.setdefault(one.role, []).append(f"{one.address}:{one.port}")
    return {f"FARSIDE_HOSTS_{role.upper()}": ",".join(found) for role, found in hosts.items()}


def start_of(
    job: LiveJob,
    task: LiveTask,
    generation: int,
    meeting: Meeting | None = None,
    worker: Mapping[str, str] = MappingProxyType({}),
    *,
    may_spill: bool = False,
) -> m.Start:
    """The command that starts a process.

    ``meeting``: its job's, where that was made already; ``worker``: variables of one of several co-located workers.
    ``may_spill``: its node has a place for input of co-located jobs.
    """
    meeting = meeting or meeting_of(job)
    spec, role = job.spec, job.spec.role(task.role)
    cpus, swap_bytes = spec.cpus_per_gpu * len(task.gpus), spec.swap_bytes_per_gpu * len(task.gpus)
    first = meeting.masters.get(task.role, task)
    role_variables = {"FARSIDE_ROLE": task.role, "FARSIDE_RANK": str(task.rank), **meeting.hosts}
    # What earlier starts held counts against a limit that was not extended. At least a second: 0 means none.
    limit_s = job.extended_s or (max(1.0, spec.time_limit_s - job.held_s) if spec.time_limit_s else 0.0)
    return m.Start(
        task_id=task_id_of(job.job_id, task.rank),
        start=task.start,
        generation=generation,
        submitted_s=job.submit_s,
        spec=m.TaskSpec(
            argv=spec.argv if role is None else role.argv,
            env={**worker, **_environment(spec)} if role is None else {**spec.env, **role_variables},
            cwd=spec.cwd,
            user=job.user,
            gpus=task.gpus,
            parts=task.parts,
            cpus=cpus if role is None else role.cpus,
            memory_bytes=spec.memory_of(task.role, len(task.gpus)),
            swap_bytes=int(swap_bytes if role is None else role.swap_bytes),
            stdout=spec.output_path(job.job_id, task.rank),
            rank=task.rank if role is None else task.role_rank,
            world_size=max(1, len(job.tasks)) if role is None else role.count,
            master_addr=first.address or job.master_addr or "127.0.0.1",
            master_port=first.port or job.master_port or 1,
            time_limit_s=limit_s,
            grace_s=spec.grace_s,
            resume=job.start > 1,
            checkpoint_dir=spec.checkpoint_dir,
            umask=spec.umask,
            profile=job.is_profiled,
            membership=_membership(job, task),
            takes_turns=spec.colocate and len(job.tasks) > 1,
            may_spill=spec.colocate and may_spill,
        ),
    )


def _environment(spec: JobSpec) -> dict[str, str]:
    """The variables of a process without a role: libraries of a co-located one start the threads that it asked for."""
    return {**spec.env, **(dict.fromkeys(m.THREADS, str(spec.threads)) if spec.colocate else {})}


def _membership(job: LiveJob, task: LiveTask) -> m.Membership | None:
    """Which of its job's members a process is; None: it is none."""
    if not job.spec.aggregation:
        return None
    ranks = [one.rank for one in members_of(job)]
    if task.rank not in ranks:
        return None
    return m.Membership(rank=ranks.index(task.rank), members=min(len(ranks), MEMBERS_MAX))


def stop_of(key: TaskKey, generation: int, cause: str, grace_s: float) -> m.Stop:
    """The command that stops a process."""
    job_id, start, rank = key
    return m.Stop(
        task_id=task_id_of(job_id, rank), start=start, generation=generation, cause=cause, grace_s=grace_s
    )  # fmt: skip


def _is_wanted(job: LiveJob, task: LiveTask) -> bool:
    return job.start == task.start and job.phase in (Phase.STARTING, Phase.RUNNING)


def _runs(state: LiveState, node: str, one: m.TurnTaker) -> bool:
    """Whether what takes turns is a process that the log has on that node now."""
    task = state.task((one.job, one.start, one.rank))
    return task is not None and task.node == node and not task.is_gone


def _named(node: str, key: TaskKey) -> dict[str, Any]:
    """How the log names a process that an agent speaks of."""
    job_id, start, rank = key
    return {"node": node, "job_id": job_id, "start": start, "rank": rank}


def _refused_orders(node: LiveNode, donor: m.DonorFacts | None, swap: m.SwapFacts | None) -> Iterator[log.Event]:
    """Take back orders about memory that the owner of the node does not let count: nobody would keep them."""
    by = f"node {node.name}"
    if donor is not None and donor.refusal and node.lend_at_most_bytes is not None:
        yield log.LendingOrdered(node=node.name, lend_bytes=None, by=by)
    if swap is not None and swap.refusal and node.swap_ordered_bytes is not None:
        yield log.SwapOrdered(node=node.name, swap_bytes=None, by=by)


def _with_copies(swap: m.Swap, node: LiveNode | None) -> m.Swap:
    """A node's swap with the copies of its pages as the log has them, while no borrower says."""
    known = None if node is None else node.swap
    return swap if swap.copies or known is None else structs.replace(swap, copies=known.copies)


def _steadied(node: LiveNode, said: SaidT) -> SaidT:
    """What was said, with what always moves as it is known, where it has not moved far."""
    swap, headroom_bytes = said.swap, said.headroom_bytes
    if abs(headroom_bytes - node.headroom_bytes) <= HEADROOM_STEP * node.memory_bytes:
        headroom_bytes = node.headroom_bytes
    if swap is not None and abs(swap.own_bytes - node.swap_own_bytes) <= SWAP_STEP * swap.size_bytes:
        swap = structs.replace(swap, own_bytes=node.swap_own_bytes)
    donor, known = said.donor, node.donor
    if donor is not None and known is not None:
        moved_bytes = abs(donor.capacity_bytes - known.capacity_bytes)
        # One that was closed so that its node may sleep lends again when that is up: who needs it may wake it.
        if moved_bytes <= LENT_STEP * known.capacity_bytes or not node.has_power:
            donor = structs.replace(donor, capacity_bytes=known.capacity_bytes)
        bound_bytes, lent_bytes = node.lend_bound_bytes, donor.lent_bytes
        # Jobs may wait for it to come down to the bound.
        is_across = bound_bytes is not None and (lent_bytes <= bound_bytes) != (known.lent_bytes <= bound_bytes)
        if abs(lent_bytes - known.lent_bytes) <= LENT_STEP * known.capacity_bytes and not is_across:
            donor = structs.replace(donor, lent_bytes=known.lent_bytes)
    return structs.replace(said, headroom_bytes=headroom_bytes, swap=swap, donor=donor)


def _differs(kind: type[m.ChangingFacts], known: m.ChangingFacts, said: m.ChangingFacts) -> bool:
    """Whether a fact of this kind is not as it is known."""
    return any(getattr(known, name) != getattr(said, name) for name in kind.__struct_fields__)


def _is_news(node: LiveNode, event: log.NodeJoined) -> bool:
    """Whether the log does not say so yet; the first report has what always moves."""
    said = structs.replace(event, headroom_bytes=node.headroom_bytes)
    if said.swap is not None:
        said = structs.replace(said, swap=structs.replace(said.swap, own_bytes=node.swap_own_bytes))
    if said.donor is not None and node.donor is not None:
        moving = {name: getattr(node.donor, name) for name in ("capacity_bytes", "lent_bytes")}
        said = structs.replace(said, donor=structs.replace(said.donor, **moving))
    return not node.is_up or node.address != event.address or _differs(m.NodeFacts, node, said)
