"""The power controller beside the leading scheduler process: it keeps as many nodes on as are wanted.

How it works
  The state machine and the loop are those of `scheduler/energy/power`. Here they get their owners: what a node holds is
  what the log says, closing a node is an entry that the scheduler process answers by another (`NodeClosed`), beats are
  the agents' connections. Every order is in the log before a BMC hears of it, with the generation of the scheduler
  process beside which it was given; once another leads, such an entry counts for nothing, and the order is dropped.

  Of several managers the one whose scheduler process leads does this. When that changes, or nodes come that can be
  switched, all of it begins anew from the log.
"""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from farside import admin
from farside.errors import FarsideError
from farside.log import get_log
from farside.scheduler.energy.learning_policy import LearningPolicy
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.event import Event, PowerChanged
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.power.busy_nodes import busy_nodes
from farside.scheduler.manager.power.check_setup import PowerSetup
from farside.scheduler.manager.power.inventory import CAUSE, Agents, DryRunInventory, Inventory, LiveInventory, Wishes
from farside.scheduler.power.busy_history import past_begin_s
from farside.scheduler.power.controller import PowerController
from farside.scheduler.power.driver.agent import ByAgent
from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.driver.wake_on_lan import WakeOnLanDriver
from farside.scheduler.power.fit_thread import Fitter, local_s
from farside.scheduler.power.wanted_nodes import PolicyDemand, Wish

BEAT_PERIOD_S = 1.0
ASK_LIMIT_S = 5.0
NOBODY = "none"

log = get_log("manager.power")


