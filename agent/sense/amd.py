"""GPUs of this node as AMD's driver knows them, by amdsmi, the Python package that comes with ROCm.

Ours have the order in which HIP counts them. KFD, the driver's part for computing, shows a program only the GPUs whose
files it can open: behind a fence a task's own are 0, 1 and so on, and `CUDA_VISIBLE_DEVICES`, which HIP reads as well,
has these numbers. A GPU is not healthy when uncorrectable memory errors were counted since its driver was loaded, and
stays so until the agent starts anew.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from farside.agent import messages as m
from farside.agent.gpu_files import DeviceRange, GpuFiles
from farside.errors import Unavailable
from farside.log import get_log

DRM_MAJOR = 226  # linux/Documentation/admin-guide/devices.txt
MIB = 1 << 20
MIB_MAX, POWER_MAX_W, ERRORS_MAX = 1 << 30, 1e5, 1 << 31  # of one GPU; what is more is not told

_log = get_log("agent.sense")


class AmdGpus:
    """AMD's GPUs. Calls may take tens of milliseconds: keep them off the event loop.

    Attributes:
        tells_load: Whether `busy` can say anything.
        uuids: What HIP calls each GPU that has a number of its own, by index.
        files: Files for graphics, by which programs compute as well; /dev/kfd is every GPU's, and is not closed.
        unseen: GPUs that a driver has and that are none of these, and why; empty: there are none such.
        told_by: Who says which there are, as `farside doctor` has it.
    """

    told_by = "by amdsmi"
    tells_load = True

    def __init__(self, smi: Any) -> None:
        """``smi`` is the module ``amdsmi``.

        Raises:
            Unavailable: there is no driver, or it has no GPU.
        """
        self._smi = smi
        self.unseen = ""
        try:
            smi.amdsmi_init()
            handles = tuple(smi.amdsmi_get_processor_handles())
        except smi.AmdSmiException as error:
            raise Unavailable(f"amdsmi: {' '.join(str(error).split())}") from error
        if not handles:
            raise Unavailable("amdsmi: it finds no GPU")
        told = [(self._asked("amdsmi_get_gpu_enumeration_info", handle), handle) for handle in handles]
        if all(isinstance(one.get("hip_id"), int) for one, _ in told):
            told.sort(key=lambda one: int(one[0]["hip_id"]))
        told = told[: m.GPUS_MAX]
        self._handles = tuple(handle for _, handle in told)
        self._broken: dict[int, str] = {}
        names = {index: str(one.get("hip_uuid", "")) for index, (one, _) in enumerate(told)}
        self.uuids: Mapping[int, str] = {
            index: name[: m.CAUSE_CHARS_MAX] for index, name in names.items() if name.startswith("GPU-")
        }
        self.files = _files_of([one for one, _ in told])

    def read(self) -> tuple[m.Gpu, ...]:
        """Every GPU as it is now."""
        return tuple(self._one(index, handle) for index, handle in enumerate(self._handles))

    def busy(self, uuids: Iterable[str]) -> Mapping[str, float]:
        """How busy these GPUs are now, in percent; without those that are not there, or whose driver does not say."""
        wanted = {*uuids}
        told = {uuid: self._busy_pct(self._handles[at]) for at, uuid in self.uuids.items() if uuid in wanted}
        return {uuid: pct for uuid, pct in told.items() if pct is not None}

    def close(self) -> None:
        """Lets go of the driver."""
        self._smi.amdsmi_shut_down()

    def _one(self, index: int, handle: Any) -> m.Gpu:
        memory = self._asked("amdsmi_get_gpu_vram_usage", handle)
        power = self._asked("amdsmi_get_power_info", handle)
        powers_w = (_figure(power, f"{which}_socket_power", POWER_MAX_W) for which in ("current", "average"))
        self._note_health(index, handle)
        total_mib, used_mib = _figure(memory, "vram_total", MIB_MAX), _figure(memory, "vram_used", MIB_MAX)
        name = self._asked("amdsmi_get_gpu_asic_info", handle).get("market_name") or "N/A"
        return m.Gpu(
            index=index,
            model="unknown" if name == "N/A" else str(name)[: m.CAUSE_CHARS_MAX],
            healthy=index not in self._broken,
            reason=self._broken.get(index, ""),
            uuid=self.uuids.get(index),
            memory_bytes=None if total_mib is None else int(total_mib) * MIB,
            memory_used_bytes=None if used_mib is None else int(used_mib) * MIB,
            busy_pct=self._busy_pct(handle),
            power_w=next((one for one in powers_w if one is not None), None),
        )

    def _busy_pct(self, handle: Any) -> float | None:
        return _figure(self._asked("amdsmi_get_gpu_activity", handle), "gfx_activity", 100)

    def _note_health(self, index: int, handle: Any) -> None:
        told = self._asked("amdsmi_get_gpu_total_ecc_count", handle)
        errors = _figure(told, "uncorrectable_count", ERRORS_MAX)
        if errors and index not in self._broken:
            self._broken[index] = f"{errors:.0f} uncorrectable memory errors"
            _log.error("a GPU is not healthy", gpu=index, reason=self._broken[index])

    def _asked(self, name: str, handle: Any) -> Mapping[str, Any]:
        """Answer of a function of amdsmi; empty where this device, this driver, or this amdsmi does not report that."""
        call = getattr(self._smi, name, None)
        try:
            found: Mapping[str, Any] = {} if call is None else call(handle)
        except self._smi.AmdSmiException:
            return {}
        return found


def _figure(told: Mapping[str, Any], name: str, most: float) -> float | None:
    """A figure of an answer; None: it is not there. Drivers say so by ``N/A``, or by the largest number of its type."""
    found = told.get(name)
    is_told = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= most
    return float(found) if is_told and found is not None else None


def _files_of(told: list[Mapping[str, Any]]) -> GpuFiles:
    own: dict[int, tuple[DeviceRange, ...]] = {}
    for index, one in enumerate(told):
        minors = [one.get(name) for name in ("drm_card", "drm_render")]
        if not isinstance(minors[1], int):
            return GpuFiles(own={}, names={}, problem=f"amdsmi does not tell the device file of GPU {index}")
        own[index] = tuple(DeviceRange(DRM_MAJOR, minor, minor) for minor in minors if isinstance(minor, int))
    closed = tuple(one for files in own.values() for one in files)
    return GpuFiles(own=own, closed=closed, names={}, counts_own=True)
