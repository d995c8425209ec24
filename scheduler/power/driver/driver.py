"""Interface of power drivers: five operations on the power of a node."""

from typing import Protocol

from farside.scheduler.power.state import Power


class PowerDriver(Protocol):
    """Power driver of one node.

    Every call ends within the driver's own limit of time, and has no effect later than that.

    Raises:
        PeerError: The BMC refused, vanished or did not answer in time; the message names the node, never a secret.
        Unavailable: A program or library that this driver needs is not installed.
    """

    @property
    def limit_s(self) -> float:
        """Time limit of a call."""
        ...

    async def on(self) -> None:
        """Switch the node on; no change if it is on."""
        ...

    async def soft_off(self) -> None:
        """Ask the operating system to shut down."""
        ...

    async def off(self) -> None:
        """Cut the power."""
        ...

    async def status(self) -> Power:
        """Power state as the BMC reports it."""
        ...

    async def reading_w(self) -> float | None:
        """Current power draw in watts; None without a sensor."""
        ...
