"""Interface of power drivers: five operations on the power of a node."""

from typing import Protocol

from farside.scheduler.power.state import Power


class PowerDriver(Protocol):
    """One node's switch.

    Every call ends within the driver's own limit of time, and has no effect later than that.

    Raises:
        PeerError: The BMC refused, vanished or did not answer in time; the message names the node, never a secret.
        Unavailable: A program or library that this driver needs is not installed.
    """

    @property
    def limit_s(self) -> float:
        """How long a call may take."""
        ...

    async def on(self) -> None:
        """Orders power on; a node that is on stays so."""
        ...

    async def soft_off(self) -> None:
        """Asks the operating system to shut down."""
        ...

    async def off(self) -> None:
        """Cuts the power."""
        ...

    async def status(self) -> Power:
        """What the BMC says of the power."""
        ...

    async def reading_w(self) -> float | None:
        """What the node draws now; None where nothing measures it."""
        ...
