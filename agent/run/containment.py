"""Containment of a task: keeps all its processes together, so that each can be signalled, counted and killed.

A cgroup v2 where there is one that the agent may write: no process leaves it, and the kernel kills all of them at once.
Elsewhere the process tree below the task supervisor, which is a child subreaper: a process that loses its parent
becomes the supervisor's child, so the tree stays whole while the supervisor lives. Only cgroups limit memory and CPUs.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil

from farside.agent import messages as m
from farside.agent.gpu_files import NO_RULES, DeviceRules
from farside.agent.run.gpu_fence import close_gpus
from farside.log import get_log

CPU_PERIOD_US = 100_000  # the kernel's default for cpu.max
SLICE = "farside.slice"
SWAP_LIMIT = "memory.swap.max"
PROCESS_LIMIT = "pids.max"
_SYSTEMD_RUN = "/usr/bin/systemd-run"
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))

_log = get_log("agent.run")


class Cgroup:
    """A cgroup v2 folder of the task's own."""

    def __init__(self, folder: Path, rules: DeviceRules = NO_RULES) -> None:
        self.folder = folder
        self._rules = rules

    def enter(self) -> None:
        """Move the calling process in, and with it all that it starts.

        Raises:
            OSError: It can't, or others' GPUs can't be closed to it.
        """
        self.folder.mkdir(exist_ok=True)  # in a scope only the supervisor can: systemd makes the rest at its start
        if self._rules.closed:
            try:
                close_gpus(self.folder, self._rules)
            except OSError as error:
                raise OSError(error.errno, f"others' GPUs cannot be closed to it: {error.strerror}") from error
        # 0 is the process that writes.
        (self.folder / "cgroup.procs").write_text("0")

    def pids(self) -> Sequence[int]:
        """Processes in it now, without zombies."""
        try:
            return [int(line) for line in (self.folder / "cgroup.procs").read_text().split()]
        except OSError:  # it is gone, and so are they
            return []

    def kill(self) -> None:
        """Kill all at once where the kernel can (Linux 5.14, 661ee6281702), otherwise one by one.

        Some may be left that were just started, so look and kill again.
        """
        try:
            (self.folder / "cgroup.kill").write_text("1")
        except OSError:
            send(self.pids(), signal.SIGKILL)

    def oom_kills(self) -> int:
        """Number of OOM kills in memory.events, in a scope that of the scope; 0 without the memory controller."""
        for folder in (self.folder, self.folder.parent):
            file = folder / "memory.events"
            if file.exists() and (folder == self.folder or folder.suffix == ".scope"):
                lines = file.read_text().splitlines()
                return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
        return 0

    def close(self) -> None:
        """Remove the folder, once it is empty."""
        try:
            self.folder.rmdir()
        except OSError as error:
            if self.folder.exists():
                _log.warning("a cgroup stays", cgroup=self.folder, why=error.strerror)


class Tree:
    """All descendants of the calling process, which must be a child subreaper."""

    def enter(self) -> None:
        """Do nothing: a child is in the tree already."""

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
        """Kill those that are there now; look and kill again, as with a `Cgroup`."""
        send(self.pids(), signal.SIGKILL)

    def oom_kills(self) -> int:
        """0: nothing counts them."""
        return 0

    def close(self) -> None:
        """Do nothing: nothing was made."""


Containment: TypeAlias = Cgroup | Tree
"""What keeps all processes of one task together."""


def send(pids: Sequence[int], number: int) -> None:
    """A signal to each of the processes that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def containment(cgroup: str, rules: DeviceRules = NO_RULES) -> Containment:
    """The task's cgroup, or the task supervisor's tree, which closes nothing, where the text is empty."""
    return Cgroup(Path(cgroup), rules) if cgroup else Tree()


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupRoot:
    """Folder in which the cgroups of tasks are made.

    Attributes:
        folder: The folder that the cgroups are made in.
        by_systemd: systemd owns the folder, and each task is a systemd scope; otherwise the agent makes cgroups.
        limits_swap: A task can be held to a part of the node's swap.
    """

    folder: Path
    by_systemd: bool = False
    limits_swap: bool = False

    @property
    def limits_memory(self) -> bool:
        """Whether tasks can be held to a part of the node's memory."""
        home = self.folder.parent if self.by_systemd else self.folder
        try:
            return "memory" in (home / "cgroup.controllers").read_text().split()
        except OSError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCgroup:
    """The cgroup of one task: its folder, and the prefix of the supervisor's command line that makes it."""

    folder: Path
    prefix: tuple[str, ...] = ()


