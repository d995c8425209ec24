"""GPUs of this node: from NVML where NVIDIA's driver is, by amdsmi where AMD's is, or as the settings declare them.

A GPU is not healthy when NVML says that it is lost or counts uncorrectable memory errors, when its driver reported a
critical error (XID) that is not a program's own fault, or when its NVLinks fail (nvlink.py). It stays so until the
agent starts anew: what is wrong with it a person finds out.

A GPU in MIG mode is as many devices as it has instances: tasks get these by their UUIDs. The cut is never changed here.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from farside.agent import messages as m
from farside.agent.gpu_files import DeviceRange, GpuFiles
from farside.agent.gpu_share import PARTS_MAX
from farside.agent.sense.amd import AmdGpus
from farside.agent.sense.nvlink import NvLinkSense, asked
from farside.errors import ConfigError, Unavailable
from farside.kernel_file import kernel_text
from farside.log import get_log
from farside.units import format_count

# NVIDIA, "XID Errors": a program's own faults (graphics exception, page fault, stopped, preemptive clean-up, ...).
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})

NVIDIA_MAJOR = 195  # linux/Documentation/admin-guide/devices.txt
NVIDIA_GPU_LAST = 253  # above are nvidia-modeset and nvidiactl, which are every GPU's
PCI_DEVICES = Path("/sys/bus/pci/devices")
_ONE_MAKER = "an agent shows the GPUs of one maker, here NVIDIA's"
KFD_NODES = "sys/class/kfd/kfd/topology/nodes"  # AMD's, linux/Documentation/ABI/testing/sysfs-class-kfd; CPUs have id 0

_log = get_log("agent.sense")


class DeclaredGpus:
    """GPUs that the settings name: for trying and testing, and for devices that nothing here can ask.

    Attributes:
        told_by: Who says which there are, as `farside doctor` has it.
        tells_load: Whether `busy` can say anything.
        uuids: Of each GPU, by index: none has one.
    """

    told_by = "declared"
    tells_load = False
    uuids: Mapping[int, str] = MappingProxyType({})

    def __init__(self, count: int, model: str, files: Sequence[Sequence[str]] = (), *, unseen: str = "") -> None:
        """``files``: those of each; empty: nobody named any. ``unseen``: why GPUs that a driver has are none of them.

        Raises:
            ConfigError: There is no such device, or the number of GPUs is another.
        """
        self._gpus = tuple(m.Gpu(index=index, model=model, healthy=True) for index in range(count))
        self.files = _declared_files(count, files)
        self.unseen = unseen

    def read(self) -> tuple[m.Gpu, ...]:
        """The declared GPUs."""
        return self._gpus

    def busy(self, uuids: Iterable[str]) -> Mapping[str, float]:
        """Nothing: nobody knows."""
        return {}

    def close(self) -> None:
        """Do nothing: no driver is open."""


class NvmlGpus:
    """GPUs as NVIDIA's driver knows them. Calls may take tens of milliseconds: keep them off the event loop.

    Attributes:
        told_by: Who says which there are, as `farside doctor` has it.
        uuids: Of each GPU whose driver tells it, by index. An index may be another GPU's when the agent starts anew.
        unseen: GPUs that a driver has and that are none of these, and why; empty: there are none such.
    """

    told_by = "by NVML"
    tells_load = True

    def __init__(
        self,
        nvml: Any,
        *,
        nvlink_errors_per_hour: int = 0,
        now_s: Callable[[], float] = time.monotonic,
        devices_root: Path = PCI_DEVICES,
    ) -> None:
        """``nvml`` is the module ``pynvml``; with more NVLink errors a GPU is not healthy, 0: whatever its links do.

        Raises:
            Unavailable: there is no driver, no library of it, or it lists no GPU.
        """
        self._nvml = nvml
        self.unseen = ""
        try:
            nvml.nvmlInit()
            count = min(m.GPUS_MAX, nvml.nvmlDeviceGetCount())
            self._handles = tuple(nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count))
        except nvml.NVMLError as error:
            raise Unavailable(f"NVML: {error}", hint="set declared_gpus if this node has no such GPUs") from error
        if not self._handles:  # as in a container without the GPUs' files, and where all have fallen off the bus
            nvml.nvmlShutdown()
            raise Unavailable("NVML: it lists no GPU")
        self._links = tuple(
            NvLinkSense(nvml, handle, errors_per_hour=nvlink_errors_per_hour, now_s=now_s) for handle in self._handles
        )
        self._broken: dict[int, str] = {}
        self._events = self._watched()
        self.uuids: Mapping[int, str] = {
            index: str(uuid)[: m.CAUSE_CHARS_MAX]
            for index, handle in enumerate(self._handles)
            if (uuid := asked(nvml, nvml.nvmlDeviceGetUUID, handle))
        }
        self.files = self._device_files(devices_root)

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return len(self._handles)

    def read(self) -> tuple[m.Gpu, ...]:
        """Every GPU as it is now."""
        self._note_events()
        return tuple(self._one(index, handle) for index, handle in enumerate(self._handles))

    def busy(self, uuids: Iterable[str]) -> Mapping[str, float]:
        """How busy these GPUs are now, in percent; without those that are not there, or whose driver does not say."""
        nvml = self._nvml
        wanted = {*uuids}
        told = {
            uuid: asked(nvml, nvml.nvmlDeviceGetUtilizationRates, self._handles[at])
            for at, uuid in self.uuids.items()
            if uuid in wanted
        }
        return {uuid: float(one.gpu) for uuid, one in told.items() if one is not None}

    def close(self) -> None:
        """Lets go of the driver."""
        self._nvml.nvmlShutdown()

    def _one(self, index: int, handle: Any) -> m.Gpu:
        nvml = self._nvml
        memory = asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        busy = asked(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = asked(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        self._note_health(index, handle)
        parts = self._parts(handle)
        reason = self._broken.get(index, "" if parts or parts is None else "it is in MIG mode and has no instances")
        return m.Gpu(
            index=index,
            model=str(asked(nvml, nvml.nvmlDeviceGetName, handle) or "unknown")[: m.CAUSE_CHARS_MAX],
            healthy=not reason,
            reason=reason,
            uuid=self.uuids.get(index),
            parts=parts or (),
            memory_bytes=int(memory.total) if memory is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            busy_pct=float(busy.gpu) if busy is not None else None,
            power_w=power_mw / 1000 if power_mw is not None else None,
        )

    def _parts(self, handle: Any) -> tuple[str, ...] | None:
        """UUIDs of the MIG instances that a GPU is cut into; None: it is whole. An administrator may cut it anew."""
        nvml = self._nvml
        mode = asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
        if mode is None or not mode[0]:
            return None
        places = range(asked(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
        there = (asked(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at) for at in places)
        uuids = (asked(nvml, nvml.nvmlDeviceGetUUID, instance) for instance in there if instance is not None)
        return tuple(str(uuid)[: m.CAUSE_CHARS_MAX] for uuid in uuids if uuid)[:PARTS_MAX]

    def _note_health(self, index: int, handle: Any) -> None:
        nvml = self._nvml
        try:
            errors = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        except nvml.NVMLError as error:
            # Any other error is taken to mean that it has no such counter.
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                self._blame(index, "the driver lost it")
                return
            errors = 0  # it does not count them
        if errors:
            self._blame(index, f"{errors} uncorrectable memory errors")
        if problem := self._links[index].read():
            self._blame(index, problem[: m.CAUSE_CHARS_MAX])

    def _device_files(self, devices_root: Path) -> GpuFiles:
        nvml = self._nvml
        own: dict[int, tuple[DeviceRange, ...]] = {}
        for index, handle in enumerate(self._handles):
            minor = asked(nvml, nvml.nvmlDeviceGetMinorNumber, handle)
            pci = asked(nvml, nvml.nvmlDeviceGetPciInfo, handle)
            if minor is None or pci is None or index not in self.uuids:
                # Without its UUID a task could not be told which of the GPUs that it can open is its own.
                return GpuFiles(own={}, names={}, problem=f"NVML does not tell the device file and UUID of GPU {index}")
            bus = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
            own[index] = (DeviceRange(NVIDIA_MAJOR, minor, minor), *_drm(devices_root / bus / "drm"))
        # All that the driver may call a GPU: one that NVML does not list, or lists later, is closed as well.
        drawn = tuple(one for files in own.values() for one in files if one.major != NVIDIA_MAJOR)
        return GpuFiles(own=own, closed=(DeviceRange(NVIDIA_MAJOR, 0, NVIDIA_GPU_LAST), *drawn), names=self.uuids)

    def _note_events(self) -> None:
        nvml = self._nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # a timeout: there are no more
                return
            if event.eventData not in PROGRAM_XIDS:
                self._blame(nvml.nvmlDeviceGetIndex(event.device), f"XID {event.eventData}")

    def _watched(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            _log.warning("critical errors of the GPU driver are not received", why=error)
            return None
        return events

    def _blame(self, index: int, reason: str) -> None:
        # The first reason stays, and is logged once.
        if index not in self._broken:
            _log.error("a GPU is not healthy", gpu=index, reason=reason)
            self._broken[index] = reason


GpuSense: TypeAlias = DeclaredGpus | NvmlGpus | AmdGpus
"""Reader of GPUs."""


def open_gpus(
    *,
    declared: int,
    model: str,
    files: Sequence[Sequence[str]] = (),
    nvlink_errors_per_hour: int = 0,
    root: Path = Path("/"),
) -> GpuSense:
    """The declared GPUs with their files, or with -1 those that NVML finds, or amdsmi; none where there is no driver.

    Raises:
        ConfigError: The files are none, or not those of so many GPUs.
    """
    if declared >= 0:
        return DeclaredGpus(declared, model, files)
    nvidia = _open_nvidia(nvlink_errors_per_hour)
    if not isinstance(nvidia, str):
        shown = nvidia.count
        nvidia.unseen = unseen_gpus(root, f"NVML lists {shown}", _ONE_MAKER, shown=shown)
        return nvidia
    amd = _open_amd()
    if not isinstance(amd, str):
        amd.unseen = _unseen_nvidia(root, nvidia)
        return amd
    _log.info("no GPUs found", why=f"{nvidia}; {amd}")
    return DeclaredGpus(0, "", unseen=unseen_gpus(root, nvidia, amd))


def _open_nvidia(nvlink_errors_per_hour: int) -> NvmlGpus | str:
    """NVIDIA's GPUs, or why there are none."""
    try:
        import pynvml

        return NvmlGpus(pynvml, nvlink_errors_per_hour=nvlink_errors_per_hour)
    except ImportError:
        return "the Python package nvidia-ml-py is not installed"
    except Unavailable as error:
        return str(error)


