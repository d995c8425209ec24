"""Physical storage below a file or partition: block devices down to the disks, or memory if there is no disk.

A backup disk may lie in memory (tmpfs, zram, a loop device over tmpfs) or on the very device that it backs. Then what
is swapped out would need memory or the device itself, and the machine would wait for itself. All is read below a root
folder, so that tests give a fake tree.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from farside.kernel_file import unescaped

# File systems whose content is memory; what is written there may be swapped out itself.
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """Storage below a path.

    Attributes:
        filesystem: Its type; empty for a partition or disk that is used bare.
        devices: Names in /sys/block or below, top (sda2, dm-0) to bottom (sda); empty when it is no disk's.
        files: Files behind the loop devices among them.
    """

    filesystem: str
    devices: tuple[str, ...]
    files: tuple[str, ...] = ()

    @property
    def is_memory(self) -> bool:
        """True when the storage is memory."""
        return self.filesystem in MEMORY_FILESYSTEMS or any(re.match(r"zram|ram\d", name) for name in self.devices)


def find_backing(path: Path, root: Path = Path("/")) -> Backing:
    """Storage of a file or device, or of the folder where it will be made. Raises OSError for a path to nowhere."""
    place = path
    # A file that will be made later: the folder above it that exists decides.
    while not place.exists() and place != place.parent:
        place = place.parent
    status = place.stat()
    bare = place.is_block_device()
    number = status.st_rdev if bare else status.st_dev
    filesystem = "" if bare else filesystem_of(place, (root / "proc/self/mountinfo").read_text())
    # In order and each once: a disk may be reached in two ways (RAID over two partitions). A file system that is on no
    # block device, or on several (btrfs), has a number that no device has, so nothing is found.
    found = tuple(dict.fromkeys(_devices(root, f"{os.major(number)}:{os.minor(number)}")))
    files = tuple(_loop_file(root, name) for name in found if name.startswith("loop"))
    return Backing(filesystem=filesystem, devices=found, files=tuple(file for file in files if file))


def filesystem_of(path: Path, mountinfo: str) -> str:
    """The type of the file system at a path, by the longest mount point above it in /proc/self/mountinfo."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        # The mount point is field 5; blanks in it are written as \040.
        point = unescaped(before.split()[4])
        above = Path(point)
        if (above == path or above in path.parents) and len(above.parts) >= best:  # the later mount covers the earlier
            best, found = len(above.parts), after.split()[0]
    return found


def shares_disk(one: Backing, other: Backing) -> str:
    """The name of a device that both lie on, or an empty string."""
    return next((name for name in one.devices if name in other.devices), "")


def _devices(root: Path, number: str) -> Iterator[str]:
    folder = root / "sys/dev/block" / number
    if folder.exists():
        yield from _below(folder.resolve())


def _below(folder: Path) -> Iterator[str]:
    yield folder.name
    # In sysfs a partition's folder is inside its disk's.
    if (folder / "partition").exists():
        yield from _below(folder.parent)
    with suppress(OSError):
        for slave in sorted((folder / "slaves").iterdir()):  # device mapper, RAID
            yield from _below(slave.resolve())


def _loop_file(root: Path, name: str) -> str:
    with suppress(OSError):
        return (root / f"sys/block/{name}/loop/backing_file").read_text().strip()
    return ""
