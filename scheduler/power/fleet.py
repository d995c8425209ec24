"""Choice of the nodes to switch: enough are on, with a floor, rate limits and nodes that may not sleep. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from farside.scheduler.power.state import NodePower, Phase, Wanted

HOUR_S = 3600.0
DAY_S = 86400.0
CALLED = "a job waits for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    """Rules for all nodes together: floor, rates and minimum times.

    Attributes:
        floor: Nodes that always stay on, whatever is wanted.
        always_on: Names of nodes that never sleep.
        draining_at_once: Nodes on their way off at one time.
        booting_at_once: Nodes on their way on at one time: fuses and boot servers have a limit.
        stops_per_hour: Nodes told to stop in an hour, all together.
        stops_per_node_per_day: Power supplies and disks wear by it.
        min_on_s: A node that came up stays for so long.
        min_off_s: A node that went off stays for so long, unless the floor needs it.
    """

    floor: int = 1
    always_on: frozenset[str] = frozenset()
    draining_at_once: int = 8
    booting_at_once: int = 8
    stops_per_hour: int = 30
    stops_per_node_per_day: int = 6
    min_on_s: float = 600.0
    min_off_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.draining_at_once, self.booting_at_once) < 1:
            raise ValueError("draining_at_once and booting_at_once must be at least 1")
        if min(self.floor, self.stops_per_hour, self.stops_per_node_per_day, self.min_on_s, self.min_off_s) < 0:
            raise ValueError("floor, stops and times must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan: orders for nodes, and the reasons against further orders.

    Attributes:
        wishes: One for each node that is to change.
        short: Nodes that ought to be on now and cannot be woken yet.
        stays: Why nodes that are not needed stay on, each by its name.
    """

    wishes: tuple[Wanted, ...]
    short: int = 0
    stays: Mapping[str, str] = field(default_factory=dict)


def plan(
    nodes: Sequence[NodePower],
    wanted_on: int,
    *,
    now_s: float,
    rules: FleetRules,
    reason: str,
    called: frozenset[str] = frozenset(),
) -> Plan:
    """Plan which nodes to switch so that ``wanted_on`` are on, or the floor if that is higher.

    Nodes that are on their way up, or will be booted as soon as they are off, count as on. ``called`` are those that
    jobs need by name: they stay on, and are woken first, and though enough others are on, which these jobs can't use.
    """
    target = max(wanted_on, rules.floor)
    awake = sum(_is_awake(node) for node in nodes)
    called_up = sum(node.name in called and not _is_awake(node) for node in nodes)
    missing = max(target - awake, called_up)
    if missing > 0:
        reason = reason if target - awake >= called_up else CALLED
        is_floor = awake < rules.floor
        return _wake(nodes, missing, now_s=now_s, rules=rules, reason=reason, is_floor=is_floor, called=called)
    serving = sum(node.phase is Phase.ON for node in nodes)
    return _sleep(nodes, serving - target, now_s=now_s, rules=rules, reason=reason, called=called)


def _is_awake(node: NodePower) -> bool:
    return node.phase in (Phase.ON, Phase.BOOTING) or (node.phase is Phase.DRAINING and node.is_wanted)


def _wake(
    nodes: Sequence[NodePower],
    count: int,
    *,
    now_s: float,
    rules: FleetRules,
    reason: str,
    is_floor: bool,
    called: frozenset[str],
) -> Plan:
    """Choose nodes to wake: named ones first, then those that need no boot, then those off for the longest time."""
    called_back = [node for node in nodes if node.phase is Phase.DRAINING and not node.is_stopping]
    going_off = [node for node in nodes if node.phase is Phase.DRAINING and node.is_stopping and not node.is_wanted]
    rested = (
        node for node in nodes if node.phase is Phase.OFF and (is_floor or now_s - node.since_s >= rules.min_off_s)
    )
    off = sorted(rested, key=lambda node: (node.name not in called, node.since_s, node.name))
    room = rules.booting_at_once - sum(node.phase is Phase.BOOTING or node.is_wanted for node in nodes)
    booted = [*off, *going_off][: max(0, room)]
    ready = [*sorted(called_back, key=lambda node: -node.since_s), *booted]
    chosen = sorted(ready, key=lambda node: node.name not in called)[:count]
    wishes = tuple(Wanted(node=node.name, now_s=now_s, is_on=True, reason=reason) for node in chosen)
    return Plan(wishes=wishes, short=count - len(wishes))


