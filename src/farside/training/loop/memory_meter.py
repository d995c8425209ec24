"""How much memory a worker has and may have, and how long it waits for memory: by its cgroup, or its own process.

The cgroup's count decides who is killed, so where a cgroup has a limit that count is the only one. Version 1 counts
too; it says nothing of waiting.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from farside.kernel_file import kernel_text
from farside.memory_sense import read_waited_s

_UNLIMITED_BYTES = 1 << 60
"""Version 1 says a limit near 2^63 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a worker has and may have; ``limit_bytes`` 0: no limit. ``stall_s``: waited for memory, since the boot."""

    used_bytes: int
    limit_bytes: int
    stall_s: float


class MemoryMeter:
    """Reads it.

    Args:
        limit_bytes: What this process may have by itself; 0: as its cgroup says.
        proc: The folder /proc.
        cgroups: The folder /sys/fs/cgroup.
    """

    def __init__(
        self, *, limit_bytes: int = 0, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._limit_bytes, self._proc = limit_bytes, proc
        self._cgroup = None if limit_bytes else _limiting(proc, cgroups)

    def read(self) -> MemoryUse:
        """The state now."""
        if self._cgroup is not None:
            folder, names = self._cgroup
            waited_s = read_waited_s(folder / "memory.pressure") or read_waited_s(self._proc / "pressure/memory")
            used_bytes = _number(kernel_text(folder / names.used)) - _inactive_file_bytes(folder)
            return MemoryUse(
                used_bytes=max(0, used_bytes), limit_bytes=_number(kernel_text(folder / names.limit)),
                stall_s=waited_s.get("some", 0.0),
            )  # fmt: skip
        status = kernel_text(self._proc / "self/status")
        own = sum(1024 * int(one) for one in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))
        waited_s = read_waited_s(self._proc / "pressure/memory")
        return MemoryUse(used_bytes=own, limit_bytes=self._limit_bytes, stall_s=waited_s.get("some", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    used: str
    limit: str


_BY_VERSION = {
    1: _Names(used="memory.usage_in_bytes", limit="memory.limit_in_bytes"),
    2: _Names(used="memory.current", limit="memory.max"),
}


def _limiting(proc: Path, cgroups: Path) -> tuple[Path, _Names] | None:
    """The cgroup around this process that has the least limit on memory; None: none has any."""
    found = list[tuple[int, Path, _Names]]()
    for line in kernel_text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = (cgroups, _BY_VERSION[2]) if not controllers else (cgroups / "memory", _BY_VERSION[1])
        folder = root / path.lstrip("/")
        for one in (folder, *folder.parents):
            limit_bytes = _number(kernel_text(one / names.limit))
            if 0 < limit_bytes < _UNLIMITED_BYTES:
                found.append((limit_bytes, one, names))
            if one == root:
                break
    if not found:
        return None
    _, folder, names = min(found, key=lambda one: one[0])
    return folder, names


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _inactive_file_bytes(folder: Path) -> int:
    """Pages of files that the kernel drops before it kills anybody."""
    stat = re.search(r"^(?:total_)?inactive_file (\d+)$", kernel_text(folder / "memory.stat"), re.MULTILINE)
    return int(stat[1]) if stat else 0
