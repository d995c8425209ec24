"""Keeps as many nodes on as are wanted, beside the brain that leads: what stands on nodes comes from the log.

How it works
  The state machine and the loop are those of `scheduler/energy/power`. Here they get their owners: what a node holds is
  what the log says, closing a node is an entry that the brain answers by another (`NodeClosed`), beats are the agents'
  connections. Every order is in the log before a BMC hears of it, with the generation of the brain beside which it was
  given; once another leads, such an entry counts for nothing, and the order is dropped.

  Of several managers the one whose brain leads does this. When that changes, or nodes come that can be switched, all of
  it begins anew from the log.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from farside import admin
from farside.errors import FarsideError, PeerError
from farside.log import get_log
from farside.scheduler.energy.power.demand import Occupancy, PolicyDemand, Wish
from farside.scheduler.energy.power.drive.driver import PowerDriver
from farside.scheduler.energy.power.drive.dry_run import DryRunDriver
from farside.scheduler.energy.power.drive.keeper import PowerKeeper
from farside.scheduler.energy.power.state import Holdings, NodePower, Power
from farside.scheduler.live.brain import ASK
from farside.scheduler.live.event import Event, NodesWanted, PowerChanged
from farside.scheduler.live.follow import LiveLog
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.overview import Sensed
from farside.scheduler.live.power.lack import lacked
from farside.scheduler.live.power.note import PowerNote, is_news, note_of, power_of
from farside.scheduler.live.power.past import busy_nodes, past_begin_s
from farside.scheduler.live.power.setup import PowerSetup

CAUSE = "power"
BEAT_PERIOD_S = 1.0
ASK_LIMIT_S = 5.0
NOBODY = "none"

log = get_log("manager.power")


class Agents(Protocol):
    """The agents' connections; `AgentSessions`."""

    def beats(self) -> Mapping[str, str]:
        """The boot of each node that is up."""
        ...

    def sensed(self) -> Mapping[str, Sensed]:
        """What each agent that is connected here told last."""
        ...


class LivePower:
    """The power of the nodes that can be switched.

    Args:
        setup: What was told of it.
        live: The log.
        agents: Who is up.
        folder: Where the brain of this manager is asked.
    """

    def __init__(self, setup: PowerSetup, live: LiveLog, agents: Agents, folder: Path) -> None:
        self.setup = setup
        self._live = live
        self._agents = agents
        self._folder = folder
        self.keeper: PowerKeeper | None = None
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
            if not names or generation != self._live.state.generation:
                await asyncio.sleep(BEAT_PERIOD_S)
                continue
            await self._keep(generation, names)

    def pardon(self, name: str) -> None:
        """An operator has mended a node.

        Raises:
            PeerError: Another manager keeps the nodes' power, or nobody does.
            ConfigError: No such node can be switched.
        """
        if self.keeper is None:
            raise PeerError("nobody keeps the nodes' power here", hint="ask the manager that leads")
        self.keeper.pardon(name)

    # ------------------------------------------------------------------ while this brain leads

    def _known_names(self) -> frozenset[str]:
        return frozenset(self.setup.drivers) & frozenset(self._live.state.nodes)

    async def _own_generation(self) -> int:
        """Of the brain beside us; -1: it does not lead, or does not answer."""
        try:
            told = await admin.ask(self._folder / ASK, "status", timeout_s=ASK_LIMIT_S)
        except FarsideError:
            return -1
        return int(told["generation"])

    async def _keep(self, generation: int, names: frozenset[str]) -> None:
        """Keeps these nodes until another brain leads, or there are others."""
        setup, state, now_s = self.setup, self._live.state, self._live.now_s()
        demand = _Wishes(await self._demand(names, now_s))
        drivers: Mapping[str, PowerDriver] = {name: setup.drivers[name] for name in sorted(names)}
        if setup.is_dry_run:
            dry = {name: DryRunDriver(name) for name in sorted(names)}
            hands: _Hands = _Dry(self._live, self._agents, dry)
            drivers = dry
        else:
            hands = _Real(self._live, self._agents, setup, generation, demand)
        self.keeper = keeper = PowerKeeper(
            drivers, inventory=hands, demand=demand, lacking=lambda: len(hands.called()), called=hands.called,
            clock=_LogClock(self._live), rules=setup.rules, patience=setup.patience, every_s=setup.every_s,
            known=hands.known(state, names, now_s), record=hands.record,
        )  # fmt: skip
        log.info("keeps the nodes' power", generation=generation, nodes=len(names), dry_run=setup.is_dry_run)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(keeper.run())
                await asyncio.sleep(0)
                while state.generation == generation and self._known_names() == names:
                    for name, boot_id in hands.beats().items():
                        keeper.beat(name, boot_id)
                    if not setup.is_dry_run:
                        await self._tell_wish(demand)
                    await asyncio.sleep(BEAT_PERIOD_S)
                running.cancel()
        finally:
            self.keeper = None

    async def _demand(self, names: frozenset[str], now_s: float) -> PolicyDemand:
        setup, jobs = self.setup, list(self._live.state.jobs.values())
        first_s = jobs[0].submit_s if jobs else now_s
        begin_s = past_begin_s(first_s, now_s, setup.step_s)
        past = await asyncio.to_thread(busy_nodes, jobs, names, begin_s, now_s, setup.step_s)
        assert setup.make_policy is not None, "somebody decides"
        told = self._live.state.wanted
        first = None if told is None or setup.is_dry_run else Wish(nodes=told.nodes, reason=told.reason)
        return PolicyDemand(setup.make_policy(len(names)), step_s=setup.step_s, past=past, first=first)

    async def _tell_wish(self, demand: "_Wishes") -> None:
        await self._write(demand.untold(self._live.state))

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
                note=PowerNote(since_s=now_s, reason="no policy lets nodes sleep any more", number=node.power.number),
            )
            for node in closed.values()
            if node.is_up and node.power is not None
        )