def _sleep(
    nodes: Sequence[NodePower], count: int, *, now_s: float, rules: FleetRules, reason: str, called: frozenset[str]
) -> Plan:
    if count <= 0:
        return Plan(wishes=())
    stays: dict[str, str] = {}
    able: list[NodePower] = []
    for node in nodes:
        if node.phase is not Phase.ON:
            continue
        why_not = CALLED if node.name in called else may_not_sleep(node, now_s=now_s, rules=rules)
        if why_not:
            stays[node.name] = why_not
        else:
            able.append(node)
    # Nodes without others' memory need no migration; of these the one that was idle longest.
    able.sort(key=lambda node: (_slabs(node), node.empty_since_s, node.name))
    able, later = _one_lender(nodes, able)
    stays |= {node.name: "others' memory moves off one node at a time" for node in later}
    room = min(count, _room(nodes, now_s, rules))
    stays |= {node.name: "the rate at which nodes may go off" for node in able[room:count]}
    wishes = tuple(Wanted(node=node.name, now_s=now_s, is_on=False, reason=reason) for node in able[:room])
    return Plan(wishes=wishes, stays=stays)


def _one_lender(nodes: Iterable[NodePower], able: Sequence[NodePower]) -> tuple[list[NodePower], list[NodePower]]:
    """Split donors into those that may go now and those that must wait, as each counted on the same free room."""
    is_moving = any(node.phase is Phase.DRAINING and _slabs(node) for node in nodes)
    lenders = [node for node in able if _slabs(node)]
    later = lenders if is_moving else lenders[1:]
    return [node for node in able if node not in later], later


def _slabs(node: NodePower) -> int:
    return node.holdings.foreign_slabs if node.holdings is not None else 0


def may_not_sleep(node: NodePower, *, now_s: float, rules: FleetRules) -> str:
    """Why a node that is on may not go off now, in words; empty: it may. Foreign slabs with room elsewhere move."""
    held = node.holdings
    reasons = (
        (node.name in rules.always_on, "always on by choice"),
        (node.is_pinned, "did not go off the last time"),
        (held is None or not node.boot_id, "nobody knows what stands on it"),
        (held is not None and held.jobs > 0, "has a job"),
        (held is not None and held.reservations > 0, "is reserved"),
        (held is not None and not held.is_movable, "lends memory that other donors have no room for"),
        (now_s - node.since_s < rules.min_on_s, "has just come up"),
        (node.stay_until_s is not None and now_s < node.stay_until_s, "could not be emptied"),
        (_stops(node.stops_s, now_s, DAY_S) >= rules.stops_per_node_per_day, "went off often enough today"),
    )
    return next((why for is_so, why in reasons if is_so), "")


def _room(nodes: Sequence[NodePower], now_s: float, rules: FleetRules) -> int:
    draining = sum(node.phase is Phase.DRAINING for node in nodes)
    emptying = sum(node.phase is Phase.DRAINING and not node.is_stopping for node in nodes)
    # Those that are still being emptied will be told to stop as well.
    stops = sum(_stops(node.stops_s, now_s, HOUR_S) for node in nodes) + emptying
    return max(0, min(rules.draining_at_once - draining, rules.stops_per_hour - stops))


def _stops(stops_s: Iterable[float], now_s: float, window_s: float) -> int:
    return sum(now_s - at_s < window_s for at_s in stops_s)
