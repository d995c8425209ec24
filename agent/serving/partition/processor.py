"""The processor as a device: what it is and how it is, for the drivers that give parts of its cores."""

import os
from pathlib import Path

import psutil

from farside.agent.serving.partition.policy import Conditions, Device, Identity

_MB = 1 << 20
_CPUINFO = Path("/proc/cpuinfo")


class Processor:
    """What drivers of CPU cores have in common."""

    def identity(self, device: Device) -> Identity:
        """The processor's name, and the memory that goes with the device's cores."""
        names = (line.partition(":")[2].strip() for line in _lines() if line.startswith("model name"))
        share = len(device.cores) / (os.cpu_count() or 1)
        return Identity(next(names, os.uname().machine), round(psutil.virtual_memory().total / _MB * share))

    def conditions(self, device: Device) -> Conditions:
        """The mean clock of all cores, and the hottest sensor's temperature."""
        clocks = [float(line.partition(":")[2]) for line in _lines() if "MHz" in line]
        sensors = psutil.sensors_temperatures()
        degrees = [one.current for name in ("coretemp", "k10temp") for one in sensors.get(name, ())]
        return Conditions(round(sum(clocks) / len(clocks)) if clocks else None, max(degrees, default=None))

    def process_bytes(self, device: Device, pid: int) -> int:
        """Resident memory of a process."""
        return int(psutil.Process(pid).memory_info().rss)


def _lines() -> list[str]:
    return _CPUINFO.read_text().splitlines()
