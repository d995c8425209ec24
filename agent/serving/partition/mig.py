"""MIG: a part is an instance that the GPU is cut into already, and has one executor. The cut is never changed here.

Plans cut a device in two at most, and want a part of 100 % in its profile, which a cut GPU lacks. So nothing is planned
with this driver: it says which instances there are, and `gpu` has each as a device of its own (NOT_SERVED).
"""

from collections.abc import Collection
from contextlib import suppress
from typing import Any, ClassVar

from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.nvidia import NvidiaGpus, gpu_of, gpus_of, instances_of, name_of, uuid_of
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Traits
from farside.errors import Unavailable

NAME = "mig"
SLICES = 7  # of a GPU that does not say how many it has: an instance has some of them
# Which instances there may be; the largest one that a GPU knows has all of its slices.
_LARGEST = (
    "NVML_GPU_INSTANCE_PROFILE_8_SLICE", "NVML_GPU_INSTANCE_PROFILE_7_SLICE", "NVML_GPU_INSTANCE_PROFILE_6_SLICE",
    "NVML_GPU_INSTANCE_PROFILE_4_SLICE",
)  # fmt: skip
_HINT = "an administrator cuts a GPU by nvidia-smi mig"


class MigDriver(NvidiaGpus):
    """Hands out instances."""

    traits: ClassVar[Traits] = Traits(on_gpu=True)

    def __init__(self, nvml: Any = None) -> None:
        super().__init__(nvml)
        self._used: set[str] = set()

    def capabilities(self) -> Capabilities:
        """Which instances the GPUs of this machine have."""
        try:
            nvml = self.nvml()
            sizes = [size for _, gpu in gpus_of(nvml) for _, size in _instances(nvml, gpu)]
        except Unavailable as error:
            return Capabilities(problem=str(error))
        if not sizes:
            return Capabilities(problem=f"no GPU here has MIG instances; {_HINT}")
        return Capabilities(
            parts=", ".join(f"{size} %" for size in sorted(sizes)),
            isolation="SMs, caches and memory of its own; gpu serves on each",
        )

    def check(self, device: Device, part_pct: int) -> None:
        """Whether the GPU has an instance of this size, free or not."""
        self._instance(device, part_pct, used=())

    def open(self, device: Device, part_pct: int) -> "MigPlace":
        """A free instance of this size."""
        uuid = self._instance(device, part_pct, used=self._used)
        self._used.add(uuid)
        return MigPlace(self._used, uuid, part_pct)

    def _instance(self, device: Device, part_pct: int, *, used: Collection[str]) -> str:
        nvml = self.nvml()
        instances = _instances(nvml, gpu_of(nvml, device))
        for uuid, size in instances:
            if size == part_pct and uuid not in used:
                return uuid
        there = ", ".join(f"{size} %{' (in use)' if uuid in self._used else ''}" for uuid, size in instances) or "none"
        raise Unavailable(f"{name_of(device)}: has no free instance of {part_pct} %, but {there}", hint=_HINT)


class MigPlace(FixedPlace):
    """One instance."""

    def __init__(self, used: set[str], uuid: str, part_pct: int) -> None:
        super().__init__(part_pct, Entry(environment={"CUDA_VISIBLE_DEVICES": uuid}, computes_on="cuda"))
        self._used, self._uuid = used, uuid

    def close(self) -> None:
        """The instance is free."""
        self._used.discard(self._uuid)


def _instances(nvml: Any, gpu: Any) -> list[tuple[str, int]]:
    """UUID and size of a GPU's instances, in percent of its slices, rounded.

    Compute instances may share a GPU instance: each is as large as the slices that it computes on.
    """
    instances = instances_of(nvml, gpu)
    total, found = _slices_of(nvml, gpu) if instances else 0, []
    for instance in instances:
        told = nvml.nvmlDeviceGetAttributes_v2(instance)
        slices = told.computeInstanceSliceCount or told.gpuInstanceSliceCount
        found.append((uuid_of(nvml, instance), round(100 * slices / total)))
    return found


def _slices_of(nvml: Any, gpu: Any) -> int:
    for profile in _LARGEST:
        with suppress(Unavailable):  # it knows no such instance
            return int(nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, getattr(nvml, profile)).sliceCount) or SLICES
    return SLICES