def _open_amd() -> AmdGpus | str:
    """AMD's GPUs, or why there are none."""
    try:
        with redirect_stdout(StringIO()):  # without its library it says so there
            amdsmi = import_module("amdsmi")
    except ImportError:
        return "the Python package amdsmi is not installed"
    except Exception as error:  # it fails so where its library is not there
        return f"the Python package amdsmi does not work: {error!r:.200}"
    try:
        return AmdGpus(amdsmi)
    except Unavailable as error:
        return str(error)


def unseen_gpus(root: Path, why: str, why_amd: str, *, shown: int = 0) -> str:
    """The GPUs that drivers on this machine have beyond the ``shown`` ones of NVIDIA, and why; empty: none."""
    return "; ".join(filter(None, (_unseen_nvidia(root, why, shown), _unseen_amd(root, why_amd, beside=bool(shown)))))


def _unseen_nvidia(root: Path, why: str, shown: int = 0) -> str:
    has = len([*(root / "proc/driver/nvidia/gpus").glob("*")])
    return f"NVIDIA's driver has {format_count(has, 'GPU')}, and {why}" if has > shown else ""


def _unseen_amd(root: Path, why: str, *, beside: bool) -> str:
    """``beside``: GPUs of NVIDIA are shown: then a GPU within a CPU, which is there for its display, is none."""
    files = [*(root / KFD_NODES).glob("*/gpu_id")]
    has = sum(kernel_text(file).strip() not in ("", "0") and not (beside and _has_cpu(file.parent)) for file in files)
    return f"AMD's driver has {format_count(has, 'GPU')}, and {why}; or name them by declared_gpus" if has else ""


