"""Inventory of nodes for the power controller: what runs on them, which are up, and how a node is closed.

Real ones read the log and write into it; those of a dry run only remember what they would have done.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from farside.errors import PeerError
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.event import Event, NodesWanted, PowerChanged
from farside.scheduler.manager.model.lending import donors_to_keep
from farside.scheduler.manager.model.power_record import is_news, note_of, power_of
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.power.check_setup import PowerSetup
from farside.scheduler.manager.power.nodes_needed import nodes_needed
from farside.scheduler.manager.view.overview import Sensed
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.state import Holdings, NodePower, Power
from farside.scheduler.power.wanted_nodes import Demand, Occupancy, Wish

CAUSE = "power"
ROOM_PERIOD_S = 1.0


class Agents(Protocol):
    """The agents' connections; `AgentSessions`."""

    def beats(self) -> Mapping[str, str]:
        """The boot of each node that is up."""
        ...

    def sensed(self) -> Mapping[str, Sensed]:
        """The last report of each agent that is connected here."""
        ...

    async def power_off(self, node: str) -> None:
        """Has an agent shut its node down.

        Raises:
            PeerError: It is not connected here, or can't.
        """
        ...


class Wishes:
    """A demand, and what it wished last."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._last: NodesWanted | None = None
        self._on_its_way: NodesWanted | None = None

    def wish(self, now: Occupancy) -> Wish:
        """The demand's wishes, kept."""
        wish = self._demand.wish(now)
        self._last = NodesWanted(nodes=wish.nodes, needed=now.needed, reason=wish.reason)
        return wish

    def untold(self, state: LiveState) -> list[Event]:
        """The last wish, if the log has another number; of several that ask at a time, the first gets it."""
        last, told = self._last, state.wanted
        if last is None or last is self._on_its_way or (told is not None and told.nodes == last.nodes):
            return []
        # Each wish is a new object, so `is` says whether this very one was given out.
        self._on_its_way = last
        return [last]


class Inventory:
    """What runs on nodes, by the log. Computed once for each entry."""

    def __init__(self, live: LiveLog, agents: Agents) -> None:
        self._live = live
        self._agents = agents
        self._seq = -1
        self._jobs: Counter[str] = Counter()
        self._kept: frozenset[str] = frozenset()  # nodes that lend what jobs were promised
        self._reserved: frozenset[str] = frozenset()
        self._rooms_s = -math.inf
        self._room: Mapping[str, int] = {}

    async def holdings(self, node: str) -> Holdings:
        """What runs on a node.

        Raises:
            PeerError: Its agent is not connected here: nobody knows what memory it lends.
        """
        self._look()
        known = self._live.state.nodes[node]
        sensed = self._agents.sensed().get(node)
        # Without a report the node may lend memory that others still use, so it must not go off.
        if sensed is None and (known.power is None or known.power.may_be_told_to_stop):
            raise PeerError(f"{node}: its agent is not connected here")
        sensed = sensed or Sensed()
        return Holdings(
            closed_by=known.closed_by,
            # The larger one: jobs that have a place but no process yet, and processes of jobs that have left their
            # place.
            jobs=max(self._jobs[node], len(known.tasks)),
            foreign_slabs=sensed.slabs,
            reservations=int(node in self._reserved),
            services=sensed.holding,
            is_donor_open=sensed.can_close and sensed.closed_by != known.closed_by,
            is_movable=node not in self._kept
            and (not sensed.slabs or (sensed.can_close and self._finds_room(node, sensed.loans))),
        )

    def _finds_room(self, node: str, loans: Mapping[str, int]) -> bool:
        """Whether donors that stay can lend what this node lends; otherwise its borrowers read from their disks."""
        rooms = self._rooms()
        total = sum(rooms.values()) - rooms.get(node, 0)
        lent_bytes, own = sum(loans.values()), {self._donor_name(name): room for name, room in rooms.items()}
        # Nobody borrows from the donor of his own node.
        return lent_bytes <= total and all(many <= total - own.get(borrower, 0) for borrower, many in loans.items())

    def _rooms(self) -> Mapping[str, int]:
        """Memory that donors that stay can still lend, by node; computed once a turn."""
        now_s, nodes = self._live.now_s(), self._live.state.nodes
        if now_s - self._rooms_s >= ROOM_PERIOD_S:
            self._rooms_s = now_s
            lenders = ((name, told) for name, told in self._agents.sensed().items() if told.lends and name in nodes)
            self._room = {name: told.lendable_bytes for name, told in lenders if nodes[name].has_power}
        return self._room

    def _donor_name(self, node: str) -> str:
        """In the memory plane."""
        donor = self._live.state.nodes[node].donor
        return node if donor is None else donor.node

    def _look(self) -> None:
        state, now_s = self._live.state, self._live.now_s()
        self._reserved = frozenset(
            name for one in state.maintenance.values() if one.is_pending(now_s) for name in one.nodes
        )
        # Reservations begin and end by time, without an entry; jobs change only with one.
        if state.seq == self._seq:
            return
        self._seq = state.seq
        self._jobs = Counter(name for job in state.live_jobs() for name in {*job.nodes})
        self._kept = donors_to_keep(state)

    def beats(self) -> Mapping[str, str]:
        """The boot of each node that is up."""
        return self._agents.beats()

    def called(self) -> frozenset[str]:
        """Nodes that waiting jobs are about to fill."""
        return frozenset()

    def known(self, state: LiveState, names: Iterable[str], now_s: float) -> Mapping[str, NodePower]:
        """These nodes as whoever kept them before has left them."""
        return {}

    async def record(self, node: NodePower) -> None:
        """Writes down what is so of a node."""

    async def drain(self, node: str, number: int) -> None:
        """Closes a node. Its record, written just before, says so."""

    async def open(self, node: str, number: int) -> None:
        """Opens a node again. Its record says so."""


