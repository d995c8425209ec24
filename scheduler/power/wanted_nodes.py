"""Wanted number of nodes: asks an energy policy once in each interval. PURE."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from farside.scheduler.energy.forecast_lesson import Fit, learned_from
from farside.scheduler.energy.job_arrival import nodes_lacking
from farside.scheduler.energy.learning_policy import recall
from farside.scheduler.energy.policy import EnergyPolicy, Seen, Target
from farside.scheduler.power.state import NodePower, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Current number of nodes of the cluster: total, powered and busy.

    Attributes:
        busy: Have a job or a reservation; one that was never looked at counts as busy.
        lacking: Others that waiting jobs would need.
        powered: On, or on their way.
        total: All that could be on; failed ones cannot.
    """

    now_s: float
    busy: int
    lacking: int
    powered: int
    total: int

    @property
    def needed(self) -> int:
        """Nodes that jobs need; at most all nodes."""
        return min(self.total, self.busy + self.lacking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Wanted number of nodes, with the reason."""

    nodes: int
    reason: str


class Demand(Protocol):
    """Source of the wanted number of nodes, asked by the power controller in each turn."""

    def wish(self, now: Occupancy) -> Wish:
        """Wanted number of nodes now."""
        ...


class PolicyDemand:
    """Wanted nodes by an energy policy: one decision in each interval, and new jobs never wait for it.

    Turns that were missed count as if nothing had changed.

    Args:
        policy: Has seen nothing yet.
        step_s: The interval that it counts in.
        past: Busy nodes of the intervals before now, for it to learn from; with any it decides at once.
        first: What is wished until it has decided; None: all nodes.
        kept: How many intervals `heard` remembers.
    """

    def __init__(
        self,
        policy: EnergyPolicy,
        *,
        step_s: float,
        past: Sequence[float] = (),
        first: Wish | None = None,
        kept: int = 0,
    ) -> None:
        self._first = first
        self._policy = policy
        self._step_s = step_s
        self._past = tuple(past)
        self._heard = deque(self._past, maxlen=kept)
        self._is_learned = not self._past
        self._start_s = math.nan
        self._step = 0
        self._most = 0
        self._target: Target | None = None

    @property
    def heard(self) -> tuple[float, ...]:
        """Busy nodes of the newest intervals that are over, the past's among them, the newest last."""
        return tuple(self._heard)

    @property
    def heard_to_s(self) -> float:
        """When the newest of them ended; NaN before the first wish."""
        return self._start_s + (self._step - len(self._past)) * self._step_s

    def learn(self, total: float, fit: Fit = learned_from) -> None:
        """Show the policy its past, for this number of nodes. Takes seconds; otherwise the first wish does this."""
        if not self._is_learned:
            recall(self._policy, self._past, total, fit)
            self._step = len(self._past)
            self._is_learned = True

    def wish(self, now: Occupancy) -> Wish:
        """Last decision of the policy, or the need of the jobs if higher. [helios Algorithm 2, JobArrivalCheck]"""
        if math.isnan(self._start_s):
            self.learn(float(now.total))
            self._start_s = now.now_s
            if self._past:
                self._most = now.needed
                self._target = self._policy.target(float(now.powered))
        while now.now_s >= self.heard_to_s + self._step_s:
            active = float(max(self._most, 0))
            self._policy.watch(Seen(step=self._step, active=active, total=float(now.total)))
            self._heard.append(active)
            self._step += 1
            self._target = self._policy.target(float(now.powered))
            self._most = now.needed
        self._most = max(self._most, now.needed)
        wished = self._wished(now)
        if nodes_lacking(now.needed, wished.nodes):
            return Wish(nodes=now.needed, reason=f"jobs need {now.needed} nodes now")
        return wished

    def _wished(self, now: Occupancy) -> Wish:
        if self._target is not None:
            return Wish(nodes=math.ceil(self._target.nodes - 1e-9), reason=self._target.reason)
        return self._first or Wish(nodes=now.total, reason="the first interval is not over")


def occupancy(nodes: Sequence[NodePower], now_s: float, *, lacking: int = 0) -> Occupancy:
    """Occupancy of the nodes, as a policy sees it."""
    busy = powered = total = 0
    for node in nodes:
        held = node.holdings
        is_up = node.phase in (Phase.ON, Phase.DRAINING)
        busy += is_up and (held is None or held.jobs + held.reservations > 0)
        powered += node.phase in (Phase.ON, Phase.BOOTING) or (node.phase is Phase.DRAINING and node.is_wanted)
        total += node.phase is not Phase.FAILED
    return Occupancy(now_s=now_s, busy=busy, lacking=lacking, powered=powered, total=total)
