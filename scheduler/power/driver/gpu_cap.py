"""GPU power caps, set by NVML: the lowest cap that a GPU allows while its node is idle. [helios §4.3.2]

nvidia-ml-py is needed by those alone who use it. The driver keeps a cap even when we are gone, until the next boot: who
ends ends its rests first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from farside.errors import Unavailable


class GpuCap:
    """Power caps of all GPUs of this machine. ``watts``: the cap; None: each GPU's minimum."""

    name = "gpu power cap"

    def __init__(self, watts: float | None = None) -> None:
        self._watts = watts
        self._before_mw: dict[int, int] = {}

    def rest(self) -> None:
        """Lower the cap of every GPU, or of none."""
        if self._before_mw:
            return
        before: dict[int, int] = {}
        try:
            with _nvml() as nvml:
                for at in range(nvml.nvmlDeviceGetCount()):
                    gpu = nvml.nvmlDeviceGetHandleByIndex(at)
                    lowest_mw, highest_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
                    cap_mw = lowest_mw if self._watts is None else round(self._watts * 1000)
                    now_mw = nvml.nvmlDeviceGetPowerManagementLimit(gpu)
                    if not lowest_mw <= cap_mw <= highest_mw:
                        span = f"{lowest_mw / 1000:g} to {highest_mw / 1000:g} W"
                        raise Unavailable(f"GPU {at} cannot be capped to {cap_mw / 1000:g} W", hint=f"it takes {span}")
                    before[at] = now_mw
                    nvml.nvmlDeviceSetPowerManagementLimit(gpu, min(cap_mw, now_mw))
        except Unavailable:
            self._set(before)
            raise
        self._before_mw = before

    def resume(self) -> None:
        """Restore the cap of every GPU."""
        self._set(self._before_mw)
        self._before_mw = {}

    def _set(self, caps_mw: dict[int, int]) -> None:
        if not caps_mw:
            return
        with _nvml() as nvml:
            for at, cap_mw in caps_mw.items():
                gpu = nvml.nvmlDeviceGetHandleByIndex(at)
                if nvml.nvmlDeviceGetPowerManagementLimit(gpu) != cap_mw:
                    nvml.nvmlDeviceSetPowerManagementLimit(gpu, cap_mw)


@contextmanager
def _nvml() -> Iterator[Any]:
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
        raise Unavailable(
            f"NVML: {error}", hint="it takes root to set power caps; nvidia-smi -pl tells more"
        ) from error
    finally:
        pynvml.nvmlShutdown()