def _has_cpu(kfd_node: Path) -> bool:
    """Whether a node of KFD has processor cores beside its GPU, as its properties say."""
    told = map(str.split, kernel_text(kfd_node / "properties").splitlines())
    return any(words[:1] == ["cpu_cores_count"] and words[1:] != ["0"] for words in told)


def _declared_files(count: int, files: Sequence[Sequence[str]]) -> GpuFiles:
    if not files:
        return GpuFiles(
            own={}, names={}, problem="declared_gpu_files names no files of the declared GPUs" if count else ""
        )
    if len(files) != count:
        raise ConfigError(
            f"declared_gpu_files: names files of {len(files)} GPUs, and declared_gpus is {count}",
            hint="a comma between GPUs, a + between files of one",
        )
    own = {index: tuple(map(_number_of, paths)) for index, paths in enumerate(files)}
    return GpuFiles(own=own, closed=tuple(one for ranges in own.values() for one in ranges), names={})


def _number_of(path: str) -> DeviceRange:
    try:
        found = os.stat(path)
    except OSError as error:
        hint = "name files that are there, and lower declared_gpus where a device is gone"
        raise ConfigError(f"declared_gpu_files: {path}: {error.strerror}", hint=hint) from error
    if not stat.S_ISCHR(found.st_mode):
        raise ConfigError(f"declared_gpu_files: {path} is no character device", hint="/dev/dri/renderD128 is one")
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    return DeviceRange(major, minor, minor)


def _drm(folder: Path) -> Iterator[DeviceRange]:
    """The GPU's files for graphics, by which programs can use it as well; none where no such driver is loaded."""
    for file in sorted(folder.glob("*/dev")):
        with suppress(OSError, ValueError):  # it goes with its driver
            major, minor = map(int, file.read_text().split(":"))
            yield DeviceRange(major, minor, minor)
