"""Node power under Slurm: its node states as the fleet's, and the fleet's wishes as actions on Slurm. PURE.

Slurm switches: its SuspendProgram and ResumeProgram, and its own patience with a node that does not come. It also wakes
a node by itself when it starts a job there. Here it is only decided how many idle nodes are too many, or too few for
what is to come, by the same energy policy, floor and rates as without Slurm (scheduler/power/fleet.py), and which idle
nodes waiting jobs would fill, by the same check as in the manager (scheduler/energy/job_arrival.py).
"""

import math
from collections.abc import Iterable, Mapping

from farside.scheduler.energy.job_arrival import Headroom
from farside.scheduler.node_set import bits
from farside.scheduler.nodes import NodeSets
from farside.scheduler.placement.on_nodes import demand_of
from farside.scheduler.power.fleet import DAY_S
from farside.scheduler.power.state import Holdings, NodePower, Phase, Wanted
from farside.scheduler.slurm.action import PowerAction, PowerDown, PowerUp
from farside.scheduler.slurm.domain import Group, is_managed, job_of
from farside.scheduler.slurm.snapshot import SlurmJob, SlurmNode, Snapshot
from farside.scheduler.state import Demand, Job, Node

# Waiting jobs that are looked at; those behind them wait for others than nodes anyway.
LOOKED_AT = 1000

_OUT = frozenset({"DOWN", "DRAIN", "ERROR", "FAIL", "FUTURE", "INVALID", "INVALID_REG", "MAINT", "NOT_RESPONDING"})


def fleet_of(past: Mapping[str, NodePower], nodes: Iterable[SlurmNode], now_s: float) -> Mapping[str, NodePower]:
    """The nodes' power as Slurm shows it; ``past``: as it was at the last turn."""
    return {node.name: _moved_on(past.get(node.name), node, now_s) for node in nodes}


def _moved_on(past: NodePower | None, node: SlurmNode, now_s: float) -> NodePower:
    phase = _phase(node)
    if past is None:
        # Nobody knows since when: as far as the rules go, long ago.
        past = NodePower(name=node.name, phase=phase, since_s=-math.inf)
    since_s, stops_s = past.since_s, tuple(at_s for at_s in past.stops_s if now_s - at_s < DAY_S)
    if phase is not past.phase:
        since_s = now_s
        # Also those that an administrator stops by hand: the daily limit protects the hardware.
        stops_s += (now_s,) if phase is Phase.DRAINING else ()
    is_busy = node.is_busy and phase is not Phase.OFF
    return NodePower(
        name=node.name,
        phase=phase,
        since_s=since_s,
        boot_id="slurm",  # that the node is up is Slurm's to know
        holdings=Holdings(jobs=int(is_busy), reservations=int("RESERVED" in node.flags or "PLANNED" in node.flags)),
        empty_since_s=math.inf if is_busy else min(past.empty_since_s, now_s),
        is_stopping=phase is Phase.DRAINING,
        stops_s=stops_s,
    )


def _phase(node: SlurmNode) -> Phase:
    # In this order: a node that is told to sleep is POWERED_DOWN only in the end, and one that wakes is so at first.
    for flags, phase in _BY_FLAG:
        if node.flags & flags:
            return phase
    return Phase.ON


_BY_FLAG = (
    (frozenset({"POWERING_UP", "POWER_UP"}), Phase.BOOTING),
    (frozenset({"POWERING_DOWN", "POWER_DOWN"}), Phase.DRAINING),
    (_OUT, Phase.FAILED),
    (frozenset({"POWERED_DOWN"}), Phase.OFF),
)


def waiting_jobs(snapshot: Snapshot, groups: Iterable[Group], *, is_counting_memory: bool) -> list[tuple[Job, Group]]:
    """The jobs that could start at once if they had GPUs, each with where it may run."""
    found = [(job, group) for group in groups for job in snapshot.jobs if is_managed(job, group) and job.is_ready]
    return [(_job_of(job, is_counting_memory), group) for job, group in found[:LOOKED_AT]]


def _job_of(job: SlurmJob, is_counting_memory: bool) -> Job:
    return job_of(job, may_preempt=False, is_counting_memory=is_counting_memory)


def nodes_called(nodes: Iterable[SlurmNode], waiting: Iterable[tuple[Job, Group]] = ()) -> frozenset[str]:
    """Nodes that jobs need: those that Slurm boots for a job, and idle ones that waiting jobs would fill.

    A waiting job wakes none here: Slurm counts nodes that sleep as free, and wakes them when it starts a job there.
    [helios §4.3.2, JobArrivalCheck]
    """
    nodes = tuple(nodes)
    phases = [_phase(node) for node in nodes]
    booting = {node.name for node, phase in zip(nodes, phases, strict=True) if phase is Phase.BOOTING and node.is_busy}
    headroom = Headroom(
        [node.gpus for node in nodes],
        idle=[at for at, node in enumerate(nodes) if phases[at] is Phase.ON and node.is_taking and not node.is_busy],
        asleep=(),
        reachable={at for at, phase in enumerate(phases) if phase is not Phase.FAILED},
    )
    sets = NodeSets([_empty(node) for node in nodes])
    known: dict[tuple[Demand, Group], Mapping[int, int]] = {}
    for job, group in waiting:
        if headroom.is_spent:
            break
        demand = demand_of(job, is_consolidated=False)
        if (fits := known.get((demand, group))) is None:
            own, places = frozenset(group.nodes), sets.capacities(demand)
            fits = {at: gpus for gpus, those in places for at in bits(those) if nodes[at].name in own}
            known[demand, group] = fits
        if headroom.could_hold(job.gpus, fits):
            headroom.fill(job.gpus, fits, may_wake=False)
    return frozenset(booting | {nodes[at].name for at in headroom.called})


def _empty(node: SlurmNode) -> Node:
    return Node(
        name=node.name, gpus=node.gpus, cpus=node.cpus, memory_bytes=node.memory_bytes, gpu_model=node.gpu_model
    )


def actions_of(wishes: Iterable[Wanted]) -> tuple[PowerAction, ...]:
    """Actions on Slurm that change nodes as wished."""
    return tuple(
        PowerUp(node=wish.node, reason=wish.reason) if wish.is_on else PowerDown(node=wish.node, reason=wish.reason)
        for wish in wishes
    )
