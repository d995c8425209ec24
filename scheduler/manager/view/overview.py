"""The overview of the cluster that one user may see, for the page and `farside top`. PURE.

How it works
  `Survey` goes over all jobs once for each entry of the log and each person who looks. `Overview` is what one of them
  gets: bounded, however long the queue is. `show_overview` leaves out what somebody has already: records are frozen, so
  what is still the same object has not changed, and nothing is compared field by field.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from msgspec import Struct, structs

from farside.agent.messages import AggregatorFacts, ExecutorFacts
from farside.scheduler.manager.aggregation.show import AggregationReport
from farside.scheduler.manager.model.lending import promised_memory
from farside.scheduler.manager.model.record import LiveJob, LiveNode, Phase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.deployments import Deployment
from farside.scheduler.manager.view.groups import Group
from farside.scheduler.manager.view.like import like
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory
from farside.scheduler.manager.view.power import Energy
from farside.scheduler.manager.view.sight import SEES_ALL, Sight
from farside.scheduler.manager.view.view import Job, Node, show_job, show_node

# Lines of each list: more than anybody reads, and some hundred KiB at most.
LINES_MAX = 300
ENDED_MAX = 20
# Among so many of the newest jobs those that have ended are looked for.
LOOKED_BACK = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensed:
    """The latest report of a node's agent on what no log keeps.

    ``loans``: borrower of its memory to bytes. ``lends``: its donor answers and takes borrowers, and could lend
    ``lendable_bytes`` more. ``swap_used_bytes``: of the Farside swap of this node.

    ``can_close``: its agent closes the donor when it is told to; ``closed_by``: the order by which that was done, with
    ``slabs`` of others left. 0: the donor is open. ``holding``: services that have something of others, by name.
    ``aggregator``, ``executor``: what its service of that name said; None: it has none. ``memory``: that it lends and
    has borrowed. ``lend_refusal``, ``swap_refusal``: why it takes no order about what it lends, or about its swap;
    empty: it takes them. ``swap_set_bytes``: size of its swap by its own settings; 0: none, None: as it is.
    """

    gpu_busy_pct: float | None = None
    gpu_power_w: float | None = None
    memory_stall_pct: float | None = None
    loans: Mapping[str, int] = field(default_factory=dict)
    lends: bool = False
    lendable_bytes: int = 0
    swap_used_bytes: int = 0
    can_close: bool = False
    closed_by: int = 0
    slabs: int = 0
    holding: tuple[str, ...] = ()
    aggregator: AggregatorFacts | None = None
    executor: ExecutorFacts | None = None
    memory: NodeMemory = NO_MEMORY
    lend_refusal: str = ""
    swap_refusal: str = ""
    swap_set_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The overview of one user. ``active`` jobs have GPUs or an allocation; lists are cut, ``counts`` are not.

    ``promised_bytes``: of other nodes' memory, to all jobs that have begun. ``why`` has a line for the first who wait,
    ``sensed`` what agents that are connected here told last, ``energy`` how
    many nodes sleep.
    """

    seq: int
    generation: int
    counts: Mapping[str, int]
    active: tuple[LiveJob, ...]
    waiting: tuple[LiveJob, ...]
    ended: tuple[LiveJob, ...]
    nodes: tuple[LiveNode, ...]
    why: Mapping[str, str] = field(default_factory=dict)
    sensed: Mapping[str, Sensed] = field(default_factory=dict)
    energy: Energy = field(default_factory=Energy)
    promised_bytes: int = 0
    aggregation: AggregationReport = field(default_factory=AggregationReport)
    groups: list[Group] = field(default_factory=list)
    deployments: tuple[Deployment, ...] = ()


class Loan(Struct, frozen=True, kw_only=True):
    """Memory that a node has lent."""

    borrower: str
    bytes: int


class SensedNode(Struct, frozen=True, kw_only=True):
    """The latest report of a node's agent on what no log keeps."""

    gpu_busy_pct: float | None
    gpu_power_w: float | None
    memory_stall_pct: float | None
    loans: list[Loan]
    lends: bool
    lendable_bytes: int
    swap_used_bytes: int
    memory: NodeMemory


class Cluster(Energy, frozen=True, kw_only=True):
    """Sums over the nodes."""

    nodes: int
    nodes_up: int
    gpus: int
    gpus_up: int
    gpus_held: int
    memory_bytes: int
    headroom_bytes: int
    gpu_power_w: float | None
    loan_bytes: int
    promised_bytes: int


class Glimpse(Struct, frozen=True, kw_only=True):
    """The cluster at a glance."""

    seq: int
    generation: int
    at_s: float
    counts: Mapping[str, int]
    cluster: Cluster
    active: list[str]
    waiting: list[str]
    ended: list[str]
    node_names: list[str]
    jobs: list[Job]
    nodes: list[Node]
    why: Mapping[str, str]
    sensed: Mapping[str, SensedNode]
    aggregation: AggregationReport
    groups: list[Group]
    deployments: tuple[Deployment, ...]


