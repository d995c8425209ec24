"""Node power under Slurm: its node states as the fleet's, and the fleet's wishes as actions on Slurm. PURE.

Slurm switches: its SuspendProgram and ResumeProgram, and its own patience with a node that does not come. It also wakes
a node by itself when it starts a job there. Here it is only decided how many idle nodes are too many, or too few for
what is to come, by the same energy policy, floor and rates as without Slurm (scheduler/power/fleet.py).
"""

import math
from collections.abc import Iterable, Mapping

from farside.scheduler.power.fleet import DAY_S
from farside.scheduler.power.state import Holdings, NodePower, Phase, Wanted
from farside.scheduler.slurm.action import PowerAction, PowerDown, PowerUp
from farside.scheduler.slurm.snapshot import SlurmNode

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


def lacking(nodes: Iterable[SlurmNode]) -> int:
    """Nodes that jobs have been given and that are not up yet."""
    return sum(_phase(node) is Phase.BOOTING and node.is_busy for node in nodes)


def actions_of(wishes: Iterable[Wanted]) -> tuple[PowerAction, ...]:
    """Actions on Slurm that change nodes as wished."""
    return tuple(
        PowerUp(node=wish.node, reason=wish.reason) if wish.is_on else PowerDown(node=wish.node, reason=wish.reason)
        for wish in wishes
    )
