"""Soft power-off by the node's agent, for nodes without a BMC."""

from collections.abc import Awaitable, Callable

from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.state import Power

ShutDown = Callable[[str], Awaitable[None]]
"""Has the agent of a node shut it down; raises PeerError where it can't be told."""


class ByAgent:
    """Driver with soft power-off by the agent; another driver does the rest."""

    def __init__(self, node: str, driver: PowerDriver, shut_down: ShutDown) -> None:
        self.limit_s = driver.limit_s
        self._node, self._driver, self._shut_down = node, driver, shut_down

    async def on(self) -> None:
        """As the driver."""
        await self._driver.on()

    async def soft_off(self) -> None:
        """By the agent. Whether it went off is seen by its status and its silence."""
        await self._shut_down(self._node)

    async def off(self) -> None:
        """As the driver."""
        await self._driver.off()

    async def status(self) -> Power:
        """As the driver."""
        return await self._driver.status()

    async def reading_w(self) -> float | None:
        """As the driver."""
        return await self._driver.reading_w()
