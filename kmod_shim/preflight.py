"""Preflight checks before memory is lent, borrowed, or swapped to; each reports what it found and what to do.

A check asks for the feature itself (can a ring be made, can the file be opened with O_DIRECT), never for a kernel's
version. Everything is read below a root folder, so that tests give a fake tree; the few checks that must try a system
call are in `probes`, and take no root.
"""

import os
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from farside.kernel_file import chosen, kernel_text
from farside.kmod_shim import probes
from farside.units import GIB, KIB, MIB, format_bytes

_CAP_IPC_LOCK = 14
MEMORY_LEAST_BYTES = GIB  # below this there is nothing worth lending, and no room for a borrower's pending pages
# A swap server that has to allocate while memory is out needs a reserve: 1/64 of memory, as far as 512 MiB.
MIN_FREE_MOST_BYTES = 512 * MIB


class Outcome(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"  # works, but less well, or lacks what only some set-ups need
    FAILED = "failed"  # needed, and missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `farside doctor`."""

    name: str
    outcome: Outcome
    found: str
    advice: str = ""  # what to do; empty when all is well


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The backup disk that the settings name."""

    path: Path
    size_bytes: int


def preflight(root: Path, *, keys: tuple[Check, ...], disk: Disk | None) -> tuple[Check, ...]:
    """All checks, in the order in which an operator would fix problems; the caller made ``keys``."""
    return (
        engine_check(),
        io_uring_check(),
        memfd_check(),
        memory_check(root),
        huge_page_check(root),
        memlock_check(root),
        min_free_check(root),
        *keys,
        disk_check(disk),
        nbd_check(root),
        rdma_check(root),
    )


def engine_check() -> Check:
    """The C engine can be loaded."""
    try:
        features = probes.engine_features()
    except ImportError as error:
        return _failed("engine", f"can't be loaded: {error}", "run `make venv` in the checkout, or install the package")
    return _ok("engine", features)


def io_uring_check() -> Check:
    """The kernel lets this process make an io_uring, which the backup disk is written with."""
    error = probes.io_uring_error()
    if error:
        return _failed(
            "io_uring",
            f"refused: {os.strerror(error)}",
            "set sysctl kernel.io_uring_disabled=0, or allow io_uring_setup in the container's seccomp profile",
        )
    return _ok("io_uring", "a ring can be made")


def memfd_check() -> Check:
    """Sealed memory files, which hold slabs and the device's state."""
    error = probes.memfd_error()
    if error:
        return _failed("memfd", f"refused: {os.strerror(error)}", "allow memfd_create with sealing in this container")
    return _ok("memfd", "sealed memory files can be made")


def memory_check(root: Path) -> Check:
    """There is memory worth lending."""
    memory = read_meminfo(root)
    total, available = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
    found = f"{format_bytes(total)}, {format_bytes(available)} of it available"
    if total < MEMORY_LEAST_BYTES:
        return _warning("memory", found, f"below {format_bytes(MEMORY_LEAST_BYTES)} little can be lent or borrowed")
    return _ok("memory", found)


def huge_page_check(root: Path) -> Check:
    """Huge pages for slabs: reserved ones, or transparent ones for memory files."""
    free = read_meminfo(root).get("HugePages_Free", 0) // KIB  # a plain count, which read_meminfo has multiplied
    shmem = chosen(kernel_text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    if free:
        return _ok("huge pages", f"{free} reserved pages are free")
    if shmem in ("always", "advise", "within_size", "force"):
        return _ok("huge pages", f"transparent, for memory files: {shmem}")
    return _warning(
        "huge pages",
        "none: slabs are made of small pages and map more slowly",
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )


def memlock_check(root: Path) -> Check:
    """Memory may be pinned: RDMA needs it, and io_uring wants it to use the disk's buffers in place."""
    if may_pin_memory(root):
        return _ok("memlock", "no limit")
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = f"{format_bytes(limit)} may be pinned: no RDMA, and writes to the backup disk may take more CPU"
    return _warning("memlock", found, "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`")


def may_pin_memory(root: Path = Path("/")) -> bool:
    """True when this process may pin as much memory as it likes, as a donor does by RDMA with all that it lends."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return limit == resource.RLIM_INFINITY or has_capability(root, _CAP_IPC_LOCK)


def min_free_check(root: Path) -> Check:
    """The kernel keeps a reserve for those that must allocate when memory is out."""
    text = kernel_text(root / "proc/sys/vm/min_free_kbytes")
    total = read_meminfo(root).get("MemTotal", 0)
    if not text.isdigit():
        return _warning("min_free_kbytes", "can't be read", "is /proc mounted?")
    kept, wanted = int(text) * KIB, wanted_min_free_bytes(total)
    if kept >= wanted:
        return _ok("min_free_kbytes", format_bytes(kept))
    advice = f"before swapping to it: sysctl vm.min_free_kbytes={wanted // KIB}"
    return _warning("min_free_kbytes", f"{format_bytes(kept)} is kept free", advice)


def boost_check(root: Path) -> Check:
    """The kernel does not raise that reserve by itself, which would use up the memory that we keep free above it."""
    factor = kernel_text(root / "proc/sys/vm/watermark_boost_factor")
    if factor in ("", "0"):  # empty: Linux before 5.0 does not have this setting
        return _ok("watermark boost", "off")
    advice = "before swapping to it: sysctl vm.watermark_boost_factor=0"
    return _warning("watermark boost", f"vm.watermark_boost_factor is {factor}", advice)


def wanted_min_free_bytes(total_bytes: int) -> int:
    """Reserve that a machine of this memory size should keep before it swaps to a process, in whole KiB.

    The kernel takes whole KiB: a reserve that has just been set must not be found too small by a fraction of one.
    """
    return min(MIN_FREE_MOST_BYTES, total_bytes // 64) // KIB * KIB


def disk_check(disk: Disk | None) -> Check:
    """The backup disk takes O_DIRECT and is large enough; a file that is not there can be made at the first start."""
    if disk is None:
        return _ok("backup disk", "the settings name none")
    # A character device such as /dev/null can be opened with O_DIRECT too.
    if os.path.exists(disk.path) and not (disk.path.is_file() or disk.path.is_block_device()):
        found = f"{disk.path}: neither a file nor a block device"
        return _failed("backup disk", found, "name one of these in disk_path")
    try:
        # Tried, not looked up: whether a file system takes O_DIRECT is shown by opening a file of it only.
        size = probes.direct_size_bytes(disk.path)
    except FileNotFoundError:
        return _missing_disk_check(disk)
    except OSError as error:
        advice = f"truncate -s {disk.size_bytes} {disk.path}, on a file system that knows O_DIRECT (tmpfs may not)"
        return _failed("backup disk", f"{disk.path}: {error.strerror}", advice)
    if size < disk.size_bytes:
        found = f"{disk.path}: {format_bytes(size)}, the device has {format_bytes(disk.size_bytes)}"
        return _failed("backup disk", found, f"truncate -s {disk.size_bytes} {disk.path}, or lower size_bytes")
    return _ok("backup disk", f"{disk.path}: {format_bytes(size)}, O_DIRECT works")


def _missing_disk_check(disk: Disk) -> Check:
    wanted = format_bytes(disk.size_bytes)
    if not disk.path.parent.is_dir():
        return _failed("backup disk", f"{disk.path}: no such folder", f"make {disk.path.parent}, or name another disk")
    free = shutil.disk_usage(disk.path.parent).free
    if free < disk.size_bytes:
        found = f"{disk.path} is not there, and {wanted} are more than the {format_bytes(free)} that are free"
        return _failed("backup disk", found, "make room, lower size_bytes, or name another disk")
    return _ok("backup disk", f"{disk.path}: made at the first start, with {wanted}")


def nbd_check(root: Path) -> Check:
    """The kernel's NBD client, which /dev/nbdX needs; clients such as qemu and libnbd do without."""
    if (root / "sys/module/nbd").exists():
        return _ok("nbd module", "loaded")
    release = kernel_text(root / "proc/sys/kernel/osrelease")
    listed = kernel_text(root / "lib/modules" / release / "modules.dep") + kernel_text(
        root / "lib/modules" / release / "modules.builtin"
    )
    # Also nbd.ko.xz and the like. A module that is built in is listed too, and may have no folder in /sys/module.
    if re.search(r"/nbd\.ko", listed):
        return _warning("nbd module", "there, not loaded", "modprobe nbd, when /dev/nbdX is wanted")
    advice = "only /dev/nbdX needs it; a Debian kernel (linux-image-amd64) has it"
    return _warning("nbd module", f"not with this kernel ({release or 'unknown'})", advice)


def rdma_check(root: Path) -> Check:
    """RDMA devices, real or soft, and an engine that can use them. Without, pages travel by TCP or shared memory."""
    folder = root / "sys/class/infiniband"
    devices = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if not devices:
        advice = "a card's driver, or a soft device: rdma link add rxe0 type rxe netdev eth0"
        return _warning("rdma", "no device: pages travel by TCP or shared memory", advice)
    if "rdma" not in _engine_features():
        advice = "apt-get install libibverbs-dev librdmacm-dev, and build the engine again"
        return _warning("rdma", f"{', '.join(devices)}; the engine was built without rdma-core", advice)
    return _ok("rdma", ", ".join(devices))


def read_meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes (its few plain counts are multiplied by 1024 too). Empty when it can't be read."""
    found = {}
    for line in kernel_text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            found[name] = int(number[0]) * KIB
    return found


def has_capability(root: Path, number: int) -> bool:
    """Whether this process has the capability of that number (linux/capability.h) in effect."""
    # What is in effect counts: root in a container may lack a capability, and a service of another user may have it.
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", kernel_text(root / "proc/self/status"), re.MULTILINE)
    return effective is not None and bool(int(effective.group(1), 16) >> number & 1)


# Empty without an engine: that is engine_check's to report.
def _engine_features() -> str:
    try:
        return probes.engine_features()
    except ImportError:
        return ""


def _ok(name: str, found: str) -> Check:
    return Check(name=name, outcome=Outcome.OK, found=found)


def _warning(name: str, found: str, advice: str) -> Check:
    return Check(name=name, outcome=Outcome.WARNING, found=found, advice=advice)


def _failed(name: str, found: str, advice: str) -> Check:
    return Check(name=name, outcome=Outcome.FAILED, found=found, advice=advice)


def problems(checks: tuple[Check, ...]) -> Iterator[Check]:
    """Checks whose failure ends a start."""
    return (check for check in checks if check.outcome is Outcome.FAILED)
