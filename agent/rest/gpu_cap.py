"""GPU power caps, set by NVML: the lowest cap that a GPU allows while its node is idle. [helios §4.3.2]

nvidia-ml-py is needed only where GPUs are turned down. The driver keeps a cap for as long as it is loaded for the GPU:
with persistence mode (nvidia-persistenced) until the next boot, otherwise until the last program closes the GPU.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from farside.errors import Unavailable

_HINT = "it takes root to set power caps; nvidia-smi -pl tells more"


class GpuCap:
    """Power caps of all GPUs of this machine, each at its minimum while the node rests."""

    name = "gpu"

    def settings(self) -> Mapping[str, str]:
        """Cap in milliwatts by the GPU's UUID. Raises too where a program computes on a GPU."""
        caps_mw: dict[str, str] = {}
        with _nvml() as nvml:
            for gpu in _gpus(nvml):
                uuid = nvml.nvmlDeviceGetUUID(gpu)
                if nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                    hint = "they are none of Farside's; nvidia-smi lists them"
                    raise Unavailable(f"GPU {uuid} has processes", hint=hint)
                caps_mw[uuid] = str(nvml.nvmlDeviceGetPowerManagementLimit(gpu))
        if not caps_mw:
            raise Unavailable("this machine has no GPU with a power cap", hint="leave gpu out of rest")
        return caps_mw

    def lower(self) -> None:
        """Set the cap of every GPU to the lowest that it takes."""
        with _nvml() as nvml:
            for gpu in _gpus(nvml):
                lowest_mw = _lowest_mw(nvml, gpu)
                if nvml.nvmlDeviceGetPowerManagementLimit(gpu) != lowest_mw:
                    nvml.nvmlDeviceSetPowerManagementLimit(gpu, lowest_mw)

    def restore(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """Put the caps back, unless another program has changed them since; a GPU that is gone has none."""
        failed: dict[str, str] = {}
        with _nvml() as nvml:
            for uuid, cap_mw in before.items():
                try:
                    _set_back(nvml, uuid, int(cap_mw))
                except nvml.NVMLError_NotFound:
                    continue
                except (nvml.NVMLError, ValueError) as error:
                    failed[uuid] = f"GPU {uuid}: {error}; {_HINT}"
        return failed


def _set_back(nvml: Any, uuid: str, cap_mw: int) -> None:
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
    now_mw = nvml.nvmlDeviceGetPowerManagementLimit(gpu)
    if now_mw != cap_mw and now_mw == _lowest_mw(nvml, gpu):
        nvml.nvmlDeviceSetPowerManagementLimit(gpu, cap_mw)


def _lowest_mw(nvml: Any, gpu: Any) -> int:
    lowest_mw, _ = nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
    return int(lowest_mw)


def _gpus(nvml: Any) -> Iterator[Any]:
    return (nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount()))


@contextmanager
def _nvml() -> Iterator[Any]:
    """The module pynvml, ready for calls."""
    try:
        import pynvml
    except ImportError as error:
        hint = "pip install nvidia-ml-py"
        raise Unavailable("GPU power caps need the Python package nvidia-ml-py", hint=hint) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVML does not start: {error}", hint="is there an NVIDIA GPU with its driver?") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVML: {error}", hint=_HINT) from error
    finally:
        with suppress(pynvml.NVMLError):  # what was asked for is done by then, or has its own error
            pynvml.nvmlShutdown()