class LiveInventory(Inventory):
    """Writes each node's power into the log, which is how the scheduler process hears of it."""

    def __init__(self, live: LiveLog, agents: Agents, setup: PowerSetup, generation: int, wishes: Wishes) -> None:
        super().__init__(live, agents)
        self._wishes = wishes
        self._setup = setup
        self._generation = generation
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def known(self, state: LiveState, names: Iterable[str], now_s: float) -> Mapping[str, NodePower]:
        """As the log says."""
        return {name: power_of(name, state.nodes[name].power, now_s) for name in names}

    def called(self) -> frozenset[str]:
        """The nodes that waiting jobs need and that can be switched."""
        found = nodes_needed(
            self._live.state,
            self._setup.tenancy,
            self._live.now_s(),
            set_aside=self._setup.set_aside,
            partitions=self._setup.partitions,
        )
        return frozenset(found) & frozenset(self._setup.drivers)

    async def record(self, node: NodePower) -> None:
        """Writes it, unless the log says so already.

        Raises:
            FarsideError: It is not in the log, or counts for nothing as another scheduler process leads.
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
            # `PowerChanged` of an older generation changes nothing when it is applied, so the order must not be carried
            # out.
            if state.generation != self._generation:
                raise PeerError("another scheduler process leads by now")


class DryRunInventory(Inventory):
    """Nodes that are only said to be off. One that has a job is needed, and would have been woken for it."""

    def __init__(self, live: LiveLog, agents: Agents, drivers: Mapping[str, DryRunDriver]) -> None:
        super().__init__(live, agents)
        self._drivers = drivers
        self._closed: dict[str, int] = {}
        self._off: frozenset[str] = frozenset()
        self._boots: dict[str, int] = {}

    async def holdings(self, node: str) -> Holdings:
        """What really runs on a node, closed by our own orders; nothing on a node that is said to be off."""
        held = replace(await super().holdings(node), closed_by=self._closed.get(node, 0), is_donor_open=False)
        if held.closed_by and held.is_movable:
            held = replace(held, foreign_slabs=0)  # its borrowers would have moved what they have
        is_off = await self._drivers[node].status() is Power.OFF
        if node in self._off and not is_off:
            self._boots[node] = self._boots.get(node, 0) + 1
        self._off = self._off | {node} if is_off else self._off - {node}
        return replace(held, jobs=0) if is_off else held

    def called(self) -> frozenset[str]:
        """Nodes that are said to be off and have a job: it would have called them."""
        return frozenset(name for name in self._off if self._jobs[name])

    def beats(self) -> Mapping[str, str]:
        """The boots of nodes that are not said to be off, with how often they are said to have booted."""
        up = ((name, boot_id) for name, boot_id in super().beats().items() if name not in self._off)
        return {name: f"{boot_id} {self._boots.get(name, 0)}" for name, boot_id in up}

    async def drain(self, node: str, number: int) -> None:
        """Only remembers it."""
        self._closed[node] = number

    async def open(self, node: str, number: int) -> None:
        """Only remembers it."""
        self._closed[node] = 0
