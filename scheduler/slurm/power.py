"""The energy policy for Slurm nodes: it lets idle nodes sleep, asked each turn."""

import math
from collections.abc import Iterable, Mapping

from farside.config import SlurmConfig
from farside.errors import ConfigError
from farside.log import get_log
from farside.scheduler.energy.learning_policy import LearningPolicy
from farside.scheduler.power.busy_history import KeptPast, continued, kept_steps
from farside.scheduler.power.fit_thread import Fitter, local_s
from farside.scheduler.power.fleet import plan
from farside.scheduler.power.rules import fleet_rules, online_policy
from farside.scheduler.power.state import NodePower, Phase
from farside.scheduler.power.wanted_nodes import PolicyDemand, occupancy
from farside.scheduler.slurm import node_power as power
from farside.scheduler.slurm.action import PowerAction
from farside.scheduler.slurm.domain import Group
from farside.scheduler.slurm.snapshot import SlurmNode, Traits
from farside.scheduler.slurm.state_file import NODES, StateFiles
from farside.scheduler.state import Job

# What was busy is written down so often at most: intervals may be of a second.
WRITE_EVERY_S = 60.0

_log = get_log("slurm")


def check_power_saving(config: SlurmConfig, traits: Traits) -> None:
    """Whether this Slurm can switch nodes as the settings ask.

    Raises:
        ConfigError: It is told to, and can't.
    """
    if config.power != "none" and not traits.has_power_saving:
        raise ConfigError(
            f"power: is '{config.power}', and slurm.conf has no SuspendProgram",
            hint="give it SuspendProgram, ResumeProgram and a long SuspendTime, or set power to none",
        )


class SlurmPower:
    """The nodes' power, as Slurm shows it, and what to change.

    Args:
        config: What is asked for.
        state_files: Keep the record of busy nodes over restarts.

    Raises:
        ConfigError: The policy or its settings can't be used.
        Unavailable: The policy makes forecasts, and LightGBM is not installed.
    """

    def __init__(self, config: SlurmConfig, state_files: StateFiles) -> None:
        self._config = config
        self._state_files = state_files
        self._make_policy = online_policy(config)
        self._rules = fleet_rules(config)
        self._fleet: Mapping[str, NodePower] = {}
        self._slept_node_s = 0.0
        self._seen_s = math.inf
        self._demand: PolicyDemand | None = None
        self._fitter: Fitter | None = None
        self._has_past = False
        self._since_s = math.nan
        self._kept_to_s = math.nan

    def wishes(
        self, nodes: Iterable[SlurmNode], now_s: float, waiting: Iterable[tuple[Job, Group]] = ()
    ) -> tuple[PowerAction, ...]:
        """Which nodes are to change, by the policy, the floor and the rates, and by the jobs that wait."""
        nodes = tuple(nodes)
        self._fleet = power.fleet_of(self._fleet, nodes, now_s)
        # Nodes count as asleep since the turn before. At the first turn that is infinity, of which max() makes 0.
        self._slept_node_s += len(self.asleep) * max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        if self._make_policy is None:
            return ()
        # Made at the first turn: only Slurm says how many nodes there are.
        demand, fitter = self._demand, self._fitter
        if demand is None or fitter is None:
            demand, fitter = self._begin(len(nodes), now_s)
        fitter.look()
        if self.is_learning:
            return ()
        fleet = tuple(self._fleet.values())
        called = power.nodes_called(nodes, waiting)
        wish = demand.wish(occupancy(fleet, now_s, lacking=len(called)))
        self._keep(demand)
        if not self._has_past and now_s - self._since_s < self._config.power_step_s:
            return ()  # it has not seen a whole interval yet, and wishes all on
        found = plan(fleet, wish.nodes, now_s=now_s, rules=self._rules, reason=wish.reason, called=called)
        return power.actions_of(found.wishes)

    def _begin(self, count: int, now_s: float) -> tuple[PolicyDemand, Fitter]:
        """The policy, which begins to learn what is known of the past."""
        assert self._make_policy is not None, "somebody decides"
        step_s, past = self._config.power_step_s, self._past(now_s)
        policy = self._make_policy(count)
        if isinstance(policy, LearningPolicy):
            # Hours of the day and days of the week are of the time when the record begins.
            policy.begin(local_s(now_s - len(past) * step_s))
        self._demand = PolicyDemand(policy, step_s=step_s, past=past, kept=kept_steps(step_s))
        self._fitter = Fitter(policy)
        self._has_past = bool(past)
        self._since_s = self._kept_to_s = now_s
        if past:
            # In a thread: 28 days take seconds, and a turn must not wait for them.
            self._fitter.learn(self._demand, float(count))
            _log.info("read the record of busy nodes", intervals=len(past))
        return self._demand, self._fitter

    def _past(self, now_s: float) -> tuple[float, ...]:
        """Busy nodes before this process began, from the state file."""
        try:
            kept = self._state_files.nodes()
            return continued(kept, self._config.partitions, now_s, self._config.power_step_s) if kept else ()
        except ConfigError as error:
            _log.warning("the record of busy nodes can't be read; it starts anew", file=NODES, reason=error)
            return ()

    def _keep(self, demand: PolicyDemand) -> None:
        """Writes down what was busy, when another interval is over."""
        if demand.heard and demand.heard_to_s >= self._kept_to_s + max(self._config.power_step_s, WRITE_EVERY_S):
            self._kept_to_s = demand.heard_to_s
            past = KeptPast(
                of=self._config.partitions, end_s=demand.heard_to_s, step_s=self._config.power_step_s,
                active=demand.heard,
            )  # fmt: skip
            self._state_files.keep(NODES, past)

    def close(self) -> None:
        """Fits nothing more."""
        if self._fitter is not None:
            self._fitter.close()

    @property
    def is_learning(self) -> bool:
        """Whether the past that was kept is still being gone through; until then nothing is switched."""
        return self._fitter is not None and self._fitter.is_learning

    @property
    def forecast(self) -> str:
        """Quality of the policy's forecast; empty: there is none."""
        return "" if self._fitter is None else self._fitter.remark

    @property
    def asleep(self) -> tuple[str, ...]:
        """The nodes that are off."""
        return tuple(sorted(node.name for node in self._fleet.values() if node.phase is Phase.OFF))

    @property
    def saved_kwh(self) -> float:
        """Energy saved since this process began, without cooling."""
        return self._slept_node_s * self._config.idle_w / 3.6e6
