"""Limits that the kernel sets: on the memory of processes, and on what they read from a disk. By cgroups, as root."""

import os
from pathlib import Path

from farside.errors import Unavailable
from tests.support.waiting import until

ROOT = Path("/sys/fs/cgroup")


class _Group:
    """A cgroup of a controller, by version 2 or by version 1 where the controller is still there."""

    def __init__(self, controller: str, in_version1: str, name: str) -> None:
        if os.geteuid() != 0:
            raise Unavailable(f"a limit on {controller} needs root")
        # In version 1 each controller has a hierarchy of its own.
        self.is_v1 = (ROOT / in_version1 / "cgroup.procs").exists()
        self.folder = (ROOT / in_version1 if self.is_v1 else ROOT) / f"farside-{os.getpid()}-{name}"
        try:
            if not self.is_v1:
                (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
            self.folder.mkdir()
        except OSError as error:
            raise Unavailable(f"the kernel does not limit {controller} here: {error}") from error

    def limit(self, file: str, value: str) -> None:
        try:
            (self.folder / file).write_text(value)
        except OSError as error:
            self.folder.rmdir()
            raise Unavailable(f"the kernel does not take {value} in {file}: {error.strerror}") from error

    @property
    def enter(self) -> str:
        """A shell's words that move it there."""
        return f"echo $$ >{self.folder}/cgroup.procs; "

    def close(self) -> None:
        """Removes it, once its processes have ended."""
        until(lambda: not (self.folder / "cgroup.procs").read_text(), what="the end of its processes")
        self.folder.rmdir()


class MemoryLimit(_Group):
    """A limit on memory."""

    def __init__(self, limit_bytes: int, name: str = "memory") -> None:
        """Makes it.

        Raises:
            Unavailable: This user or this machine can't; with the reason.
        """
        super().__init__("memory", "memory", name)
        self.limit("memory.limit_in_bytes" if self.is_v1 else "memory.max", str(limit_bytes))

    @property
    def kills(self) -> int:
        """How many processes were killed for memory."""
        name = "memory.oom_control" if self.is_v1 else "memory.events"
        rows = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(rows["oom_kill"])


class ReadLimit(_Group):
    """A limit on what is read from the disk that has a folder, past the page cache."""

    def __init__(self, folder: Path, bytes_s: int, name: str = "reads") -> None:
        """Makes it.

        Raises:
            Unavailable: This user or this machine can't, or no disk has that folder; with the reason.
        """
        disk = _disk_of(folder)
        super().__init__("io", "blkio", name)
        if self.is_v1:
            self.limit("blkio.throttle.read_bps_device", f"{disk} {bytes_s}")
        else:
            self.limit("io.max", f"{disk} rbps={bytes_s}")


def _disk_of(folder: Path) -> str:
    """The whole disk below a file system, as the kernel numbers it: limits are not of partitions."""
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        raise Unavailable(f"{folder} is on no disk whose reads can be limited")
    device = device.resolve()
    return ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()
