"""Idle saving of nodes that stay on: when to lower GPU power caps and CPU speed, and when to end it. PURE.

The same rules as for switching off: never with a job, somebody's slab or a reservation on the node, and no flapping.
Unlike switching off it is over in an instant, so the node stays open: it is ended as soon as anything comes.
"""

from dataclasses import dataclass
from enum import StrEnum

from farside.scheduler.power.state import NodePower, Phase


class RestCommand(StrEnum):
    """Order to the idle savers of a node."""

    REST = "rest"
    RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRules:
    """Rules of idle saving. ``after_s``: idle time before it begins. ``between_s``: pause between two periods."""

    after_s: float = 300.0
    between_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Whether a node saves power while idle. ``boot_id``: the boot in which the order was given; a boot undoes it."""

    is_resting: bool = False
    since_s: float = float("-inf")
    boot_id: str = ""


def next_rest(rest: Rest, node: NodePower, *, now_s: float, rules: RestRules) -> tuple[Rest, RestCommand | None]:
    """Next state of a node's idle saving, and the order for it; None: no order."""
    if rest.is_resting and node.boot_id != rest.boot_id:
        rest = Rest(since_s=now_s)
    is_idle = node.phase is Phase.ON and node.holdings is not None and node.holdings.is_empty
    if rest.is_resting:
        return (rest, None) if is_idle else (Rest(since_s=now_s), RestCommand.RESUME)
    is_due = now_s - node.empty_since_s >= rules.after_s and now_s - rest.since_s >= rules.between_s
    if is_idle and is_due and node.boot_id:
        return Rest(is_resting=True, since_s=now_s, boot_id=node.boot_id), RestCommand.REST
    return rest, None
