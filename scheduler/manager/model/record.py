"""What is known of a job, a process and a node, as it follows from the log. PURE.

A job's way [tiresias Figure 3.9], with the event that takes it each step:

    submitted --> WAITING --placed--> PLACED --started--> STARTING --all run--> RUNNING --ended--> DONE, FAILED
      |  held ^   ^  ^                  | unplaced           |                     |
      v       |   |  +------------------+                    +------stopping-------+
     HELD ----+   |                                          v
    (released)    +--------------requeued---------------- STOPPING --ended--> CANCELLED, TIMED_OUT, FAILED, DONE

Preempted is a job that waits again after STOPPING. Arrival, activity, starvation and completion, the paper's four
events, are `JobSubmitted`, what the order policy sees of its service, `JobPromoted` and `JobEnded`.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field, json

from farside.agent.gpu_share import Device, Share, free_devices, shares_of
from farside.agent.messages import EXECUTOR, EndKind, ExecutorFacts, IterationTimes, NodeFacts
from farside.scheduler.admission.idle_gpus import IdleRule, IdleRules, IdleWarning, Span
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.model.profile import JobProfile
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.nodes import models_of
from farside.scheduler.power.state import Phase as PowerPhase
from farside.units import format_bytes

# The kernel keeps a little more or less for itself at each boot.
_MEMORY_SLACK = 1.02


class Phase(StrEnum):
    """Where a job is."""

    HELD = "held"
    WAITING = "waiting"
    ALLOCATED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


IDLE = frozenset({Phase.HELD, Phase.WAITING})
ACTIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})  # it has processes, or may have
OVER = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED, Phase.TIMED_OUT})
PHASE_OF_ENDING: Mapping[log.Ending, Phase] = {ending: Phase(ending.value) for ending in log.Ending}
GONE = frozenset({log.TaskPhase.EXITED, log.TaskPhase.LOST})

TaskKey = tuple[str, int, int]  # job, start, rank


class LiveTask(log.TaskAllocation, frozen=True, kw_only=True):
    """One process of one start of a job, where it was placed, and how it is.

    ``idle``: when all of its GPUs were idle, as far as the log was told; None: nobody told it, or they are used again.
    """

    job_id: str
    start: int
    phase: log.TaskPhase = log.TaskPhase.ASSIGNED
    exit_code: int | None = None
    signal: int | None = None
    cause: str = ""
    kind: EndKind | None = None
    is_ready: bool = False
    idle: Span | None = None
    iterations: IterationTimes | None = None

    @property
    def end_kind(self) -> EndKind:
        """What brought it to its end; an older agent or log has it in words only."""
        return self.kind or EndKind.of_text(self.cause)

    @property
    def key(self) -> TaskKey:
        """What names it in the whole cluster, for ever."""
        return self.job_id, self.start, self.rank

    @property
    def shares(self) -> tuple[Share, ...]:
        """What it holds of its node's GPUs, in its job's name."""
        return shares_of(self.devices, (self.job_id, self.start), self.node)

    @property
    def is_gone(self) -> bool:
        """Whether it holds nothing any more."""
        return self.phase in GONE

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than with exit code 0."""
        return self.phase is log.TaskPhase.LOST or (self.phase is log.TaskPhase.EXITED and self.exit_code != 0)


class RunInterval(Struct, frozen=True, kw_only=True):
    """A time during which a job held GPUs: from the decision to start it to the end of its last process.

    ``energy_j``: what its nodes say that its GPUs drew, of ``metered_gpu_s`` GPU seconds of it. ``spread``: how far
    from consolidated it was, as `JobStarted` says. ``iterations``: what its processes have told, known at its end.
    Where they have, ``skew`` is S_J as it was known by then, 0 where it was not; ``gpu_models`` are those of its nodes;
    and ``ended_at`` is the entry of the log with which it ended.
    """

    begin_s: float
    places: tuple[log.NodeAllocation, ...]
    end_s: float = math.inf
    energy_j: float = 0.0
    metered_gpu_s: float = 0.0
    spread: float | None = None
    iterations: IterationTimes | None = None
    skew: float = 0.0
    gpu_models: tuple[str, ...] = ()
    ended_at: int = 0


class MemoryRecall(Struct, frozen=True, kw_only=True):
    """Memory that a donor takes back before a job starts on its node, as `MemoryRecalled` ordered it at ``ordered_s``.

    ``back_s``: when its node said that it has come back; NaN: it has not.
    """

    node: str
    lend_bytes: int
    recalled_bytes: int
    expected_s: float | None
    samples: int
    ordered_s: float
    until_s: float
    back_s: float = math.nan

    @property
    def is_back(self) -> bool:
        """Whether all of it has come back."""
        return not math.isnan(self.back_s)

    def is_awaited(self, now_s: float) -> bool:
        """Whether the job is still to wait for it."""
        return not self.is_back and now_s < self.until_s


