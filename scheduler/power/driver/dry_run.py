"""Dry-run power driver: logs each order, switches nothing, and reports the state that the order would have caused."""

from farside.log import get_log
from farside.scheduler.power.state import Power

log = get_log("scheduler.power")


class DryRunDriver:
    """Dry-run driver, for a first look at a policy: it switches nothing and logs everything."""

    limit_s = 1.0

    def __init__(self, node: str, power: Power = Power.ON) -> None:
        self.node = node
        self._power = power

    async def on(self) -> None:
        """Logs it."""
        self._pretend("on", Power.ON)

    async def soft_off(self) -> None:
        """Logs it."""
        self._pretend("soft-off", Power.OFF)

    async def off(self) -> None:
        """Logs it."""
        self._pretend("off", Power.OFF)

    async def status(self) -> Power:
        """As it would be."""
        return self._power

    async def reading_w(self) -> float | None:
        """None: nothing is measured."""
        return None

    def _pretend(self, action: str, power: Power) -> None:
        log.info("dry run: would switch", node=self.node, action=action)
        self._power = power