class LivePower:
    """The power of the nodes that can be switched.

    Args:
        setup: What was told of it.
        live: The log.
        agents: Who is up.
        folder: Where the scheduler process of this manager is asked.
    """

    def __init__(self, setup: PowerSetup, live: LiveLog, agents: Agents, folder: Path) -> None:
        self.setup = setup
        self._live = live
        self._agents = agents
        self._folder = folder
        self.controller: PowerController | None = None
        self._fitter: Fitter | None = None
        self._told: frozenset[str] = frozenset()  # of which nodes it was said that nobody wakes them

    async def run(self) -> None:
        """Keeps them until it is cancelled."""
        while True:
            if self.setup.policy == NOBODY:
                await self._open_again()
                await asyncio.sleep(self.setup.every_s)
                continue
            generation = await self._own_generation()
            names = self._known_names()
            # Both have to agree: the scheduler process may lead already while this log has not been read so far, or the
            # other way round.
            if not names or generation != self._live.state.generation:
                await asyncio.sleep(BEAT_PERIOD_S)
                continue
            await self._keep(generation, names)

    @property
    def forecast(self) -> str:
        """Quality of the policy's forecast; empty: there is none, or another manager leads."""
        return "" if self._fitter is None else self._fitter.remark

    # ------------------------------------------------------------------ while this scheduler process leads

    def _known_names(self) -> frozenset[str]:
        return frozenset(self.setup.drivers) & frozenset(self._live.state.nodes)

    async def _own_generation(self) -> int:
        """Generation of the scheduler process beside us; -1: it does not lead, or does not answer."""
        try:
            told = await admin.ask(self._folder / ASK, "status", timeout_s=ASK_LIMIT_S)
        except FarsideError:
            return -1
        return int(told["generation"])

    async def _keep(self, generation: int, names: frozenset[str]) -> None:
        """Keeps these nodes until another scheduler process leads, or there are others."""
        assert self.setup.make_policy is not None, "somebody decides"
        policy = self.setup.make_policy(len(names))
        self._fitter = fitter = Fitter(policy)
        try:
            demand = Wishes(await self._demand(policy, fitter, names, self._live.now_s()))
            await self._keep_by(demand, fitter, generation, names)
        finally:
            # The thread that learns ends with the loop; the next one begins with a policy of its own.
            fitter.close()
            self._fitter = None

    async def _keep_by(self, demand: "Wishes", fitter: Fitter, generation: int, names: frozenset[str]) -> None:
        setup, state, now_s = self.setup, self._live.state, self._live.now_s()
        drivers: Mapping[str, PowerDriver] = {name: self._driver(name) for name in sorted(names)}
        if setup.is_dry_run:
            dry = {name: DryRunDriver(name) for name in sorted(names)}
            inventory: Inventory = DryRunInventory(self._live, self._agents, dry)
            drivers = dry
        else:
            inventory = LiveInventory(self._live, self._agents, setup, generation, demand)
        self.controller = controller = PowerController(
            drivers, inventory=inventory, demand=demand,
            called=inventory.called, clock=_LogClock(self._live), rules=setup.rules, patience=setup.patience,
            every_s=setup.every_s, known=inventory.known(state, names, now_s), record=inventory.record,
        )  # fmt: skip
        log.info("the power controller started", generation=generation, nodes=len(names), dry_run=setup.is_dry_run)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(controller.run())
                # One turn of the loop, so that the controller has begun before it gets its first beats.
                await asyncio.sleep(0)
                # Steps each second: learn, pass on who is up, write the wish; the loop is left when another leads, or
                # nodes come or go.
                while state.generation == generation and self._known_names() == names:
                    fitter.look()
                    for name, boot_id in inventory.beats().items():
                        controller.beat(name, boot_id)
                    if not setup.is_dry_run:
                        await self._write(demand.untold(self._live.state))
                    await asyncio.sleep(BEAT_PERIOD_S)
                running.cancel()
        finally:
            self.controller = None

    def _driver(self, name: str) -> PowerDriver:
        driver = self.setup.drivers[name]
        if isinstance(driver, WakeOnLanDriver) and not driver.program:
            return ByAgent(name, driver, self._agents.power_off)
        return driver

    async def _demand(self, policy: EnergyPolicy, fitter: Fitter, names: frozenset[str], now_s: float) -> PolicyDemand:
        """The policy as a demand, once it has learned what the log has of the past."""
        setup, jobs = self.setup, list(self._live.state.jobs.values())
        first_s = jobs[0].submit_s if jobs else now_s
        begin_s = past_begin_s(first_s, now_s, setup.step_s)
        # In a thread, with a list of its own: the log goes on while the past of many jobs is added up.
        past = await asyncio.to_thread(busy_nodes, jobs, names, begin_s, now_s, setup.step_s)
        told = self._live.state.wanted
        # Goes on from the last wish in the log, so that a restart does not wake every node until the policy has
        # decided.
        first = None if told is None or setup.is_dry_run else Wish(nodes=told.nodes, reason=told.reason)
        if isinstance(policy, LearningPolicy):
            policy.begin(local_s(begin_s))
        demand = PolicyDemand(policy, step_s=setup.step_s, past=past, first=first)
        await asyncio.wrap_future(fitter.learn(demand, float(len(names))))
        return demand

    async def _write(self, events: Iterable[Event]) -> None:
        try:
            await self._live.write(tuple(events), CAUSE)
        except FarsideError as error:
            log.error("could not be written", what="the nodes' power", reason=error)

    # ------------------------------------------------------------------ when nobody shall sleep

    async def _open_again(self) -> None:
        """Nodes that are closed or asleep from when there was a policy: those that are up serve again."""
        state, now_s = self._live.state, self._live.now_s()
        closed = {node.name: node for node in state.nodes.values() if not node.has_power}
        asleep = frozenset(name for name, node in closed.items() if not node.is_up)
        if asleep - self._told:
            log.warning("nodes are asleep, and nobody wakes them: switch them on", nodes=", ".join(sorted(asleep)))
        self._told = asleep
        await self._write(
            PowerChanged(
                node=node.name,
                generation=state.generation,
                note=NodePowerRecord(
                    since_s=now_s, reason="no policy lets nodes sleep any more", number=node.power.number
                ),
            )
            for node in closed.values()
            if node.is_up and node.power is not None
        )


class _LogClock:
    """The log's time: seconds since the epoch that only grow, over restarts too."""

    def __init__(self, live: LiveLog) -> None:
        self._live = live

    def now_s(self) -> float:
        return self._live.now_s()

    async def sleep_until_s(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - self.now_s()))
