"""Soft power-off by the node's agent, for nodes without a BMC."""

from collections.abc import Awaitable, Callable

from farside.scheduler.power.driver.driver import PowerDriver

ShutDown = Callable[[str], Awaitable[None]]
"""Has the agent of a node shut it down; raises PeerError where it can't be told."""


class ByAgent:
    """Driver with soft power-off by the agent; another driver does the rest."""

    def __init__(self, node: str, driver: PowerDriver, shut_down: ShutDown) -> None:
        self.limit_s = driver.limit_s
        self.on, self.off = driver.on, driver.off
        self.status, self.reading_w = driver.status, driver.reading_w
        self._node, self._shut_down = node, shut_down

    async def soft_off(self) -> None:
        """Let the agent shut it down. Its status and its silence show whether it went off."""
        await self._shut_down(self._node)
