"""Power controller: keeps the wanted number of nodes on. Each turn it observes, decides and acts.

How it works
  Events of all nodes are applied by one task, here. What takes time, a BMC or an owner, is a task of its own that ends
  with exactly one Answer; so a BMC that hangs holds up nobody but its own node. A driver's limit is shorter than
  ``Patience.answer_s``, so an order that the state machine has given up is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace

from farside.clock import Clock
from farside.errors import ConfigError, FarsideError
from farside.log import get_log
from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.fleet import FleetRules, plan
from farside.scheduler.power.inventory import Inventory
from farside.scheduler.power.state import (
    Answer,
    Beat,
    Command,
    Event,
    Holdings,
    NodePower,
    Order,
    Pardon,
    Patience,
    Power,
    Seen,
    Tick,
)
from farside.scheduler.power.state_machine import adopt, step
from farside.scheduler.power.wanted_nodes import Demand, occupancy

log = get_log("scheduler.power")

# Writes down what is known of a node before an order is carried out; raises where it cannot, and then nothing is done.
Record = Callable[[NodePower], Awaitable[None]]


@dataclass(eq=False)
class PowerController:
    """Power controller of a cluster's nodes.

    Args:
        drivers: One a node.
        inventory: Who knows what stands on nodes, and empties them.
        demand: How many nodes are wanted.
        called: Nodes, on or off, that waiting jobs are about to fill, besides those that are busy; the scheduler knows.
        known: Nodes as they were left, by name; the others are adopted.
        record: Keeps what is known; None: nobody does.
        clock: For turns and limits.
        rules: For all nodes together. ``patience``: with each.
        every_s: From turn to turn.

    Attributes:
        stays: Reasons why unneeded nodes stay on, by name, as of the last turn.

    Raises:
        ConfigError: A driver may take longer than its order is waited for.
    """

    drivers: Mapping[str, PowerDriver]
    _: KW_ONLY
    inventory: Inventory
    demand: Demand
    called: Callable[[], frozenset[str]] = frozenset
    known: InitVar[Mapping[str, NodePower] | None] = None
    record: Record | None = None
    clock: Clock
    rules: FleetRules
    patience: Patience
    every_s: float = 10.0
    stays: Mapping[str, str] = field(default_factory=dict, init=False)
    _nodes: dict[str, NodePower] = field(init=False)
    _tasks: asyncio.TaskGroup | None = field(default=None, init=False)

    def __post_init__(self, known: Mapping[str, NodePower] | None) -> None:
        for name, driver in self.drivers.items():
            if driver.limit_s >= self.patience.answer_s:
                hint = f"less than {self.patience.answer_s:g} s, which is how long an order is waited for"
                raise ConfigError(f"{name}: its power driver may take {driver.limit_s:g} s", hint=hint)
        now_s = self.clock.now_s()
        self._nodes = {name: adopt(name, now_s) for name in self.drivers} | dict(known or {})

    @property
    def nodes(self) -> Mapping[str, NodePower]:
        """Current state of each node."""
        return dict(self._nodes)

    def beat(self, name: str, boot_id: str) -> None:
        """Take a heartbeat of a node's agent."""
        if name in self._nodes:
            self._apply(Beat(node=name, now_s=self.clock.now_s(), boot_id=boot_id))

    def pardon(self, name: str) -> None:
        """Clear the failure of a node that an operator has repaired.

        Raises:
            ConfigError: There is no such node.
        """
        if name not in self._nodes:
            raise ConfigError(f"no node is called {name!r}", hint=f"one of {', '.join(sorted(self._nodes))}")
        self._apply(Pardon(node=name, now_s=self.clock.now_s()))

    async def run(self) -> None:
        """Run turns until cancelled; nodes stay as they are."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                while True:
                    await self.turn()
                    await self.clock.sleep_until_s(self.clock.now_s() + self.every_s)
        finally:
            self._tasks = None

    async def turn(self) -> None:
        """Run one turn. Its orders may outlast it."""
        # 1. Observe: what stands on every node.
        seen = await asyncio.gather(*map(self._look, self._nodes))
        # 2. Snapshot: what was seen, and that time has passed.
        for name, holdings in zip(tuple(self._nodes), seen, strict=True):
            if holdings is not None:
                self._apply(Seen(node=name, now_s=self.clock.now_s(), holdings=holdings))
        for name in self._nodes:
            self._apply(Tick(node=name, now_s=self.clock.now_s()))
        # 3. Decide: how many are wanted, and so which change.
        nodes, now_s = tuple(self._nodes.values()), self.clock.now_s()
        # Asked once: were it asked again for the number, a job that is looked at in between would be woken for by name,
        # with the reason of a wish that knows nothing of it.
        called = self.called()
        wish = self.demand.wish(occupancy(nodes, now_s, lacking=len(called)))
        found = plan(nodes, wish.nodes, now_s=now_s, rules=self.rules, reason=wish.reason, called=called)
        self.stays = found.stays
        if found.short:
            log.warning("fewer nodes are on than wanted", wanted=wish.nodes, short=found.short, reason=wish.reason)
        # 4. Act: each order by a task of its own.
        for wanted in found.wishes:
            self._apply(wanted)
        # 5. Record: what no order has written down already.
        await self._record_all()

    async def _record_all(self) -> None:
        if self.record is None:
            return
        for name in self._nodes:
            try:
                await self.record(self._nodes[name])
            except FarsideError as error:
                log.warning("cannot record a node's power state", node=name, error=error)

    async def _look(self, name: str) -> Holdings | None:
        try:
            async with asyncio.timeout(self.patience.answer_s):
                return await self.inventory.holdings(name)
        except (FarsideError, TimeoutError) as error:
            log.warning("cannot read what runs on a node", node=name, error=error)
            return None

    def _apply(self, event: Event) -> None:
        before = self._nodes[event.node]
        node, orders = step(before, event, self.patience)
        self._nodes[event.node] = node
        if node.phase is not before.phase:
            log.info("node power changed", node=node.name, was=before.phase, now=node.phase, reason=node.reason)
        for order in orders:
            self._start(order)

    def _start(self, order: Order) -> None:
        assert self._tasks is not None, "run() is running"
        self._tasks.create_task(self._carry_out(order))

    async def _carry_out(self, order: Order) -> None:
        """Carry out an order, and deliver its one answer."""
        if order.command is not Command.ASK:
            log.info("order sent", node=order.node, number=order.number, command=order.command, reason=order.reason)
        answer = Answer(node=order.node, now_s=0.0, number=order.number)
        try:
            async with asyncio.timeout(self.patience.answer_s):
                if self.record is not None and order.command is not Command.ASK:
                    await self.record(self._nodes[order.node])
                answer = replace(answer, power=await self._do(order))
        except (FarsideError, TimeoutError) as error:
            log.warning("order failed", node=order.node, number=order.number, command=order.command, error=error)
            answer = replace(answer, error=str(error) or "timed out")
        self._apply(replace(answer, now_s=self.clock.now_s()))

    async def _do(self, order: Order) -> Power:
        driver = self.drivers[order.node]
        if order.command is Command.ASK:
            return await driver.status()
        if order.command is Command.DRAIN:
            await self.inventory.drain(order.node, order.number)
        elif order.command is Command.OPEN:
            await self.inventory.open(order.node, order.number)
        elif order.command is Command.SOFT_OFF:
            await driver.soft_off()
        elif order.command is Command.FORCE_OFF:
            await driver.off()
        else:
            await driver.on()
        return Power.UNKNOWN
