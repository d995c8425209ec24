"""GPU power caps, set by NVML: the lowest cap that a GPU allows while its node is idle. [helios §4.3.2]

nvidia-ml-py is needed by those alone who use it. The driver keeps a cap even when we are gone, until the next boot.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from farside.errors import Unavailable


class GpuCap:
    """Power caps of all GPUs of this machine, each at its minimum while the node rests."""

    name = "gpu"

    def settings(self) -> Mapping[str, str]:
        """Cap in milliwatts by the GPU's index."""
        with _gpus() as gpus:
            caps_mw = {str(at): str(nvml.nvmlDeviceGetPowerManagementLimit(gpu)) for at, (nvml, gpu) in enumerate(gpus)}
        if not caps_mw:
            raise Unavailable("this machine has no GPU with a power cap", hint="leave gpu out of rest")
        return caps_mw

    def lower(self) -> None:
        """Set the cap of every GPU to the lowest that it takes."""
        with _gpus() as gpus:
            for nvml, gpu in gpus:
                lowest_mw = _lowest_mw(nvml, gpu)
                if nvml.nvmlDeviceGetPowerManagementLimit(gpu) != lowest_mw:
                    nvml.nvmlDeviceSetPowerManagementLimit(gpu, lowest_mw)

    def restore(self, before: Mapping[str, str]) -> None:
        """Put the caps back, unless another program has changed them since; a GPU that is gone has none."""
        with _gpus() as gpus:
            for at, (nvml, gpu) in enumerate(gpus):
                cap_mw, now_mw = int(before.get(str(at), 0)), nvml.nvmlDeviceGetPowerManagementLimit(gpu)
                if cap_mw and now_mw != cap_mw and now_mw == _lowest_mw(nvml, gpu):
                    nvml.nvmlDeviceSetPowerManagementLimit(gpu, cap_mw)


def _lowest_mw(nvml: Any, gpu: Any) -> int:
    lowest_mw, _ = nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
    return int(lowest_mw)


@contextmanager
def _gpus() -> Iterator[list[tuple[Any, Any]]]:
    """NVML beside each GPU."""
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
        yield [(pynvml, pynvml.nvmlDeviceGetHandleByIndex(at)) for at in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise Unavailable(
            f"NVML: {error}", hint="it takes root to set power caps; nvidia-smi -pl tells more"
        ) from error
    finally:
        pynvml.nvmlShutdown()
