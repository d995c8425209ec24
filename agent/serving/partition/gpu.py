"""A GPU that is not cut, or an instance that an administrator has cut: one part of 100 %, for one executor."""

from typing import Any, ClassVar

from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.nvidia import (
    NvidiaGpus,
    check_mode,
    name_of,
    uncut_devices,
    uncut_of,
    uuid_of,
)
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Traits
from farside.errors import Unavailable

NAME = "gpu"


class GpuDriver(NvidiaGpus):
    """Gives a GPU or an instance whole, or nothing."""

    traits: ClassVar[Traits] = Traits(on_gpu=True, can_cut=False)

    def capabilities(self) -> Capabilities:
        """Whether there is a GPU or an instance."""
        try:
            is_there = bool(self.devices())
        except Unavailable as error:
            return Capabilities(problem=str(error))
        problem = "" if is_there else "NVIDIA's driver finds no GPU, and no instance of one"
        return Capabilities(problem=problem, parts="100 %", isolation="a GPU or an instance of its own")

    def devices(self) -> tuple[Device, ...]:
        """GPUs of this machine that are not cut, and instances of those that are.

        Raises:
            Unavailable: The driver or its library is missing.
        """
        return uncut_devices(self.nvml(), with_instances=True)

    def check(self, device: Device, part_pct: int) -> None:
        """There is the whole device alone, where CUDA can use it as it is."""
        self._whole(device, part_pct)

    def open(self, device: Device, part_pct: int) -> FixedPlace:
        """The whole device."""
        nvml, handle = self._whole(device, part_pct)
        check_mode(nvml, handle)
        environment = {"CUDA_VISIBLE_DEVICES": uuid_of(nvml, handle)}
        return FixedPlace(part_pct, Entry(environment=environment, computes_on="cuda"))

    def _whole(self, device: Device, part_pct: int) -> tuple[Any, Any]:
        """The library, and the device's handle."""
        if part_pct != 100:
            line = f"{name_of(device)}: the driver {NAME} has no part of {part_pct} %"
            raise Unavailable(line, hint="give 100, or use mps")
        nvml = self.nvml()
        return nvml, uncut_of(nvml, device)
