"""Nodes of one virtual cluster in a simulation with sleep: which are on, boot and sleep, and since when. PURE."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.node_set import bits
from farside.scheduler.nodes import NodeSets
from farside.scheduler.power.fleet import DAY_S
from farside.scheduler.power.state import Holdings, NodePower, Phase
from farside.scheduler.state import Demand, Node


@dataclass(slots=True)
class Pool:
    """Nodes of one virtual cluster, by index: those on, those booting and until when; the others sleep.

    Attributes:
        needed: The most nodes that jobs needed at once since the last check.
        idle_since_s: Since when nodes that are on have no job.
    """

    nodes: tuple[Node, ...]
    policy: EnergyPolicy
    since_s: float
    on: set[int] = field(default_factory=set)
    booting: dict[int, float] = field(default_factory=dict)
    next_check_s: float = 0.0
    checks: int = 0
    needed: float = 0.0
    woken_since_check: int = 0
    wakeups: int = 0
    woken_nodes: int = 0
    asleep_node_s: float = 0.0
    idle_since_s: dict[int, float] = field(default_factory=dict)
    _changed_s: dict[int, float] = field(default_factory=dict)  # when a node began to boot, came on or went off
    _stops_s: dict[int, tuple[float, ...]] = field(default_factory=dict)
    _sets: NodeSets = field(init=False)
    _fits: dict[Demand, Mapping[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._sets = NodeSets(self.nodes)

    @property
    def asleep(self) -> list[int]:
        """Nodes that sleep."""
        return [at for at in range(len(self.nodes)) if at not in self.on and at not in self.booting]

    def fits(self, demand: Demand) -> Mapping[int, int]:
        """GPUs of a demand by node, were the node empty."""
        if demand not in self._fits:
            places = self._sets.capacities(demand)
            self._fits[demand] = {at: gpus for gpus, nodes in places for at in bits(nodes)}
        return self._fits[demand]

    def pass_to(self, now_s: float) -> None:
        """Count the sleep until now."""
        self.asleep_node_s += (now_s - self.since_s) * (len(self.nodes) - len(self.on) - len(self.booting))
        self.since_s = now_s

    def note_idle(self, idle: Collection[int], now_s: float) -> None:
        """Note which nodes are on and have no job."""
        self.idle_since_s = {at: self.idle_since_s.get(at, now_s) for at in idle}

    def boot(self, chosen: Collection[int], now_s: float, ready_s: float) -> None:
        """Wake nodes."""
        self.booting.update(dict.fromkeys(chosen, ready_s))
        self._changed_s.update(dict.fromkeys(chosen, now_s))
        self.woken_since_check += len(chosen)
        self.woken_nodes += len(chosen)

    def arrive(self, now_s: float) -> bool:
        """Put nodes that have booted on; whether there are any."""
        ready = [at for at, ready_s in self.booting.items() if ready_s <= now_s]
        if ready:
            self.pass_to(now_s)
            for at in ready:
                del self.booting[at]
            self.on.update(ready)
            self._changed_s.update(dict.fromkeys(ready, now_s))
        return bool(ready)

    def sleep(self, chosen: Collection[int], now_s: float) -> None:
        """Put nodes to sleep."""
        self.on.difference_update(chosen)
        for at in chosen:
            self._changed_s[at] = now_s
            past = (at_s for at_s in self._stops_s.get(at, ()) if now_s - at_s < DAY_S)
            self._stops_s[at] = (*past, now_s)

    def present(self) -> tuple[Node, ...]:
        """The nodes that take jobs."""
        return tuple(self.nodes[at] for at in sorted(self.on))

    def power(self, reserved: Collection[int]) -> list[NodePower]:
        """The nodes as the rules of the fleet see them. ``reserved``: nodes that something counts on."""
        return [self._power(at, is_reserved=at in reserved) for at in range(len(self.nodes))]

    def _power(self, at: int, *, is_reserved: bool) -> NodePower:
        phase = Phase.ON if at in self.on else Phase.BOOTING if at in self.booting else Phase.OFF
        is_busy = phase is Phase.ON and at not in self.idle_since_s
        return NodePower(
            name=self.nodes[at].name,
            phase=phase,
            # At the beginning nobody knows since when: as far as the rules go, long ago.
            since_s=self._changed_s.get(at, -math.inf),
            boot_id="simulated",
            holdings=Holdings(jobs=int(is_busy), reservations=int(is_reserved)),
            empty_since_s=self.idle_since_s.get(at, math.inf),
            stops_s=self._stops_s.get(at, ()),
        )
