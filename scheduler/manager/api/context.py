"""The state that all routes share; `route_arguments.py` hands it to each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.manager.api.access_log import AccessLog
from farside.scheduler.manager.api.idempotency import Idempotency
from farside.scheduler.manager.api.limit.user_writes import UserWrites
from farside.scheduler.manager.api.overview_stream import OverviewStreams
from farside.scheduler.manager.auth.caller import Callers
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.lending import promised_by_donor
from farside.scheduler.manager.model.queue_quota import QueueGate, QueueLimits
from farside.scheduler.manager.nodes.sessions import AgentSessions
from farside.scheduler.manager.power.controller import LivePower
from farside.scheduler.manager.scheduler_watch import SchedulerWatch
from farside.scheduler.manager.view.deployments import Deployments
from farside.scheduler.manager.view.listing import JobListings, NodeListing
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory, with_orders
from farside.scheduler.manager.view.partition import Owners
from farside.scheduler.tenancy import Tenancy

NO_LIMITS = QueueLimits()


@dataclass(slots=True, kw_only=True)
class Context:
    """The API over one log.

    Attributes:
        folder: The manager's state folder, where the scheduler process answers.
        may_tokens_submit: Whether a token proves enough to submit jobs.
        only_uid: Only this user may submit, even root, since all jobs run as this user; None: all but root may, as
            nodes run no task as root.
        colocation_nodes: Names of the nodes that are set aside for co-located jobs.
        goes_by_run_times: The policy asks how long jobs will run, so the scheduler process can say what it expects.
        cpus_in_proportion: A job that names no CPUs gets them by its GPUs.
        queue_limits: What one who is no operator may have in the queue, and submit within an hour.
        paces_users: Whether such a one writes into the log no faster than `UserWrites` lets them.
    """

    log: LiveLog
    callers: Callers
    folder: Path
    sessions: AgentSessions
    power: LivePower
    may_tokens_submit: bool
    gpu_power_w: float
    only_uid: int | None = None
    tenancy: Tenancy | None = None
    queue_limits: QueueLimits = NO_LIMITS
    paces_users: bool = False
    colocation_nodes: frozenset[str] = frozenset()
    partitions: Partitions = NO_PARTITIONS
    goes_by_run_times: bool = False
    cpus_in_proportion: bool = False
    access_log: AccessLog = field(init=False)
    scheduler: SchedulerWatch = field(init=False)
    overviews: OverviewStreams = field(init=False)
    deployments: Deployments = field(init=False, default_factory=Deployments)
    gate: QueueGate = field(init=False)
    writes: UserWrites = field(init=False)
    idempotency: Idempotency = field(init=False)
    jobs: JobListings = field(init=False, default_factory=JobListings)
    nodes: NodeListing = field(init=False, default_factory=NodeListing)

    @property
    def owners(self) -> Owners:
        """What says whose nodes are."""
        return Owners(partitions=self.partitions, jobs=self.log.state.jobs)

    def memory(self) -> Mapping[str, NodeMemory]:
        """Memory that nodes lend and have borrowed, by node, and what jobs were promised of it.

        Of those whose agents are connected elsewhere only what the log says.
        """
        promised, sensed = promised_by_donor(self.log.state), self.sessions.sensed()
        found = {name: told.memory for name, told in sensed.items()}
        for node in self.log.state.nodes.values():
            if node.lend_at_most_bytes is None and node.swap_ordered_bytes is None:
                continue
            told = sensed.get(node.name)
            found[node.name] = with_orders(
                found.get(node.name),
                lend_bytes=node.lend_at_most_bytes,
                swap_bytes=node.swap_ordered_bytes,
                bound_bytes=node.lend_bound_bytes,
                lend_refusal="" if told is None else told.lend_refusal,
                swap_refusal="" if told is None else told.swap_refusal,
            )
        return found | {
            name: structs.replace(found.get(name, NO_MEMORY), promised_bytes=part) for name, part in promised.items()
        }

    def __post_init__(self) -> None:
        power = self.power
        self.access_log = AccessLog(self.log, self.callers)
        self.scheduler = SchedulerWatch(self.folder)
        self.overviews = OverviewStreams(
            self.log, self.folder, self.sessions.sensed, power.setup.idle_w, lambda: power.forecast, self.deployments,
            self.owners.of,
        )  # fmt: skip
        self.gate = QueueGate(self.queue_limits)
        self.writes = UserWrites(self.log.clock.now_s, is_on=self.paces_users)
        self.idempotency = Idempotency(self.log)
