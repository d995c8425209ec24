"""A CPU device that is not cut: its cores by affinity, for processes that may not make cgroups."""

from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Measured
from farside.agent.serving.partition.processor import Processor
from farside.errors import Unavailable

NAME = "whole"


class WholeDriver(Processor):
    """Gives the device whole, or nothing."""

    def capabilities(self) -> Capabilities:
        """Works everywhere."""
        return Capabilities(
            driver=NAME, parts="100 %", can_cut=False, isolation="cores by affinity; no limit on their use"
        )

    def open(self, device: Device, part_pct: int) -> "WholePlace":
        """The whole device."""
        if part_pct != 100:
            raise Unavailable(
                f"device {device.number}: the driver {NAME} can't cut it, so it has no part of {part_pct} %",
                hint="give 100, or use the driver cpu",
            )
        return WholePlace(device)


class WholePlace:
    """All cores of a device."""

    def __init__(self, device: Device) -> None:
        self.part_pct = 100
        self.entry = Entry(cores=device.cores, threads=max(1, len(device.cores)))

    def resize(self, part_pct: int) -> bool:
        """There is one size."""
        return part_pct == self.part_pct

    def hold(self, prepare_pct: int) -> bool:
        """There is one size."""
        return False

    def let_go(self) -> None:
        """Changes nothing: the part was not held."""

    def measured(self) -> Measured | None:
        """Nobody counts what it uses."""
        return None

    def close(self) -> None:
        """Nothing was made."""
