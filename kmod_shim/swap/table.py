"""Swap areas of /proc/swaps: which are on, how full, and whether memory could hold one that is switched off."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farside.kernel_file import unescaped
from farside.kmod_shim.preflight import read_meminfo
from farside.units import KIB, MIB

# Part of available memory that swapoff may not fill, a 64th of all memory: other programs go on allocating meanwhile.
# What the kernel calls available leaves out its own reserve already.
SPARE_SHARE = 64
SPARE_LEAST_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapArea:
    """One line of /proc/swaps."""

    path: str
    kind: str  # "partition" or "file"
    size_bytes: int
    used_bytes: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A cgroup with a memory limit and pages swapped out. ``used_bytes`` leaves out files that it has cached."""

    name: str
    limit_bytes: int
    used_bytes: int
    swapped_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Room for an area's pages elsewhere."""

    memory_bytes: int  # available without swapping, less a reserve
    other_swap_bytes: int  # free in the other areas
    groups: tuple[Group, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Room for pages in all."""
        return self.memory_bytes + self.other_swap_bytes


def parse_swaps(text: str) -> tuple[SwapArea, ...]:
    """Areas of /proc/swaps, in its order. A path's spaces are written there as \\040, and returned as spaces."""
    areas = []
    # The first line names the columns.
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) == 5:
            path, kind, size, used, priority = fields
            areas.append(
                SwapArea(
                    path=unescaped(path),
                    kind=kind,
                    size_bytes=int(size) * KIB,
                    used_bytes=int(used) * KIB,
                    priority=int(priority),
                )
            )
    return tuple(areas)


def read_swaps(root: Path) -> tuple[SwapArea, ...]:
    """The areas that are on; none where /proc/swaps can't be read (a kernel without swap)."""
    try:
        return parse_swaps((root / "proc/swaps").read_text())
    except OSError:
        return ()


def find_area(areas: tuple[SwapArea, ...], device: str) -> SwapArea | None:
    """The area on that device file, or None."""
    return next((area for area in areas if area.path == device), None)


def read_room(root: Path, area: SwapArea) -> Room:
    """Where the pages of an area would go now if it were switched off."""
    memory = read_meminfo(root)
    spare = max(SPARE_LEAST_BYTES, memory.get("MemTotal", 0) // SPARE_SHARE)
    others = [other for other in read_swaps(root) if other.path != area.path]
    return Room(
        memory_bytes=max(0, memory.get("MemAvailable", 0) - spare),
        other_swap_bytes=sum(other.size_bytes - other.used_bytes for other in others),
        groups=tuple(_limited_groups(root / "sys/fs/cgroup")),
    )


def _limited_groups(top: Path) -> Iterator[Group]:
    # A page that comes back is charged to its own group: past the limit the group's programs are killed, however much
    # the machine has left. The limit of a parent counts for its children too, so every level is looked at.
    for folder, _, files in os.walk(top):
        if "memory.swap.current" in files:
            here = Path(folder)
            limit, swapped = _number(here / "memory.max"), _number(here / "memory.swap.current")
            # A group without a limit holds all that the machine has room for, and one without swapped pages gets none
            # back.
            if limit is not None and swapped:
                used = max(0, (_number(here / "memory.current") or 0) - _cached_bytes(here))
                yield Group(name=f"/{here.relative_to(top)}", limit_bytes=limit, used_bytes=used, swapped_bytes=swapped)


def _cached_bytes(group: Path) -> int:
    # Files it has read: the kernel lets go of these before anybody is killed.
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("active_file", "inactive_file"))


def _number(path: Path) -> int | None:
    # "max" is no limit; a group may end while it is read.
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
