"""What holds all processes of a task together, so that they can be signalled, counted and killed without exception.

A cgroup v2 where there is one that the agent may write: nothing leaves it, and the kernel kills all of it at once.
Elsewhere the process tree below the shepherd, which is a child subreaper: whoever loses its parent becomes the
shepherd's child, so that the tree stays whole while the shepherd lives. Only cgroups limit memory and CPUs.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import psutil

from farside.log import get_log

CPU_PERIOD_US = 100_000  # the kernel's default for cpu.max
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))

_log = get_log("agent.run")


class Containment(Protocol):
    """All processes of one task."""

    def enter(self) -> None:
        """Puts the calling process in, and with it all that it starts."""
        ...

    def pids(self) -> Sequence[int]:
        """Processes in it now, without zombies."""
        ...

    def kill(self) -> None:
        """SIGKILL to all of them; some may be left that were just started, so look and kill again."""
        ...

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the task had reached its memory limit."""
        ...

    def close(self) -> None:
        """Takes it away once it is empty."""
        ...


class Cgroup:
    """A cgroup v2 folder of the task's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def enter(self) -> None:
        """Moves the calling process in."""
        (self.folder / "cgroup.procs").write_text("0")

    def pids(self) -> Sequence[int]:
        """Processes in it."""
        try:
            return [int(line) for line in (self.folder / "cgroup.procs").read_text().split()]
        except OSError:  # it is gone, and so are they
            return []

    def kill(self) -> None:
        """Kills all at once, where the kernel can (Linux 5.14, 661ee6281702); else one by one."""
        try:
            (self.folder / "cgroup.kill").write_text("1")
        except OSError:
            send(self.pids(), signal.SIGKILL)

    def oom_kills(self) -> int:
        """As memory.events says; 0 without the memory controller."""
        try:
            lines = (self.folder / "memory.events").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def close(self) -> None:
        """Removes the folder."""
        try:
            self.folder.rmdir()
        except OSError as error:
            if self.folder.exists():
                _log.warning("a cgroup stays", cgroup=self.folder, why=error.strerror)


class Tree:
    """All descendants of the calling process, which must be a child subreaper."""

    def enter(self) -> None:
        """A child is in it already."""

    def pids(self) -> Sequence[int]:
        """Descendants that still run."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.NoSuchProcess:
                pass  # it ended while we looked
        return found

    def kill(self) -> None:
        """Kills those that are there now."""
        send(self.pids(), signal.SIGKILL)

    def oom_kills(self) -> int:
        """Nothing tells."""
        return 0

    def close(self) -> None:
        """Nothing was made."""


def send(pids: Sequence[int], number: int) -> None:
    """A signal to each of the processes that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def containment(cgroup: str) -> Containment:
    """The task's cgroup, or the shepherd's tree where the text is empty."""
    return Cgroup(Path(cgroup)) if cgroup else Tree()


def cgroup_base(setting: str) -> Path | None:
    """The folder that tasks' cgroups are made in, or None where there is none that this process may write.

    ``setting`` is "auto" (below the agent's own cgroup), "off", or a folder that was delegated to the agent.
    """
    if setting == "off":
        return None
    base = Path(setting) if setting != "auto" else _own_cgroup()
    if base is None:
        return None
    base = base / "farside" if setting == "auto" else base
    try:
        base.mkdir(exist_ok=True)
        probe = base / f"probe-{os.getpid()}"
        probe.mkdir()
        has_kernel_files = (probe / "cgroup.procs").exists()
        probe.rmdir()
    except OSError as error:
        _log.warning("no cgroups for tasks", folder=base, why=error.strerror)
        return None
    return base if has_kernel_files else None


def make_cgroup(base: Path, name: str, *, cpus: float, memory_bytes: int) -> Path:
    """A fresh cgroup with the task's limits, where the kernel has the controllers; else a warning is logged.

    Raises:
        OSError: it cannot be made.
    """
    folder = base / name
    folder.mkdir()
    limits = {
        "memory": ("memory.max", str(memory_bytes) if memory_bytes else ""),
        "cpu": ("cpu.max", f"{max(1000, int(cpus * CPU_PERIOD_US))} {CPU_PERIOD_US}" if cpus else ""),
    }
    for controller, (file, value) in limits.items():
        if value and not _limit(base, controller, folder / file, value):
            _log.warning("a limit is not enforced: no such cgroup controller here", controller=controller, task=name)
    return folder


def leftovers(mark: str) -> Sequence[int]:
    """Processes with this mark of a task in their environment, for when its shepherd was killed and had no cgroup."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FARSIDE_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            pass  # it ended, or is another user's
    return found


def _own_cgroup() -> Path | None:
    mount = next((mount for mount in _MOUNTS if (mount / "cgroup.controllers").exists()), None)
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    return None if mount is None or own is None else mount / own


def _limit(base: Path, controller: str, file: Path, value: str) -> bool:
    try:
        if not file.exists():
            (base / "cgroup.subtree_control").write_text(f"+{controller}")
        file.write_text(value)
    except OSError:
        return False
    return True
