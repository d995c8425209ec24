"""CPU cores as a device: a part is a CPU quota, by cgroup v1 or v2, on the device's cores.

Each device has a group, with one for each part below it: so the sum of all parts is bounded as well as each part. The
period is 10 ms, so that a small part waits milliseconds for its next turn and not a tenth of a second. What a part
could not use in a period, as its neighbour or the front had the core, it may use in the next (Linux 5.14 and newer):
without that it never gets all of its quota beside a neighbour.
"""

import contextlib
import itertools
import math
import re
from pathlib import Path
from typing import ClassVar, NamedTuple

from farside.agent.serving.partition.maker import PATTERN, has_ended, own_mark
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Measured, Traits
from farside.agent.serving.partition.processor import Processor
from farside.errors import Unavailable

NAME = "cpu"
PERIOD_US = 10_000
_BURSTS = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}  # by version of cgroups
QUOTA_US_MIN = 1000  # the kernel takes no less (kernel/sched/core.c: min_cfs_quota_period)
CAPACITY_PCT = 90  # of the cores; the rest is the front's and its clients'
CAPACITY_PCT_MIN = 10
PREPARE_PCT_MIN = 10  # of one core that is QUOTA_US_MIN
WEIGHT = 4
# In v2, where the front has a group of its own; otherwise its place does that (agent/serving/priority.py).
_FRONT_WEIGHT = 10
_CONTROLLERS = ("cpu", "cpuset", "cpuacct")
_LEAF = "farside-front"
_PREFIX = "farside-serve-"
# Of all drivers of this process: they may have the same device.
_parts = itertools.count(1)
_HINT = "run as root, or as a service with Delegate=cpu cpuset"


class _Base(NamedTuple):
    """This process's own group, by controller; in v2 one folder is that of all."""

    version: int
    folders: dict[str, Path]


class CpuDriver(Processor):
    """Cuts cores by quota.

    Args:
        capacity_pct: So much of each device's cores is given to parts; 100 % of a device is that.
        weight: How many processes of others its parts outweigh on each core, up to their quota. Small, as the front is
            such a process; large where nothing but parts is to be measured.
        root: Of the file system; another one than / in tests.
    """

    traits: ClassVar[Traits] = Traits(on_gpu=False, can_resize=True)

    def __init__(self, capacity_pct: int = CAPACITY_PCT, *, weight: int = WEIGHT, root: Path = Path("/")) -> None:
        self.capacity_pct, self._weight, self._root = capacity_pct, weight, root
        self._base: _Base | None = None

    def capabilities(self) -> Capabilities:
        """Whether this process may make groups of its own."""
        try:
            base = self._own_groups()
        except Unavailable as error:
            return Capabilities(problem=str(error))
        return Capabilities(
            parts=f"any percentage whose quota is {QUOTA_US_MIN / 1000:g} ms in {PERIOD_US // 1000} ms at least",
            isolation=f"CPU time and cores, by cgroup v{base.version}; caches and memory bandwidth are shared",
        )

    def check(self, device: Device, part_pct: int) -> None:
        """Whether there are cores, and the kernel takes so small a quota."""
        self._quota_us(device, part_pct)

    def open(self, device: Device, part_pct: int) -> "CpuPlace":
        """A part of the device's cores."""
        quota_us = self._quota_us(device, part_pct)
        base = self._own_groups()
        whole = _groups(base, f"{_PREFIX}{own_mark()}-{device.number}")
        number = next(_parts)
        part = {name: folder / f"part-{number}" for name, folder in whole.items()}
        try:
            self._make(base, whole, self._quota_us(device, 100), device.cores)
            _set_weight(base.version, whole["cpu"], self._weight * len(device.cores))
            if base.version == 2:
                _hand_down(whole["cpu"])
            self._make(base, part, quota_us, device.cores)
        except Unavailable:
            _remove(part)
            _remove(whole)
            raise
        return CpuPlace(self, base.version, device, part_pct, part, whole)

    def _quota_us(self, device: Device, part_pct: int) -> int:
        if not device.cores:
            raise Unavailable(f"device {device.number}: has no cores", hint="name cores, such as [0, 1]")
        quota_us = PERIOD_US * len(device.cores) * self.capacity_pct * part_pct // 10_000
        if quota_us < QUOTA_US_MIN:
            least = math.ceil(QUOTA_US_MIN * 10_000 / (PERIOD_US * len(device.cores) * self.capacity_pct))
            raise Unavailable(
                f"device {device.number}: {part_pct} % of its cores is a quota too small for the kernel",
                hint=f"give parts of {least} % at least",
            )
        return quota_us

    # ---- groups

    def _own_groups(self) -> _Base:
        if self._base is None:
            found = _own_v1(self._root) or _own_v2(self._root)
            if found is None:
                raise Unavailable(f"no cgroup with the cpu controller is mounted below {self._root / 'sys/fs/cgroup'}")
            if found.version == 2:
                _delegate(found.folders["cpu"])
            _try_to_make(found.folders["cpu"])
            for folder in set(found.folders.values()):
                _remove_stale(folder)
            self._base = found
        return self._base

    def _make(self, base: _Base, folders: dict[str, Path], quota_us: int, cores: tuple[int, ...]) -> None:
        for name, folder in folders.items():
            try:
                folder.mkdir(exist_ok=True)
                if name == "cpuset" or (base.version == 2 and (folder / "cpuset.cpus").exists()):
                    _set_cores(folder, cores)
            except OSError as error:
                raise Unavailable(f"{folder}: {error.strerror}", hint=_HINT) from error
        _set_quota(base.version, folders["cpu"], quota_us)