class LiveJob(Struct, frozen=True, kw_only=True):
    """A job. Times are seconds since the epoch; NaN before there is one.

    Attributes:
        job_id: What users call it.
        sequence: Its place among all jobs ever submitted.
        start: How often it was started; the number of its latest start.
        places: The nodes that the cycle gave it, from PLACED on.
        host: The partition that lends it these; empty: they are its own partition's.
        tasks: The processes of its latest start, by rank.
        since_s: When its phase last changed between waiting and holding GPUs, it was preempted, or it was promoted.
        executed_s: t_J up to ``since_s``: seconds it has held GPUs since it was submitted or promoted, but for those in
            which it left them to another.
        waited_s: The same of waiting, with those.
        held_s: Seconds it has held GPUs in all, up to ``since_s``.
        stints: When and where it held GPUs, the last without an end while it does.
        submitted_at: The entry of the log that submitted it.
        started_s: When its latest start was decided, and ``stopping_s`` the latest stop.
        pause_s: How long its processes took to go when it was preempted last.
        resume_s: How long its latest start took until all of them ran, or the first said that it makes progress.
        is_ready: One of its latest start has said so.
        is_profiled: What the processes of its latest start send is noted.
        profile: What that tells, of the latest start that told something.
        reason: Why it is as it is, in words.
        cancelled_by: Who wants it to end; empty: nobody.
        held_by: Who wants it not to start; empty: nobody. One that runs is held once it has stopped.
        idle: The warning that its GPUs are idle, while that stands; None: there is none.
        extended_s: How long its latest start, or its next one, may hold its GPUs, whatever earlier ones did; 0: it was
            never extended, and all its starts together may hold them for its time limit.
        recalls: What donors of the nodes that it has took back before it started there, or are still to.
    """

    job_id: str
    sequence: int
    spec: JobSpec
    user: str
    uid: int
    submit_s: float
    phase: Phase
    since_s: float
    submitted_at: int = 0
    start: int = 0
    places: tuple[log.NodeAllocation, ...] = ()
    host: str = ""
    tasks: tuple[LiveTask, ...] = ()
    executed_s: float = 0.0
    waited_s: float = 0.0
    held_s: float = 0.0
    stints: tuple[RunInterval, ...] = ()
    start_s: float = math.nan
    end_s: float = math.nan
    started_s: float = math.nan
    stopping_s: float = math.nan
    pause_s: float = math.nan
    resume_s: float = math.nan
    is_ready: bool = False
    preemptions: int = 0
    failures: int = 0
    exit_code: int | None = None
    reason: str = ""
    stop_cause: log.StopCause | None = None
    cancelled_by: str = ""
    held_by: str = ""
    master_addr: str = ""
    master_port: int = 0
    is_profiled: bool = False
    profile: JobProfile | None = None
    idle: IdleWarning | None = None
    recalls: tuple[MemoryRecall, ...] = ()
    extended_s: float = 0.0

    @property
    def limit_s(self) -> float:
        """The longest that a start of it may hold its GPUs; infinite: it may for ever."""
        return self.extended_s or self.spec.time_limit_s or math.inf

    @property
    def spent_s(self) -> float:
        """What counts against `limit_s` of the time before ``since_s``."""
        if not self.extended_s:
            return self.held_s
        return self.since_s - self.started_s if self.phase in ACTIVE else 0.0

    @property
    def limit_at_s(self) -> float:
        """When one that holds GPUs will have held them for as long as it may; infinite: it may for ever."""
        return self.since_s + self.limit_s - self.spent_s

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.phase in OVER

    @property
    def is_leaving(self) -> bool:
        """Whether its processes end so that another job gets its GPUs: it waits, as far as the cycle knows."""
        return self.phase is Phase.STOPPING and self.stop_cause is log.StopCause.PREEMPTED

    @property
    def workers(self) -> tuple[LiveTask, ...]:
        """The processes of its latest start without those of services."""
        services = {role.name for role in self.spec.roles if role.is_service}
        return tuple(task for task in self.tasks if task.role not in services) if services else self.tasks

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it has, had last, or is about to have."""
        return tuple(place.node for place in self.places)

    @property
    def idle_spans(self) -> tuple[Span | None, ...]:
        """When each of its processes that has GPUs left them idle since all processes ran; None: not that anybody saw.

        A job that says when it makes progress (FARSIDE_READY) has from then on to use them. Once it is warned that says
        nothing any more: only GPUs that are used lift a warning.
        """
        begun_s = self.started_s + (0.0 if math.isnan(self.resume_s) else self.resume_s)
        if self.idle is not None:
            begun_s = min(begun_s, self.idle.since_s)
        holding = (task for task in self.tasks if task.gpus and not task.is_gone)
        return tuple(None if task.idle is None else task.idle.after(begun_s) for task in holding)

    def idle_rule(self, rules: IdleRules) -> IdleRule | None:
        """The rule for its GPUs; None: it has none."""
        if not rules:
            return None
        return rules.of(partition=self.spec.partition, qos=self.spec.qos)

    def held_until(self, now_s: float) -> float:
        """Seconds that it has held GPUs in all."""
        return self.held_s + (now_s - self.since_s if self.phase in ACTIVE else 0.0)


def members_of(job: LiveJob) -> tuple[LiveTask, ...]:
    """The processes that train, whose gradients are aggregated: those with GPUs, in their order, or all if none has."""
    return tuple(task for task in job.tasks if task.gpus) or job.tasks


_POWER_STATES: Mapping[PowerPhase, str] = {
    PowerPhase.DRAINING: "closing",
    PowerPhase.OFF: "asleep",
    PowerPhase.BOOTING: "booting",
}
_POWER_WORDS: Mapping[PowerPhase, str] = {
    **_POWER_STATES,
    PowerPhase.ON: "about to open",
    PowerPhase.FAILED: "did not obey its power switch",
}


class Admission(Struct, frozen=True, kw_only=True):
    """What operators have said of a node's name: by what it may join, or that it may not.

    Attributes:
        invitation: SHA-256 of an invitation that was not used yet, in hex; empty: there is none.
        expires_s: Until when that counts.
        key: SHA-256 of the token that the node got for its invitation, in hex; empty: it has another proof.
        is_accepted: It may join by a certificate, though it never did.
        is_revoked: It may not connect at all.
        revoked_entry: The last entry that revoked it: what was connected before that is not let in by a later one;
            0: there is none.
        gpus, memory_bytes: What it will have; None: whatever it says at first.
        by, at_s: The last who decided, and when.
    """

    invitation: str = ""
    expires_s: float = 0.0
    key: str = ""
    is_accepted: bool = False
    is_revoked: bool = False
    revoked_entry: int = 0
    gpus: int | None = None
    memory_bytes: int | None = None
    by: str = ""
    at_s: float = 0.0


class LiveNode(NodeFacts, frozen=True, kw_only=True):
    """A node that has ever joined, with what its agent said last.

    ``shares`` say which job has which GPU, or which part of it, and ``tasks`` are all processes there: from the moment
    that it was decided to start one until the node has said that it is gone, however long the node is away.
    ``power``: what is kept of its power; None: it has always been on. ``closed_by``: the DRAIN after which no job
    starts there, as the scheduler process has said; 0: one may. ``services``: what its services say that
    the log keeps as it comes, as JSON by their names. ``vouched_gpus``, ``vouched_memory_bytes``: what its invitation
    said that it has, or its first HELLO, or an operator has accepted since; None: a version before did not note it.
    ``lend_at_most_bytes``: an operator's bound of what its donor lends; None: there is none.
    ``swap_ordered_bytes``: the size that an operator wants its swap to have; None: nobody has said.
    ``recalls``: by job that has its place there and for which its donor took memory back, the most that this lends
    meanwhile: what was ordered, or more where the jobs there leave more by now.
    """

    name: str
    address: str
    is_up: bool = True
    joined_s: float = 0.0
    drain_reason: str = ""
    lost_reason: str = ""
    shares: tuple[Share, ...] = ()
    tasks: tuple[TaskKey, ...] = ()
    power: NodePowerRecord | None = None
    closed_by: int = 0
    services: Mapping[str, str] = field(default_factory=dict)
    vouched_gpus: int | None = None
    vouched_memory_bytes: int | None = None
    lend_at_most_bytes: int | None = None
    swap_ordered_bytes: int | None = None
    recalls: Mapping[str, int] = field(default_factory=dict)

    @property
    def executor(self) -> ExecutorFacts:
        """What the log has of its executor."""
        raw = self.services.get(EXECUTOR, "")
        return json.decode(raw, type=ExecutorFacts) if raw else ExecutorFacts()

    @property
    def excess(self) -> str:
        """What it says that it has, beyond what anybody vouched for; empty: nothing."""
        found = []
        if self.vouched_gpus is not None and len(self.gpus) > self.vouched_gpus:
            found.append(f"{len(self.gpus)} GPUs instead of {self.vouched_gpus}")
        if self.vouched_memory_bytes is not None and self.memory_bytes > self.vouched_memory_bytes * _MEMORY_SLACK:
            told, vouched = format_bytes(self.memory_bytes), format_bytes(self.vouched_memory_bytes)
            found.append(f"{told} of memory instead of {vouched}")
        return ", ".join(found)

    @property
    def gpu_model(self) -> str:
        """The model of all its GPUs; empty: they differ, or it does not say."""
        models = {gpu.model for gpu in self.gpus}
        return models.pop() if len(models) == 1 else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Its features, and as features its rack and its RDMA domains: ``rack:r1``, ``rdma:fe80:0000:0000:0000``."""
        domains = (self.rdma_domain or self.rdma_subnet).split(",")
        found = (f"rack:{self.rack}" if self.rack else "", *(f"rdma:{name}" for name in domains if name))
        return (*self.features, *filter(None, found))

    def runs_jobs_of(self, user: str) -> bool:
        """Whether this user's jobs may run there."""
        return not self.users or user in self.users

    def suits(self, spec: JobSpec, user: str) -> bool:
        """Whether it runs jobs of this user, is chosen, and has GPUs that will do; `NodeSets.suitable` of one node."""
        if not (self.runs_jobs_of(user) and spec.choice.takes(self.name, self.labels)):
            return False
        return not spec.gpu_model or self.gpu_model.casefold() in models_of(spec.gpu_model)

    @property
    def unhealthy(self) -> tuple[int, ...]:
        """The GPUs with errors."""
        return tuple(gpu.index for gpu in self.gpus if not gpu.healthy)

    @property
    def is_taking(self) -> bool:
        """Whether jobs may start there. A node with a broken GPU drains by itself."""
        return self.is_up and not self.drain_reason and not self.unhealthy and self.has_power

    @property
    def has_power(self) -> bool:
        """Whether it is on, and neither to go off nor just coming up."""
        return self.power is None or self.power.is_open

    @property
    def swap_bytes(self) -> int:
        """Bytes of other nodes' memory that it can use as swap: no more than it is to have, though that is on still."""
        has_bytes = 0 if self.swap is None else self.swap.size_bytes
        return has_bytes if self.swap_ordered_bytes is None else min(has_bytes, self.swap_ordered_bytes)

    @property
    def swap_copies(self) -> int:
        """Donors that have each page of its swap; 1 where nobody says."""
        return 1 if self.swap is None else max(1, self.swap.copies)

    @property
    def lends_bytes(self) -> int:
        """Memory that its donor lends, lent already or not; 0 while the node is away, drains or is to sleep."""
        is_there = self.is_up and not self.drain_reason and self.has_power
        if self.donor is None or not is_there:
            return 0
        # Its agent has yet to tell the donor of a bound that is new: nothing beyond it is promised any more.
        bound = self.lend_bound_bytes
        return self.donor.capacity_bytes if bound is None else min(self.donor.capacity_bytes, bound)

    @property
    def lend_bound_bytes(self) -> int | None:
        """The most that its donor is to lend, by an operator and by jobs there; None: what its settings allow."""
        bounds = [*self.recalls.values(), *(() if self.lend_at_most_bytes is None else (self.lend_at_most_bytes,))]
        return min(bounds, default=None)

    @property
    def borrowed_bytes(self) -> int:
        """What others have of its memory now, as far as that can be recalled; 0 while the node is away."""
        return self.donor.lent_bytes if self.donor is not None and self.is_up else 0

    @property
    def why_not(self) -> str:
        """Why no job may start there; empty: one may."""
        if self.power is not None and not self.has_power:
            return f"{_POWER_WORDS[self.power.phase]}: {self.power.reason}"
        if not self.is_up:
            return self.lost_reason
        if self.drain_reason:
            return self.drain_reason
        return ", ".join(f"GPU {gpu.index}: {gpu.reason or 'errors'}" for gpu in self.gpus if not gpu.healthy)

    @property
    def state(self) -> str:
        """``lost``, ``draining`` (jobs still run there), ``drained``, ``busy`` or ``idle``.

        And of nodes that sleep: ``closing``, ``asleep``, ``booting``.
        """
        if self.power is not None and self.power.phase in _POWER_STATES:
            return _POWER_STATES[self.power.phase]
        if not self.is_up:
            return "lost"
        if not self.is_taking:
            return "draining" if self.tasks else "drained"
        return "busy" if self.tasks else "idle"

    @property
    def free_devices(self) -> tuple[Device, ...]:
        """The GPUs, and parts of GPUs, that nobody holds, the lowest first."""
        return tuple(free_devices(self.devices, self.shares))


class Maintenance(log.NodesReserved, frozen=True, kw_only=True):
    """Nodes that are reserved between two times. ``cancelled_by``: who thought better of it; empty: nobody."""

    reservation_id: str
    cancelled_by: str = ""

    def is_pending(self, now_s: float) -> bool:
        """Whether it is not over, and not cancelled."""
        return not self.cancelled_by and now_s < self.end_s

    def state(self, now_s: float) -> str:
        """``planned``, ``active``, ``over`` or ``cancelled``."""
        if self.cancelled_by:
            return "cancelled"
        if now_s >= self.end_s:
            return "over"
        return "active" if now_s >= self.begin_s else "planned"
