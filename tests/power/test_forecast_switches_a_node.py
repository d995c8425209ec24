"""From a forecast to a BMC and back: a simulated node sleeps through the quiet night and is up before the morning."""

import asyncio
import time
from pathlib import Path

from farside.clock import RealClock
from farside.scheduler.energy.policy import Seen, Target
from farside.scheduler.power.controller import PowerController
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.driver.ipmi import IpmiDriver
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.power.state import Holdings, Patience, Phase
from farside.scheduler.power.wanted_nodes import PolicyDemand
from tests.power.bmc import USER, ipmi_sim, password_file
from tests.power.cluster import FakeInventory, SleepingNode

# Busy nodes of yesterday, an hour each: nobody works before eight.
YESTERDAY = (0,) * 8 + (2,) * 10 + (1,) * 6


class SeasonalNaive:
    """The least forecast that there is, as an energy policy: like yesterday, at its most until a node is back."""

    def __init__(self, hour: float) -> None:
        self.hour = hour
        self._seen = Seen(step=-1, active=0, total=0)

    def watch(self, seen: Seen) -> None:
        self._seen = seen

    def target(self, powered: float) -> Target:
        until = self.hour + 1.0
        most = max(YESTERDAY[int(hour) % 24] for hour in (self.hour, until))
        reason = f"yesterday {most} nodes were busy until {until:.0f} o'clock"
        return Target(nodes=max(most, self._seen.active), reason=reason)


def test_a_forecast_switches_a_simulated_node_off_and_on(tmp_path: Path) -> None:
    with ipmi_sim(tmp_path) as (port, power):
        bmc = IpmiDriver(
            node="sleeper", host="127.0.0.1", port=port, user=USER, password_file=password_file(tmp_path), limit_s=10.0
        )
        asyncio.run(_story(bmc, SleepingNode(power)))


async def _story(bmc: IpmiDriver, node: SleepingNode) -> None:
    forecast = SeasonalNaive(hour=2.0)
    inventory = FakeInventory({"sleeper": Holdings(foreign_slabs=2), "always": Holdings()})
    controller = PowerController(
        {"sleeper": bmc, "always": DryRunDriver("always")}, inventory=inventory,
        demand=PolicyDemand(forecast, step_s=0.1), clock=RealClock(),
        rules=FleetRules(floor=1, always_on=frozenset({"always"}), min_on_s=0.0), every_s=0.05,
        patience=Patience(answer_s=15.0, poll_s=0.1, silent_s=0.3, lost_s=60.0),
    )  # fmt: skip

    async def until(phase: Phase) -> None:
        deadline_s = time.monotonic() + 60.0
        while controller.nodes["sleeper"].phase is not phase:
            assert time.monotonic() < deadline_s, controller.nodes["sleeper"]
            controller.beat("always", "boot1")
            if boot_id := node.boot_id():
                controller.beat("sleeper", boot_id)
            await asyncio.sleep(0.02)

    running = asyncio.ensure_future(controller.run())
    await asyncio.sleep(0)
    try:
        await until(Phase.OFF)
        assert not node.boot_id()
        assert inventory.calls == ["drain sleeper", "slab leaves sleeper", "slab leaves sleeper"]
        assert "yesterday 0 nodes were busy" in controller.nodes["sleeper"].reason

        forecast.hour = 7.5
        await until(Phase.ON)
        assert controller.nodes["sleeper"].boot_id == "boot2"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