class CpuPlace:
    """A part of cores."""

    def __init__(
        self,
        driver: CpuDriver,
        version: int,
        device: Device,
        part_pct: int,
        folders: dict[str, Path],
        whole: dict[str, Path],
    ) -> None:
        self.part_pct = part_pct
        self._driver, self._version, self._device = driver, version, device
        self._folders, self._whole = folders, whole
        self.entry = Entry(
            files=tuple(sorted({str(folder / "cgroup.procs") for folder in folders.values()})),
            cores=device.cores,
            threads=threads_of(part_pct, len(device.cores)),
        )

    def resize(self, part_pct: int) -> bool:
        """Another quota, at once; False where it wants another number of threads or the kernel refuses."""
        if threads_of(part_pct, len(self._device.cores)) != self.entry.threads:
            return False
        try:
            _set_quota(self._version, self._folders["cpu"], self._driver._quota_us(self._device, part_pct))
        except Unavailable:
            return False
        self.part_pct = part_pct
        return True

    def hold(self, prepare_pct: int) -> bool:
        """Has it so much of the cores at most while its executor loads; the device's group gets that on top.

        So parts that serve keep all that they have, unless the group has all of the cores already.
        """
        driver, cores = self._driver, len(self._device.cores)
        all_us = PERIOD_US * cores
        held_us = min(driver._quota_us(self._device, self.part_pct), all_us * prepare_pct // 100)
        whole_us = driver._quota_us(self._device, 100)
        try:
            _set_quota(self._version, self._whole["cpu"], min(all_us, whole_us + held_us))
            _set_quota(self._version, self._folders["cpu"], max(QUOTA_US_MIN, held_us))
        except Unavailable:
            self.let_go()
            return False
        return True

    def let_go(self) -> None:
        """Its own quota, and the device's."""
        for folders, part_pct in ((self._folders, self.part_pct), (self._whole, 100)):
            with contextlib.suppress(Unavailable):  # it was closed meanwhile
                _set_quota(self._version, folders["cpu"], self._driver._quota_us(self._device, part_pct))

    def measured(self) -> Measured | None:
        """CPU seconds by the kernel's account, by the number of cores."""
        try:
            if self._version == 2:
                text = (self._folders["cpu"] / "cpu.stat").read_text()
                used_s = int(text.split("usage_usec", 1)[1].split(maxsplit=1)[0]) / 1e6
            elif "cpuacct" in self._folders:
                used_s = int((self._folders["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
            else:
                return None
        except OSError:  # closed meanwhile
            return None
        return Measured(used_s / len(self._device.cores))

    def close(self) -> None:
        """Removes the part's groups, and the device's with its last part."""
        _remove(self._folders)
        _remove(self._whole)


def threads_of(part_pct: int, cores: int) -> int:
    """Threads of an executor: with half of two cores a second one would get nothing in most periods."""
    return max(1, math.ceil(part_pct * cores / 100))


# ---- where this process is


def _own_v1(root: Path) -> _Base | None:
    own = {}
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own.update({name: path for name in names.split(",") if name in _CONTROLLERS})
    found = {}
    for fields, kind, options in _mounts(root):
        for name in set(options.split(",")) & own.keys() if kind == "cgroup" else ():
            found[name] = _below(root, fields, own[name])
    return _Base(1, found) if "cpu" in found else None


def _own_v2(root: Path) -> _Base | None:
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    for fields, kind, _ in _mounts(root):
        if kind == "cgroup2" and own is not None:
            folder = _below(root, fields, own)
            controllers = folder / "cgroup.controllers"
            if controllers.exists() and "cpu" in controllers.read_text().split():
                return _Base(2, {"cpu": folder.parent if folder.name == _LEAF else folder})
    return None


def _mounts(root: Path) -> list[tuple[list[str], str, str]]:
    found = []
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        found.append((before.split(" "), kind, options))
    return found


def _below(root: Path, fields: list[str], own: str) -> Path:
    """The folder of a group: its path, as seen from the group that is mounted there."""
    mounted, point = fields[3], fields[4]
    path = own.removeprefix(mounted) if mounted != "/" else own
    return root / point.lstrip("/") / path.lstrip("/")


# ---- files


def _groups(base: _Base, name: str) -> dict[str, Path]:
    return {controller: folder / name for controller, folder in base.folders.items()}


def _delegate(folder: Path) -> None:
    """Lets children of this group have the cpu controller; a group with processes may not, so they move to a leaf.

    The kernel's "no internal processes" rule; the root is exempt.
    """
    leaf = folder / _LEAF
    try:
        if "cpu" not in (folder / "cgroup.subtree_control").read_text().split():
            if (folder / "cgroup.type").exists():  # not the root
                leaf.mkdir(exist_ok=True)
                (leaf / "cgroup.procs").write_text("0")
            _hand_down(folder)
    except OSError as error:
        raise Unavailable(f"{leaf}: {error.strerror}", hint=_HINT) from error
    if leaf.exists():
        _set_weight(2, leaf, _FRONT_WEIGHT)


def _hand_down(folder: Path) -> None:
    """Lets children of this group have cpu, and cpuset where the group has it itself."""
    file = folder / "cgroup.subtree_control"
    try:
        wanted = [name for name in ("cpu", "cpuset") if name in (folder / "cgroup.controllers").read_text().split()]
        file.write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}", hint=_HINT) from error


def _try_to_make(folder: Path) -> None:
    probe = folder / f"{_PREFIX}{own_mark()}-probe"
    try:
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}", hint=_HINT) from error


def _set_cores(folder: Path, cores: tuple[int, ...]) -> None:
    if (mems := folder / "cpuset.mems").exists() and not mems.read_text().strip():
        parent = folder.parent / "cpuset.mems"
        effective = folder.parent / "cpuset.mems.effective"
        nodes = parent.read_text().strip() or (effective.read_text().strip() if effective.exists() else "")
        if nodes:  # v1 takes no process before it has them
            mems.write_text(nodes)
    (folder / "cpuset.cpus").write_text(",".join(map(str, cores)))


def _set_quota(version: int, folder: Path, quota_us: int) -> None:
    burst = folder / _BURSTS[version]
    has_burst = burst.exists()
    try:
        if has_burst:  # the kernel takes no quota that is smaller
            burst.write_text("0")
        if version == 2:
            (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            # The quota last: a part may have no larger share than the group above it, at no moment.
            period = folder / "cpu.cfs_period_us"
            if int(period.read_text()) != PERIOD_US:
                period.write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        if has_burst:
            burst.write_text(str(quota_us))
    except OSError as error:
        raise Unavailable(
            f"{folder}: the kernel refuses a quota of {quota_us / 1000:g} ms in {PERIOD_US / 1000:g} ms "
            f"({error.strerror})",
            hint="the group above may allow less than the device's cores",
        ) from error


def _set_weight(version: int, folder: Path, times: int) -> None:
    """A group's weight, in what a process has by default on one core."""
    try:
        if version == 2:
            (folder / "cpu.weight").write_text(str(min(10_000, 100 * times)))
        else:
            (folder / "cpu.shares").write_text(str(min(262_144, 1024 * times)))
    except OSError as error:
        raise Unavailable(f"{folder}: the kernel refuses a weight ({error.strerror})", hint=_HINT) from error


def _remove(folders: dict[str, Path]) -> None:
    for folder in set(folders.values()):
        with contextlib.suppress(OSError):  # another part is still in it, or it is gone
            folder.rmdir()


def _remove_stale(folder: Path) -> None:
    """Groups that a process which has ended left behind."""
    for group in folder.glob(f"{_PREFIX}*-*"):
        matched = re.fullmatch(rf"{_PREFIX}{PATTERN}-\w+", group.name)
        if matched is None or not has_ended(matched):
            continue
        for each in (*group.glob("part-*"), group):
            with contextlib.suppress(OSError):
                each.rmdir()
