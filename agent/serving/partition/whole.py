"""A CPU device that is not cut: its cores by affinity, for processes that may not make cgroups."""

from typing import ClassVar

from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Traits
from farside.agent.serving.partition.processor import Processor
from farside.errors import Unavailable

NAME = "whole"


class WholeDriver(Processor):
    """Gives the device whole, or nothing."""

    traits: ClassVar[Traits] = Traits(on_gpu=False, can_cut=False)

    def capabilities(self) -> Capabilities:
        """Works everywhere."""
        return Capabilities(parts="100 %", isolation="cores by affinity; no limit on their use")

    def check(self, device: Device, part_pct: int) -> None:
        """There is the whole device alone."""
        if part_pct != 100:
            raise Unavailable(
                f"device {device.number}: the driver {NAME} can't cut it, so it has no part of {part_pct} %",
                hint="give 100, or use the driver cpu",
            )

    def open(self, device: Device, part_pct: int) -> "WholePlace":
        """The whole device."""
        self.check(device, part_pct)
        return WholePlace(device)


class WholePlace(FixedPlace):
    """All cores of a device."""

    def __init__(self, device: Device) -> None:
        super().__init__(100, Entry(cores=device.cores, threads=max(1, len(device.cores))))
