"""NVIDIA's management library as the drivers of GPU parts use it: what a GPU is and how it is. It changes nothing."""

from typing import Any

from farside.agent.serving.partition.policy import Conditions, Device, Identity
from farside.errors import Unavailable

_MB = 1 << 20


def open_nvml(nvml: Any = None) -> Any:
    """The module ``pynvml`` with an open driver; ``nvml``: another one, in tests.

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
    return nvml


def gpu_of(nvml: Any, device: Device) -> Any:
    """The handle of a device's GPU.

    Raises:
        Unavailable: There is no such GPU.
    """
    try:
        return nvml.nvmlDeviceGetHandleByIndex(device.number)
    except nvml.NVMLError as error:
        raise Unavailable(f"GPU {device.number}: {error}", hint="nvidia-smi -L lists those there are") from error


def identity_of(nvml: Any, device: Device) -> Identity:
    """Model and memory of a GPU.

    Raises:
        Unavailable: There is no such GPU.
    """
    handle = gpu_of(nvml, device)
    return Identity(nvml.nvmlDeviceGetName(handle), round(nvml.nvmlDeviceGetMemoryInfo(handle).total / _MB))


def conditions_of(nvml: Any, device: Device) -> Conditions:
    """Clock of the SMs and temperature now; None where the GPU has no such sensor.

    Raises:
        Unavailable: There is no such GPU.
    """
    handle = gpu_of(nvml, device)

    def asked(call: Any, kind: Any) -> float | None:
        try:
            return float(call(handle, kind))
        except nvml.NVMLError:
            return None

    return Conditions(
        asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
    )


def process_bytes(nvml: Any, device: Device, pid: int) -> int:
    """GPU memory of a process; 0 where the driver does not count it.

    Raises:
        Unavailable: There is no such GPU.
    """
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu_of(nvml, device)):
        if process.pid == pid:
            return int(process.usedGpuMemory or 0)
    return 0
