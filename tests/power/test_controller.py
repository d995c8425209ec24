"""The loop that keeps nodes on and off, on a virtual clock."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from farside.errors import ConfigError
from farside.scheduler.power.controller import PowerController
from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.power.state import Holdings, Patience, Phase
from tests.power.cluster import FakeBmc, FakeInventory, Wanted
from tests.support.virtual_clock import VirtualClock

RULES = FleetRules(floor=1, min_on_s=0.0)


class Plant:
    """A cluster of made-up nodes and its controller; time passes in turns."""

    def __init__(self, names: str, *, wanted: int, rules: FleetRules = RULES, hanging: str = "") -> None:
        self.clock = VirtualClock(1000.0)
        self.bmcs = {name: FakeBmc(hangs=name in hanging) for name in names}
        self.inventory = FakeInventory({name: Holdings() for name in names})
        self.demand = Wanted(wanted)
        self.called: frozenset[str] = frozenset()
        drivers: dict[str, PowerDriver] = dict(self.bmcs)
        self.controller = PowerController(
            drivers, inventory=self.inventory, demand=self.demand, clock=self.clock, rules=rules,
            called=lambda: self.called, patience=Patience(),
        )  # fmt: skip

    async def turns(self, count: int) -> None:
        for _ in range(count):
            for name, bmc in self.bmcs.items():
                if bmc.is_up and name in self.controller.nodes:
                    self.controller.beat(name, bmc.boot_id)
            await self.clock.advance(10.0)

    def phases(self) -> dict[str, Phase]:
        return {name: node.phase for name, node in self.controller.nodes.items()}

    def play(self, story: Callable[[], Coroutine[None, None, None]]) -> None:
        async def main() -> None:
            running = asyncio.ensure_future(self.controller.run())
            await asyncio.sleep(0)
            try:
                await story()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        asyncio.run(main())


def test_a_node_that_is_not_wanted_goes_off_and_comes_back_when_it_is() -> None:
    plant = Plant("abc", wanted=2)

    async def story() -> None:
        await plant.turns(8)
        assert sorted(plant.phases().values()) == [Phase.OFF, Phase.ON, Phase.ON]
        plant.demand.nodes = 3
        await plant.turns(3)
        assert set(plant.phases().values()) == {Phase.ON}

    plant.play(story)


def test_a_donor_is_emptied_of_others_memory_before_its_node_goes_off() -> None:
    plant = Plant("ab", wanted=1, rules=FleetRules(floor=1, min_on_s=0.0, always_on=frozenset("b")))
    plant.inventory.held["a"] = Holdings(foreign_slabs=3)

    async def story() -> None:
        await plant.turns(12)
        assert plant.phases()["a"] is Phase.OFF

    plant.play(story)
    assert plant.inventory.calls == ["drain a", *["slab leaves a"] * 3]
    assert plant.bmcs["a"].calls[0] == "soft-off"


@pytest.mark.parametrize("held", [Holdings(jobs=1), Holdings(reservations=1)])
def test_nodes_with_a_job_or_a_reservation_stay_on(held: Holdings) -> None:
    plant = Plant("ab", wanted=0)
    plant.inventory.held = {"a": held, "b": held}

    async def story() -> None:
        await plant.turns(10)
        assert set(plant.phases().values()) == {Phase.ON}

    plant.play(story)


def test_a_node_whose_owner_is_silent_stays_on() -> None:
    plant = Plant("ab", wanted=0, rules=FleetRules(floor=0, min_on_s=0.0))
    plant.inventory.silent = {"a"}

    async def story() -> None:
        await plant.turns(10)
        assert plant.phases() == {"a": Phase.ON, "b": Phase.OFF}

    plant.play(story)


def test_a_bmc_that_hangs_holds_up_nobody_else() -> None:
    plant = Plant("abc", wanted=1, hanging="a")

    async def story() -> None:
        await plant.turns(10)
        assert plant.phases()["b"] is Phase.OFF or plant.phases()["c"] is Phase.OFF
        assert plant.phases()["a"] is not Phase.OFF

    plant.play(story)


def test_the_demand_is_told_how_many_nodes_jobs_have_and_lack() -> None:
    plant = Plant("abc", wanted=3)
    plant.inventory.held["a"] = Holdings(jobs=2)
    plant.called = frozenset("bc")

    async def story() -> None:
        await plant.turns(2)

    plant.play(story)
    last = plant.demand.asked[-1]
    assert (last.busy, last.lacking, last.powered, last.total) == (1, 2, 3, 3)


def test_a_driver_that_may_outlast_its_order_is_refused() -> None:
    slow = FakeBmc()
    slow.limit_s = 30.0

    with pytest.raises(ConfigError, match="a: its power driver may take 30 s"):
        PowerController(
            {"a": slow}, inventory=FakeInventory({}), demand=Wanted(1), clock=VirtualClock(), rules=RULES,
            patience=Patience(answer_s=30.0),
        )  # fmt: skip


def test_a_pardon_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="no node is called 'z'; one of a, b"):
        Plant("ab", wanted=2).controller.pardon("z")
