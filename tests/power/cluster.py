"""Nodes made up for the controller: an inventory with owners that obey by number, and BMCs in memory."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from farside.errors import PeerError
from farside.scheduler.power.state import Holdings, Power
from farside.scheduler.power.wanted_nodes import Occupancy, Wish


@dataclass
class FakeInventory:
    """What stands on nodes. Slabs of others leave one by one, each time a closed node is looked at."""

    held: dict[str, Holdings]
    highest: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)

    async def drain(self, node: str, number: int) -> None:
        self._close(node, number, closed_by=number)
        self.calls.append(f"drain {node}")

    async def open(self, node: str, number: int) -> None:
        self._close(node, number, closed_by=0)
        self.calls.append(f"open {node}")

    def _close(self, node: str, number: int, *, closed_by: int) -> None:
        if number > self.highest.get(node, 0):
            self.highest[node] = number
            self.held[node] = replace(self.held[node], closed_by=closed_by)

    async def holdings(self, node: str) -> Holdings:
        if node in self.silent:
            raise PeerError(f"{node}: its donor does not answer")
        held = self.held[node]
        if held.closed_by and held.foreign_slabs:
            self.held[node] = replace(held, foreign_slabs=held.foreign_slabs - 1)
            self.calls.append(f"slab leaves {node}")
        return held


class FakeBmc:
    """A node and its BMC. ``hangs``: it takes orders and never answers."""

    limit_s = 1.0

    def __init__(self, *, hangs: bool = False) -> None:
        self.is_up = True
        self.boots = 1
        self.hangs = hangs
        self.calls: list[str] = []

    @property
    def boot_id(self) -> str:
        return f"boot{self.boots}"

    async def on(self) -> None:
        await self._call("on")
        if not self.is_up:
            self.is_up = True
            self.boots += 1

    async def soft_off(self) -> None:
        await self._call("soft-off")
        self.is_up = False

    async def off(self) -> None:
        await self._call("off")
        self.is_up = False

    async def status(self) -> Power:
        await self._call("status")
        return Power.ON if self.is_up else Power.OFF

    async def reading_w(self) -> float | None:
        return None

    async def _call(self, action: str) -> None:
        self.calls.append(action)
        if self.hangs:
            await asyncio.get_running_loop().create_future()


@dataclass
class Wanted:
    """A demand that the test sets."""

    nodes: int
    asked: list[Occupancy] = field(default_factory=list)

    def wish(self, now: Occupancy) -> Wish:
        self.asked.append(now)
        return Wish(nodes=self.nodes, reason="the test")


class SleepingNode:
    """What runs on the machine behind the BMC: an agent that beats while its power is on, with a new id each boot."""

    def __init__(self, power: Path) -> None:
        self._power = power
        self._boots, self._was_on = 1, True

    def boot_id(self) -> str:
        is_on = self._power.read_text().strip() == "1"
        self._boots += is_on and not self._was_on
        self._was_on = is_on
        return f"boot{self._boots}" if is_on else ""