class _Wishes:
    """A demand, and what it wished last."""

    def __init__(self, demand: PolicyDemand) -> None:
        self._demand = demand
        self._last: NodesWanted | None = None
        self._on_its_way: NodesWanted | None = None

    def wish(self, now: Occupancy) -> Wish:
        wish = self._demand.wish(now)
        self._last = NodesWanted(nodes=wish.nodes, needed=now.needed, reason=wish.reason)
        return wish

    def untold(self, state: LiveState) -> list[Event]:
        """The last wish, if the log has another number; of several that ask at a time, the first gets it."""
        last, told = self._last, state.wanted
        if last is None or last is self._on_its_way or (told is not None and told.nodes == last.nodes):
            return []
        self._on_its_way = last
        return [last]


class _LogClock:
    """The log's time: seconds since the epoch that only grow, over restarts too."""

    def __init__(self, live: LiveLog) -> None:
        self._live = live

    def now_s(self) -> float:
        return self._live.now_s()

    async def sleep_until_s(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - self.now_s()))


# ---------------------------------------------------------------------------------------------- owners


class _Hands:
    """What stands on nodes, by the log. Looked up once for each of its entries."""

    def __init__(self, live: LiveLog, agents: Agents) -> None:
        self._live = live
        self._agents = agents
        self._seq = -1
        self._jobs: dict[str, int] = {}
        self._reserved: frozenset[str] = frozenset()

    async def holdings(self, node: str) -> Holdings:
        self._look()
        known = self._live.state.nodes[node]
        sensed = self._agents.sensed().get(node)
        if sensed is None and known.is_up and known.has_power:
            raise PeerError(f"{node}: its agent is not connected here")
        return Holdings(
            closed_by=known.closed_by,
            jobs=max(self._jobs.get(node, 0), len(known.tasks)),
            foreign_slabs=len(sensed.loans) if sensed is not None else 0,
            reservations=int(node in self._reserved),
        )

    def _look(self) -> None:
        state, now_s = self._live.state, self._live.now_s()
        self._reserved = frozenset(
            name for one in state.maintenance.values() if one.is_pending(now_s) for name in one.nodes
        )
        if state.seq == self._seq:
            return
        self._seq, self._jobs = state.seq, {}
        for job in state.live_jobs():
            for name in dict.fromkeys(job.nodes):
                self._jobs[name] = self._jobs.get(name, 0) + 1

    def beats(self) -> Mapping[str, str]:
        return self._agents.beats()

    def called(self) -> frozenset[str]:
        return frozenset()

    def known(self, state: LiveState, names: Iterable[str], now_s: float) -> Mapping[str, NodePower]:
        return {}

    async def record(self, node: NodePower) -> None:
        pass

    async def drain(self, node: str, number: int) -> None:
        pass

    async def open(self, node: str, number: int) -> None:
        pass


class _Real(_Hands):
    """Writes each node's power into the log, which is how the brain hears of it."""

    def __init__(self, live: LiveLog, agents: Agents, setup: PowerSetup, generation: int, wishes: _Wishes) -> None:
        super().__init__(live, agents)
        self._wishes = wishes
        self._setup = setup
        self._generation = generation
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def known(self, state: LiveState, names: Iterable[str], now_s: float) -> Mapping[str, NodePower]:
        return {name: power_of(name, state.nodes[name].power, now_s) for name in names}

    def called(self) -> frozenset[str]:
        found = lacked(self._live.state, self._setup.tenancy, self._live.now_s())
        return frozenset(found) & frozenset(self._setup.drivers)

    async def record(self, node: NodePower) -> None:
        """Writes it, unless the log says so already.

        Raises:
            FarsideError: It is not in the log, or counts for nothing as another brain leads.
        """
        state = self._live.state
        # One at a time of each node: who finds it written must find it in the log, and not on its way there.
        async with self._locks[node.name]:
            note = note_of(node)
            if not is_news(state.nodes[node.name].power, note):
                return
            event = PowerChanged(node=node.name, generation=self._generation, note=note)
            # The wish goes first: who begins anew goes on from it, and does not wake all until it has decided.
            await self._live.write([*self._wishes.untold(state), event], CAUSE)
            if state.generation != self._generation:
                raise PeerError("another brain leads by now")


class _Dry(_Hands):
    """Nodes that are only said to be off. One that has a job is needed, and would have been woken for it."""

    def __init__(self, live: LiveLog, agents: Agents, drivers: Mapping[str, DryRunDriver]) -> None:
        super().__init__(live, agents)
        self._drivers = drivers
        self._closed: dict[str, int] = {}
        self._off: frozenset[str] = frozenset()
        self._boots: dict[str, int] = {}

    async def holdings(self, node: str) -> Holdings:
        held = replace(await super().holdings(node), closed_by=self._closed.get(node, 0))
        is_off = await self._drivers[node].status() is Power.OFF
        if node in self._off and not is_off:
            self._boots[node] = self._boots.get(node, 0) + 1
        self._off = self._off | {node} if is_off else self._off - {node}
        return replace(held, jobs=0) if is_off else held

    def called(self) -> frozenset[str]:
        return frozenset(name for name in self._off if self._jobs.get(name))

    def beats(self) -> Mapping[str, str]:
        up = ((name, boot_id) for name, boot_id in super().beats().items() if name not in self._off)
        return {name: f"{boot_id} {self._boots.get(name, 0)}" for name, boot_id in up}

    async def drain(self, node: str, number: int) -> None:
        self._closed[node] = number

    async def open(self, node: str, number: int) -> None:
        self._closed[node] = 0
