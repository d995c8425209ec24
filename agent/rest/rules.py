"""When an idle node that stays on turns down CPUs and GPUs, and when that ends. PURE.

The same rules as for switching off: never with a job on the node or something of others at its services, and no
flapping. Unlike switching off, a rest ends within seconds, so the node stays open: it ends as soon as anything comes.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class RestCommand(StrEnum):
    """What to do with the node's savers."""

    REST = "rest"
    RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Whether a node rests, since when that is so, and since when nothing is on the node; infinite: something is."""

    is_resting: bool = False
    since_s: float = -math.inf
    idle_since_s: float = math.inf


def next_rest(rest: Rest, *, is_idle: bool, now_s: float, after_s: float | None) -> tuple[Rest, RestCommand | None]:
    """Next state of a node's rest, and what to do; None: nothing.

    Args:
        rest: As it was.
        is_idle: Nothing is on the node.
        now_s: Now.
        after_s: Idle time before a rest, and between two rests; None: it may not rest.
    """
    idle_since_s = min(rest.idle_since_s, now_s) if is_idle else math.inf
    if rest.is_resting:
        if is_idle and after_s is not None:
            return rest, None
        return Rest(since_s=now_s, idle_since_s=idle_since_s), RestCommand.RESUME
    is_due = after_s is not None and now_s - idle_since_s >= after_s and now_s - rest.since_s >= after_s
    if is_due:
        return Rest(is_resting=True, since_s=now_s, idle_since_s=idle_since_s), RestCommand.REST
    return Rest(since_s=rest.since_s, idle_since_s=idle_since_s), None
