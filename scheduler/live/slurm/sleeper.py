"""Lets idle nodes of a Slurm sleep: the energy policy, asked each turn with what Slurm shows."""

import math
from collections.abc import Iterable, Mapping

from farside.config import SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.energy.power.demand import PolicyDemand, occupancy
from farside.scheduler.energy.power.fleet import plan
from farside.scheduler.energy.power.state import NodePower, Phase
from farside.scheduler.live.power.rules import fleet_rules, online_policy
from farside.scheduler.live.slurm import power
from farside.scheduler.live.slurm.action import PowerAction
from farside.scheduler.live.slurm.snapshot import SlurmNode, Traits


class Sleeper:
    """The nodes' power, as Slurm shows it, and what to change.

    Raises:
        ConfigError: The policy or its settings can't be used.
    """

    def __init__(self, config: SlurmConfig) -> None:
        self._config = config
        self._make_policy = online_policy(config)
        self._rules = fleet_rules(config)
        self._fleet: Mapping[str, NodePower] = {}
        self._slept = power.Slept()
        self._demand: PolicyDemand | None = None
        self._since_s = math.nan

    def check(self, traits: Traits) -> None:
        """Whether this Slurm can switch nodes.

        Raises:
            ConfigError: It is told to, and can't.
        """
        if self._make_policy is not None and not traits.has_power_saving:
            raise ConfigError(
                f"power: is '{self._config.power}', and slurm.conf has no SuspendProgram",
                hint="give it SuspendProgram, ResumeProgram and a long SuspendTime, or set power to none",
            )

    def wishes(self, nodes: Iterable[SlurmNode], now_s: float) -> tuple[PowerAction, ...]:
        """Which nodes are to change, by the policy, the floor and the rates."""
        nodes = tuple(nodes)
        self._fleet = power.fleet_of(self._fleet, nodes, now_s)
        self._slept = power.slept(self._slept, self._fleet, now_s)
        if self._make_policy is None:
            return ()
        if self._demand is None:
            self._demand = PolicyDemand(self._make_policy(len(nodes)), step_s=self._config.power_step_s)
            self._since_s = now_s
        fleet = tuple(self._fleet.values())
        wish = self._demand.wish(occupancy(fleet, now_s, lacking=power.lacking(nodes)))
        if now_s - self._since_s < self._config.power_step_s:
            return ()  # it has not seen a whole interval yet, and wishes all on
        return power.actions_of(plan(fleet, wish.nodes, now_s=now_s, rules=self._rules, reason=wish.reason).wishes)

    @property
    def asleep(self) -> tuple[str, ...]:
        """The nodes that are off."""
        return tuple(sorted(node.name for node in self._fleet.values() if node.phase is Phase.OFF))

    @property
    def saved_kwh(self) -> float:
        """What they have not drawn since this process began, without cooling."""
        return self._slept.node_s * self._config.idle_w / 3.6e6
