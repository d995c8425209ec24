"""CES, whole: a forecast that it learned from weeks of busy nodes switches a simulated BMC off, and on before morning.

The history is made: one node is always busy, a second from eight to six on working days. Nobody asks for a node in the
night or in the morning, so what wakes the sleeper is the forecast alone.
"""

import asyncio
import time
from pathlib import Path

import numpy as np

from farside.clock import RealClock
from farside.scheduler.energy.busy_series import DAY_S
from farside.scheduler.energy.ces import CesSettings
from farside.scheduler.energy.learning_policy import LearningCes
from farside.scheduler.power.controller import PowerController
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.driver.ipmi import IpmiDriver
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.power.state import Holdings, Patience, Phase
from farside.scheduler.power.wanted_nodes import PolicyDemand
from tests.power.bmc import USER, ipmi_sim, password_file
from tests.power.cluster import FakeInventory, SleepingNode

MONDAY_S = 1_704_067_200.0  # January 1 2024
STEP_S = 600.0
HISTORY_DAYS = 24  # up to a Thursday
EVENING_S = MONDAY_S + HISTORY_DAYS * DAY_S + 18 * 3600.0
SETTINGS = CesSettings(wakeups_per_day=2.0, forecast=True, forecast_s=3600.0, wake_ahead=True)


class HurriedClock:
    """The real time, and what a test adds: hours in which nothing happened."""

    def __init__(self) -> None:
        self.added_s = 0.0
        self._real = RealClock()

    def now_s(self) -> float:
        return self._real.now_s() + self.added_s

    async def sleep_until_s(self, when_s: float) -> None:
        await self._real.sleep_until_s(when_s - self.added_s)


def busy(at_s: float) -> float:
    """Nodes in the interval that ends then."""
    day, of_day_s = divmod(at_s - STEP_S - MONDAY_S, DAY_S)
    return 2.0 if day % 7 < 5 and 8 * 3600 <= of_day_s < 18 * 3600 else 1.0


def taught() -> PolicyDemand:
    """Weeks to learn from, the last days of which the forecast proves itself on."""
    ends_s = np.arange(MONDAY_S + STEP_S, EVENING_S + 1, STEP_S).tolist()
    policy = LearningCes(SETTINGS, total=2.0, step_s=STEP_S)
    policy.begin(MONDAY_S)
    return PolicyDemand(policy, step_s=STEP_S, past=[busy(at_s) for at_s in ends_s])


def test_a_learned_forecast_switches_a_simulated_node_off_and_on_before_it_is_missed(tmp_path: Path) -> None:
    with ipmi_sim(tmp_path) as (port, power):
        bmc = IpmiDriver(
            node="sleeper", host="127.0.0.1", port=port, user=USER, password_file=password_file(tmp_path), limit_s=10.0
        )
        asyncio.run(_night(bmc, SleepingNode(power)))


async def _night(bmc: IpmiDriver, node: SleepingNode) -> None:
    clock = HurriedClock()
    inventory = FakeInventory({"sleeper": Holdings(foreign_slabs=1), "always": Holdings(jobs=1)})
    controller = PowerController(
        {"sleeper": bmc, "always": DryRunDriver("always")}, inventory=inventory,
        demand=taught(), clock=clock,
        rules=FleetRules(floor=1, always_on=frozenset({"always"}), min_on_s=0.0), every_s=0.05,
        patience=Patience(answer_s=15.0, poll_s=0.1, silent_s=0.3, lost_s=60.0),
    )  # fmt: skip

    def sleeper_beats() -> None:
        controller.beat("always", "boot1")
        if boot_id := node.boot_id():
            controller.beat("sleeper", boot_id)

    async def until(phase: Phase, latest_s: float) -> str:
        """Interval after interval passes, while nothing is under way; why the node left its phase."""
        reason = ""
        deadline_s = time.monotonic() + 60.0
        while controller.nodes["sleeper"].phase is not phase:
            assert time.monotonic() < deadline_s, controller.nodes["sleeper"]
            if controller.nodes["sleeper"].phase in (Phase.ON, Phase.OFF):
                clock.added_s += STEP_S
                assert clock.now_s() < began_s + latest_s, "it took more hours than there are"
            sleeper_beats()
            for _ in range(10):
                await asyncio.sleep(0.02)
                sleeper_beats()
                if controller.nodes["sleeper"].phase in (Phase.DRAINING, Phase.BOOTING):
                    reason = reason or controller.nodes["sleeper"].reason
        return reason

    began_s = clock.now_s()
    running = asyncio.ensure_future(controller.run())
    await asyncio.sleep(0)
    try:
        why_off = await until(Phase.OFF, latest_s=4 * 3600.0)
        assert not node.boot_id()
        assert inventory.calls == ["drain sleeper", "slab leaves sleeper"]
        assert "at most 1 expected within 1 h" in why_off

        clock.added_s += began_s + 12 * 3600.0 - clock.now_s()  # six in the morning
        sleeper_beats()
        why_on = await until(Phase.ON, latest_s=14 * 3600.0)  # before eight
        assert controller.nodes["sleeper"].boot_id == "boot2"
        assert "2 nodes expected within 1 h" in why_on
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
