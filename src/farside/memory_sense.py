"""Readings of memory use and pressure from /proc and cgroup v2.

Takes the folder to read, so that a test or a sandbox can give a tree of its own. What this kernel does not have becomes
None here, and nowhere else.
"""

from dataclasses import dataclass
from pathlib import Path

from farside.errors import Unavailable

CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Memory of the machine, or of the cgroup that counts in its place."""

    total_bytes: int
    available_bytes: int  # what programs could still get without swapping
    psi_full_pct: float | None  # share of the last 10 s in which all programs waited for memory; None: not told
    huge_page_bytes: int  # size of a huge page, 0 where there are none
    huge_pages_free: int  # set aside by the operator and not in use


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySense:
    """Reads memory use.

    Attributes:
        proc_root: /proc, or a folder like it with at least ``meminfo``.
        cgroup: A cgroup v2 folder that this process runs in, absolute or below /sys/fs/cgroup; empty for the machine.
    """

    proc_root: Path
    cgroup: str = ""

    def read(self) -> MemoryReading:
        """The state now.

        Raises:
            Unavailable: there is no meminfo, or no such cgroup.
        """
        meminfo = _meminfo(self.proc_root / "meminfo")
        total, available = meminfo["MemTotal"], meminfo["MemAvailable"]
        pressure = self.proc_root / "pressure" / "memory"
        if self.cgroup:
            folder = CGROUP_ROOT / self.cgroup
            total, available = _within_cgroup(folder, total, available)
            pressure = folder / "memory.pressure"
        return MemoryReading(
            total_bytes=total,
            available_bytes=available,
            psi_full_pct=read_avg10(pressure).get("full"),
            huge_page_bytes=meminfo.get("Hugepagesize", 0),
            huge_pages_free=meminfo.get("HugePages_Free", 0) - meminfo.get("HugePages_Rsvd", 0),
        )


def _meminfo(path: Path) -> dict[str, int]:
    """Lines of meminfo; sizes in bytes, counts as they are."""
    try:
        values = dict(_meminfo_line(line) for line in path.read_text().splitlines() if ":" in line)
    except (OSError, ValueError, IndexError) as error:
        raise Unavailable(f"{path}: cannot be read as meminfo ({error})") from error
    for name in ("MemTotal", "MemAvailable"):
        if name not in values:
            raise Unavailable(f"{path}: has no {name}")
    return values


def _meminfo_line(line: str) -> tuple[str, int]:
    name, rest = line.split(":", 1)
    words = rest.split()
    return name, int(words[0]) * (1024 if words[1:] == ["kB"] else 1)


def _within_cgroup(folder: Path, machine_total: int, machine_available: int) -> tuple[int, int]:
    """Total and available of a cgroup: bounded by its limit and by the machine."""
    try:
        current = int((folder / "memory.current").read_text())
        limit_text = (folder / "memory.max").read_text().strip()
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError) as error:
        raise Unavailable(f"{folder}: is no cgroup v2 with the memory controller ({error})") from error
    total = machine_total if limit_text == "max" else min(machine_total, int(limit_text))
    # File pages on the inactive list are what the kernel drops first, as in MemAvailable.
    used = current - int(stat.get("inactive_file", 0))
    return total, max(0, min(machine_available, total - used))


def read_avg10(path: Path) -> dict[str, float]:
    """Pressure of the last 10 s in percent, by kind (some, full); empty without PSI (not built in, or psi=0)."""
    return _pressure(path, "avg10")


def read_waited_s(path: Path) -> dict[str, float]:
    """Seconds in which programs waited, since the boot or since the cgroup was made, by kind; empty without PSI."""
    return {kind: waited_us / 1e6 for kind, waited_us in _pressure(path, "total").items()}


def _pressure(path: Path, figure: str) -> dict[str, float]:
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
        return {kind: float(dict(one.split("=") for one in rest)[figure]) for kind, *rest in rows}
    except (OSError, ValueError, KeyError):
        return {}