def cgroup_root(setting: str) -> CgroupRoot | None:
    """Where this agent's tasks get their cgroups, or None where there is no cgroup v2 that this process may write.

    ``setting`` is "auto" (systemd's scopes where it runs, otherwise below the agent's own cgroup), "off", or a folder
    that was delegated to the agent.
    """
    if setting == "off":
        return None
    mount = _mount()
    if setting == "auto" and mount is not None and _has_systemd():
        # Of systemd's own slice: ours may not be there before the first task is.
        limits_swap = (mount / "system.slice" / SWAP_LIMIT).exists()
        return CgroupRoot(folder=mount / SLICE, by_systemd=True, limits_swap=limits_swap)
    base = Path(setting) if setting != "auto" else _below_own(mount)
    if base is None:
        return None
    try:
        base.mkdir(exist_ok=True)
        # Tried and not computed: a folder that can be made may still have no cgroup's files, or no controllers.
        probe = base / f"probe-{os.getpid()}"
        probe.mkdir()
        has_kernel_files = (probe / "cgroup.procs").exists()
        limits_swap = _limit(base, "memory", probe / SWAP_LIMIT, "0")
        probe.rmdir()
    except OSError as error:
        _log.warning("no cgroups for tasks", folder=base, why=error.strerror)
        return None
    return CgroupRoot(folder=base, limits_swap=limits_swap) if has_kernel_files else None


def task_cgroup_of(home: CgroupRoot, name: str, spec: m.TaskSpec, *, processes: int) -> TaskCgroup:
    """The cgroup for a task of this name, which no other had, with its limits; without controllers a warning is logged.

    CPUs, memory and processes of 0 have no limit; of swap it gets no more than it asked for, 0 included: what one job
    has swapped out, another waits for. The limit on processes is the node's: no job has asked for it.

    Raises:
        OSError: it cannot be made.
    """
    if home.by_systemd:
        return _scope(home, name, spec, processes)
    folder = home.folder / name
    folder.mkdir()
    limits = [
        ("memory", "memory.max", str(spec.memory_bytes) if spec.memory_bytes else ""),
        ("memory", SWAP_LIMIT, str(spec.swap_bytes)),
        # The kernel refuses a quota below 1 ms.
        ("cpu", "cpu.max", f"{max(1000, int(spec.cpus * CPU_PERIOD_US))} {CPU_PERIOD_US}" if spec.cpus else ""),
        ("pids", PROCESS_LIMIT, str(processes) if processes else ""),
    ]
    # Without a limit on memory no swap is missed where it can't be limited: most such kernels swap to nothing.
    unmissed = (PROCESS_LIMIT,) if spec.memory_bytes else (PROCESS_LIMIT, SWAP_LIMIT)
    for controller, file, value in limits:
        if value and not _limit(home.folder, controller, folder / file, value) and file not in unmissed:
            _log.warning("a limit is not enforced: this cgroup has no such file", limit=file, task=name)
    return TaskCgroup(folder=folder)


def _scope(home: CgroupRoot, name: str, spec: m.TaskSpec, processes: int) -> TaskCgroup:
    # Delegate: systemd leaves what is below the scope to the supervisor, which makes the task's folder there.
    limits = ["Delegate=yes", f"MemorySwapMax={spec.swap_bytes}"]
    limits += [f"MemoryMax={spec.memory_bytes}"] if spec.memory_bytes else []
    limits += [f"CPUQuota={max(1, round(spec.cpus * 100))}%"] if spec.cpus else []
    limits += [f"TasksMax={processes}"] if processes else []
    properties = [f"--property={one}" for one in limits]
    prefix = (_SYSTEMD_RUN, "--scope", "--quiet", "--collect", f"--slice={SLICE}", f"--unit={name}", *properties, "--")
    # The task supervisor stays in the scope itself, so that killing the task does not kill it.
    return TaskCgroup(folder=home.folder / f"{name}.scope" / "task", prefix=prefix)


def leftovers(mark: str) -> Sequence[int]:
    """Processes with this mark of a task in their environment, for when its supervisor was killed and had no cgroup."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FARSIDE_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            pass  # it ended, or is another user's
    return found


def _mount() -> Path | None:
    return next((mount for mount in _MOUNTS if (mount / "cgroup.controllers").exists()), None)


def _has_systemd() -> bool:
    return os.geteuid() == 0 and Path("/run/systemd/system").is_dir() and Path(_SYSTEMD_RUN).exists()  # sd_booted(3)


def _below_own(mount: Path | None) -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    return None if mount is None or own is None else mount / own / "farside"


def _limit(base: Path, controller: str, file: Path, value: str) -> bool:
    try:
        # The file is there only once the parent gives the controller to its children. That fails where the parent has
        # processes of its own (cgroup v2 has them in leaves only), or was not given the controller itself.
        if not file.exists():
            (base / "cgroup.subtree_control").write_text(f"+{controller}")
        file.write_text(value)
    except OSError:
        return False
    return True
