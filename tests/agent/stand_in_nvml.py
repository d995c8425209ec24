"""A module `pynvml` of a machine without NVIDIA's driver: GPUs whose load a test writes into a file."""

from pathlib import Path

SOURCE = '''
"""GPUs as many as the file has lines; each line is how busy one is, in percent, or - where the driver tells nothing."""

import os
from types import SimpleNamespace

NVML_ERROR_GPU_IS_LOST, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 15, 1, 0
nvmlEventTypeXidCriticalError = 8
NVML_NVLINK_MAX_LINKS = NVML_NVLINK_ERROR_DL_REPLAY = 0
NVML_NVLINK_ERROR_DL_RECOVERY, NVML_NVLINK_ERROR_DL_CRC_FLIT = 1, 2


class NVMLError(Exception):
    value = 3


def _lines():
    with open(os.environ["STAND_IN_NVML"]) as file:
        return file.read().split()


def _untold(*_):
    raise NVMLError("not supported")


nvmlInit = nvmlShutdown = nvmlDeviceRegisterEvents = lambda *_: None
nvmlDeviceGetCount = lambda: len(_lines())
nvmlDeviceGetHandleByIndex = nvmlDeviceGetIndex = nvmlDeviceGetMinorNumber = lambda at: at
nvmlDeviceGetUUID = lambda at: f"GPU-{at}"
nvmlDeviceGetName = lambda at: "stand-in"
nvmlDeviceGetPciInfo = lambda at: SimpleNamespace(domain=0, bus=at, device=0)
nvmlDeviceGetMemoryInfo = nvmlDeviceGetPowerUsage = nvmlDeviceGetTotalEccErrors = nvmlDeviceGetMigMode = _untold
nvmlEventSetCreate = object
nvmlEventSetWait_v2 = _untold


def nvmlDeviceGetUtilizationRates(at):
    told = _lines()[at]
    return _untold() if told == "-" else SimpleNamespace(gpu=int(told))
'''


class StandInNvml:
    """The module in a folder of its own, and the load that it tells.

    Attributes:
        on: The prefix of a command whose Python finds it.
    """

    def __init__(self, folder: Path, gpus: int) -> None:
        folder.mkdir()
        (folder / "pynvml.py").write_text(SOURCE)
        self._file = folder / "busy"
        self._gpus = gpus
        self.set("0")
        self.on = ("env", f"PYTHONPATH={folder}", f"STAND_IN_NVML={self._file}")

    def set(self, *busy: str) -> None:
        """How busy each GPU is, the last of these all others."""
        lines = [*busy, *[busy[-1]] * (self._gpus - len(busy))]
        # In one step: the agent reads it at any moment.
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self._file)