class Survey:
    """All jobs as they were at one entry of the log."""

    def __init__(self, state: LiveState) -> None:
        """Nothing is gone over before somebody looks; ``state`` must not move on before the last has looked."""
        self.seq = state.seq
        self._state = state
        self._made: dict[str | None, Overview] = {}

    def overview(self, user: str | None) -> Overview:
        """The overview of this user; None: of a caller that may see everything."""
        if user not in self._made:
            self._made[user] = self._make(user)
        return self._made[user]

    def _make(self, user: str | None) -> Overview:
        state = self._state
        jobs = [job for job in state.live_jobs() if user is None or job.user == user]
        # Bounded: the table has all jobs that are kept, and this runs in the API's event loop.
        newest = islice(reversed(state.jobs.values()), LOOKED_BACK)
        ended = [job for job in newest if job.end_s == job.end_s and (user is None or job.user == user)]  # not NaN
        return Overview(
            seq=state.seq,
            generation=state.generation,
            counts=Counter(job.phase.value for job in jobs),
            active=tuple(islice((job for job in jobs if not _is_idle(job)), LINES_MAX)),
            waiting=tuple(islice((job for job in jobs if _is_idle(job)), LINES_MAX)),
            ended=tuple(heapq.nlargest(ENDED_MAX, ended, key=lambda job: job.end_s)),
            nodes=tuple(node for _, node in sorted(state.nodes.items())),
            promised_bytes=promised_memory(state).promised_bytes,
        )


def _is_idle(job: LiveJob) -> bool:
    # As `IDLE`, ten times as fast: this is asked of every job in the queue.
    return job.phase is Phase.WAITING or job.phase is Phase.HELD


def show_overview(
    overview: Overview,
    now_s: float,
    before: Overview | None = None,
    node_row: Callable[[LiveNode], Any] = show_node,
    sight: Sight = SEES_ALL,
) -> Glimpse:
    """An overview as JSON; with ``before``, jobs and nodes that are as they were are left out, not from the order.

    ``node_row`` shows a node; it may know what it said of the same object before, as JSON. ``sight``: its reader's.
    """
    jobs = (*overview.active, *overview.waiting, *overview.ended)
    old_jobs, old_nodes = (set(), set()) if before is None else _identities(before)
    return like(
        Glimpse,
        overview,
        at_s=now_s,
        cluster=_cluster(overview),
        active=[job.job_id for job in overview.active],
        waiting=[job.job_id for job in overview.waiting],
        ended=[job.job_id for job in overview.ended],
        node_names=[node.name for node in overview.nodes],
        jobs=[show_job(job, sight) for job in jobs if id(job) not in old_jobs],
        nodes=[node_row(node) for node in overview.nodes if id(node) not in old_nodes],
        sensed={
            name: like(SensedNode, told, loans=show_loans(told))
            for name, told in overview.sensed.items()
            if before is None or before.sensed.get(name) != told
        },
    )


def show_loans(told: Sensed) -> list[Loan]:
    """Borrowers of a node's memory, and how much each has."""
    return [Loan(borrower=name, bytes=count) for name, count in sorted(told.loans.items())]


def _identities(overview: Overview) -> tuple[set[int], set[int]]:
    # ``before`` is held by its owner, so none of these numbers can be another object's by now.
    jobs = (*overview.active, *overview.waiting, *overview.ended)
    return {id(job) for job in jobs}, {id(node) for node in overview.nodes}


def _cluster(overview: Overview) -> Cluster:
    nodes = overview.nodes
    up = [node for node in nodes if node.is_up]
    powers_w = [told.gpu_power_w for told in overview.sensed.values() if told.gpu_power_w is not None]
    return Cluster(
        nodes=len(nodes),
        nodes_up=len(up),
        gpus=sum(node.device_count for node in nodes),
        gpus_up=sum(node.device_count for node in up),
        gpus_held=sum(len(node.shares) for node in nodes),
        memory_bytes=sum(node.memory_bytes for node in up),
        headroom_bytes=sum(node.headroom_bytes for node in up),
        gpu_power_w=sum(powers_w) if powers_w else None,
        loan_bytes=sum(sum(told.loans.values()) for told in overview.sensed.values()),
        promised_bytes=overview.promised_bytes,
        **structs.asdict(overview.energy),
    )


def waiting_ids(overview: Overview, limit: int) -> list[str]:
    """Those of which it is worth asking why they wait: the first ones that are not held."""
    return list(islice((job.job_id for job in overview.waiting if job.phase is Phase.WAITING), limit))
