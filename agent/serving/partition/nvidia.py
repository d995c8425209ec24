"""NVIDIA's management library as the drivers of GPU parts use it: what a GPU is and how it is. It changes nothing."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from farside.agent.serving.partition.policy import Conditions, Device, Identity
from farside.errors import ConfigError, Unavailable

INSTANCE = "MIG-"  # so begin the UUIDs of instances
_MB = 1 << 20
_WHOLE_PCT = 100
_LISTED = "nvidia-smi -L lists those there are"
_PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED of nvml.h


class _Library:
    """NVIDIA's library, as the module ``pynvml`` has it, but for its errors: each call may raise Unavailable."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        found, fault = getattr(self._nvml, name), self._nvml.NVMLError
        if not name.startswith("nvml"):
            return found

        def call(*arguments: object) -> Any:
            try:
                return found(*arguments)
            except fault as error:
                raise Unavailable(f"NVIDIA's driver answers {error}") from error

        return call


def open_nvml(nvml: Any = None) -> Any:
    """The library of the module ``pynvml`` with an open driver; ``nvml``: another module, in tests.

    Raises:
        Unavailable: The module, the library or the driver is missing; the line says which.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError as error:
            raise Unavailable("the Python package nvidia-ml-py is not installed") from error
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Unavailable(f"libnvidia-ml.so.1: {error}", hint="it comes with NVIDIA's driver") from error
    return _Library(nvml)


def gpu_named(text: str | None, where: str) -> Device:
    """The GPU of a text: one by its index or UUID, an instance by its UUID; the first of the machine without a text.

    Args:
        text: As the variable CUDA_VISIBLE_DEVICES or an option has it; one that is empty names none, as for CUDA.
        where: What has it, for the line.

    Raises:
        ConfigError: It names several, or none.
    """
    if text is None:
        return Device()
    if not text:
        raise ConfigError(f"{where} is empty: it hides all GPUs", hint=f"give a number or UUID; {_LISTED}")
    if "," in text:
        raise ConfigError(f"{where} {text:.200}: names several GPUs", hint="give each its own process")
    if text.isdecimal():
        return Device(number=int(text))
    if not text.startswith(("GPU-", INSTANCE)):
        raise ConfigError(f"{where} {text:.200}: is no GPU", hint=f"give its number or UUID; {_LISTED}")
    return Device(uuid=text)


def gpu_of(nvml: Any, device: Device) -> Any:
    """The handle of a device's GPU, or of its instance where it has the UUID of one.

    Raises:
        Unavailable: There is no such GPU.
    """
    if device.uuid:
        return _by_uuid(nvml, device.uuid)
    try:
        return nvml.nvmlDeviceGetHandleByIndex(device.number)
    except Unavailable as error:
        raise Unavailable(f"GPU {device.number}: {error}", hint=_LISTED) from error


def _by_uuid(nvml: Any, uuid: str) -> Any:
    """A GPU or an instance by its UUID, or by a beginning that only it has, as CUDA takes it."""
    gpus, begin_so = [handle for _, handle in gpus_of(nvml)], []
    for handle in (*gpus, *(one for gpu in gpus for one in instances_of(nvml, gpu))):
        found = uuid_of(nvml, handle)
        if found == uuid:
            return handle
        if found.startswith(uuid):
            begin_so.append(handle)
    if len(begin_so) > 1:
        raise Unavailable(f"GPU {uuid}: {len(begin_so)} UUIDs begin so", hint=f"give more of it; {_LISTED}")
    if not begin_so:
        raise Unavailable(f"GPU {uuid}: is not on this machine", hint=_LISTED)
    return begin_so[0]


def name_of(device: Device) -> str:
    """What lines call a GPU: by its UUID, or by its number where that is all there is."""
    return f"GPU {device.uuid or device.number}"


def uncut_of(nvml: Any, device: Device) -> Any:
    """The handle of a device that CUDA can use as it is: a GPU that is not cut, or an instance.

    Raises:
        Unavailable: There is no such GPU, or it is cut into instances, and CUDA uses only these.
    """
    handle = gpu_of(nvml, device)
    if not device.uuid.startswith(INSTANCE) and is_cut(nvml, handle):
        raise Unavailable(f"{name_of(device)}: is cut into instances", hint=f"name one of them by its UUID; {_LISTED}")
    return handle


def check_mode(nvml: Any, handle: Any) -> None:
    """Looks whether a GPU or an instance takes processes; where the driver does not answer it does.

    Raises:
        Unavailable: Its compute mode, which an administrator has set, is against that.
    """
    try:
        mode = nvml.nvmlDeviceGetComputeMode(handle)
    except Unavailable:
        return
    if mode == _PROHIBITED:
        why = f"GPU {uuid_of(nvml, handle)}: its compute mode is PROHIBITED: no process may use it"
        raise Unavailable(why, hint="an administrator can set nvidia-smi -c DEFAULT")


def uuid_of(nvml: Any, handle: Any) -> str:
    """The UUID of a GPU or an instance."""
    return str(nvml.nvmlDeviceGetUUID(handle))


def is_cut(nvml: Any, handle: Any) -> bool:
    """Whether a GPU is in MIG's mode."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except Unavailable:  # a GPU that can't be cut
        return False


def instances_of(nvml: Any, handle: Any) -> list[Any]:
    """Handles of the instances that a GPU is cut into."""
    if not is_cut(nvml, handle):
        return []
    found = []
    for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at))
        except Unavailable:  # none at this place
            continue
    return found


def uncut_devices(nvml: Any, *, with_instances: bool) -> tuple[Device, ...]:
    """What this machine has that CUDA can use: GPUs that are not cut, and instances of the others, if asked for."""
    found: list[Device] = []
    for number, gpu in gpus_of(nvml):
        if not is_cut(nvml, gpu):
            found.append(Device(number=number, uuid=uuid_of(nvml, gpu)))
        elif with_instances:
            found += [Device(number=number, uuid=uuid_of(nvml, one)) for one in instances_of(nvml, gpu)]
    return tuple(found)


def gpus_of(nvml: Any) -> Iterator[tuple[int, Any]]:
    """Numbers and handles of the GPUs that this process can use."""
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid_of(nvml, handle)
        except Unavailable:  # a GPU that this process may not use, or that has failed
            continue
        yield number, handle


def uuid_to_cut(nvml: Any, device: Device, part_pct: int, *, how: str = "") -> str:
    """The UUID of a GPU that a part of ``part_pct`` percent is to be cut from; ``how``: in words, for the line.

    Raises:
        Unavailable: It has no such part, is not there, takes no process, or is an instance or cut into instances.
    """
    if not 1 <= part_pct <= _WHOLE_PCT:
        raise Unavailable(f"{name_of(device)}: has no part of {part_pct} %", hint=f"give 1 to {_WHOLE_PCT}")
    handle = uncut_of(nvml, device)
    uuid = uuid_of(nvml, handle)
    if uuid.startswith(INSTANCE):
        raise Unavailable(f"GPU {uuid}: an instance is not cut {how}here", hint="device = 'gpu' has it whole")
    check_mode(nvml, handle)
    return uuid


class NvidiaGpus:
    """What drivers of NVIDIA's GPUs have in common; ``nvml``: another module than pynvml, in tests."""

    def __init__(self, nvml: Any = None) -> None:
        self._given = nvml

    def nvml(self) -> Any:
        """The library, with an open driver.

        Raises:
            Unavailable: The driver, its library or what else is needed is missing.
        """
        return open_nvml(self._given)

    def identity(self, device: Device) -> Identity:
        """Model and memory of a GPU, or of an instance.

        Raises:
            Unavailable: There is no such GPU.
        """
        nvml = self.nvml()
        handle = gpu_of(nvml, device)
        return Identity(nvml.nvmlDeviceGetName(handle), round(nvml.nvmlDeviceGetMemoryInfo(handle).total / _MB))

    def conditions(self, device: Device) -> Conditions:
        """Clock of the SMs and temperature now; None where the GPU has no such sensor.

        Raises:
            Unavailable: There is no such GPU.
        """
        nvml = self.nvml()
        handle = gpu_of(nvml, device)

        def asked(call: Any, kind: Any) -> float | None:
            try:
                return float(call(handle, kind))
            except Unavailable:
                return None

        return Conditions(
            asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        )

    def process_bytes(self, device: Device, pid: int) -> int | None:
        """GPU memory of an executor; None where the driver does not count it, or not by this number of its process.

        Raises:
            Unavailable: There is no such GPU.
        """
        nvml = self.nvml()
        gpu = gpu_of(nvml, device)
        # Clients of MPS have a list of their own.
        for asked in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses):
            with suppress(Unavailable):  # it is told to nobody, or not to this user
                for process in asked(gpu):
                    if process.pid == pid and process.usedGpuMemory:
                        return int(process.usedGpuMemory)
        return None
