"""nbd in sysfs and /dev: the module, devices, their queues, and the readahead of swap. Below a root folder."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from farside.errors import ConfigError, Unavailable
from farside.kernel_file import chosen, kernel_text
from farside.units import KIB

SECTOR_BYTES = 512
MODULE = "nbd"
# One hardware queue for each socket, with 128 tags each (the default of nbd's tag set). More requests would only wait
# in the block layer.
QUEUE_DEPTH = 128
PAGE_CLUSTER = Path("proc/sys/vm/page-cluster")
MIN_FREE = Path("proc/sys/vm/min_free_kbytes")
WATERMARK_BOOST = Path("proc/sys/vm/watermark_boost_factor")
UDEV_LIMIT_S = 10  # udev does many other things while a machine starts or ends


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockState:
    """A device in sysfs. ``pid`` is the process that connected it, None when it is not connected."""

    index: int
    size_bytes: int
    pid: int | None
    backend: str
    scheduler: str
    queue_depth: int


def load_module(root: Path = Path("/")) -> None:
    """Has nbd in the kernel. Raises Unavailable where the kernel has none, ConfigError without the right to load it."""
    if (root / "sys/module" / MODULE).exists():
        return
    done = _run("modprobe", MODULE, hint="apt-get install kmod, or load nbd by other means")
    if done.returncode:
        reason = " ".join(done.stderr.split())
        # Without the right to load it nothing is known: only root learns that the kernel has none.
        if "not permitted" in reason or os.geteuid() != 0:
            raise ConfigError(f"modprobe {MODULE}: {reason}", hint="load it as root: modprobe nbd")
        release = os.uname().release
        raise Unavailable(
            f"kernel {release} has no nbd module: {reason}",
            hint="a Debian kernel (linux-image-amd64) has it; in a container, load it on the host",
        )


def device_index(device: str) -> int:
    """X of /dev/nbdX. Raises ConfigError when it is another path."""
    number = device.removeprefix("/dev/").removeprefix("nbd")
    if not (number.isascii() and number.isdigit()):
        raise ConfigError(f"'{device}' is not an nbd device", hint="name one as /dev/nbd0, or leave --device out")
    return int(number)


def device_path(index: int) -> str:
    """Device file of this index."""
    return f"/dev/nbd{index}"


def read_block(root: Path, index: int) -> BlockState | None:
    """The device, or None when the module has made no such device."""
    folder = root / f"sys/block/nbd{index}"
    if not folder.is_dir():
        return None
    pid = kernel_text(folder / "pid")
    return BlockState(
        index=index,
        size_bytes=int(kernel_text(folder / "size") or 0) * SECTOR_BYTES,
        pid=int(pid) if pid.isdigit() else None,
        backend=kernel_text(folder / "backend"),
        scheduler=chosen(kernel_text(folder / "queue/scheduler")),
        queue_depth=int(kernel_text(folder / "queue/nr_requests") or 0),
    )


def tune_queue(root: Path, index: int) -> None:
    """No scheduler before a device without seeks, and no deeper queue than it has tags. Raises ConfigError."""
    queue = root / f"sys/block/nbd{index}/queue"
    # The scheduler first: a change of it sets nr_requests anew.
    _write(queue / "scheduler", "none")
    if int(kernel_text(queue / "nr_requests") or 0) > QUEUE_DEPTH:
        _write(queue / "nr_requests", str(QUEUE_DEPTH))


def read_number(root: Path, name: Path) -> int | None:
    """A number of /proc/sys, or None where this kernel has none there."""
    text = kernel_text(root / name)
    return int(text) if text.isdigit() else None


def write_number(root: Path, name: Path, value: int) -> None:
    """Sets a number of /proc/sys. Raises ConfigError."""
    _write(root / name, str(value))


def hold_exclusively(device: str) -> None:
    """Returns when nobody has the device mounted, swapped to or in a volume. Raises ConfigError when somebody has."""
    try:
        # Without O_CREAT, O_EXCL is the kernel's own claim on a block device. It fails while a mount, a swap area or a
        # volume has the device; a program that merely has it open does not count.
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        hint = "umount it, `swapoff` it, or take it out of its volume first"
        raise ConfigError(f"{device}: {error.strerror}", hint=hint) from error


def wait_for_udev() -> None:
    """Returns when udev has seen what was closed last, or after UDEV_LIMIT_S; at once where there is none.

    udev reads the partition table of a device that was open for writing and is closed, as swapoff does. If the device
    goes away in the middle of that, the kernel's log has I/O errors without a fault behind them.
    """
    with suppress(FileNotFoundError):
        subprocess.run(["udevadm", "settle", f"--timeout={UDEV_LIMIT_S}"], capture_output=True, check=False)


def signature(device: str) -> Mapping[str, str]:
    """Signatures on a device by blkid's probe, such as TYPE and UUID; empty if there are none. Raises ConfigError."""
    # -p reads the device itself: blkid's cache may describe an earlier device of this name.
    done = _run("blkid", "-p", "-o", "export", device, hint="apt-get install util-linux")
    if done.returncode not in (0, 2):  # 2: nothing was found
        raise ConfigError(f"blkid {device}: {' '.join(done.stderr.split()) or done.returncode}")
    lines = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in lines if name in ("TYPE", "UUID", "LABEL", "PTTYPE")}


def write_swap_signature(device: str, label: str, size_bytes: int = 0) -> str:
    """Run mkswap and check the result with blkid; return the area's UUID. Raises ConfigError.

    ``size_bytes``: of the area, from the device's begin; 0: all of it.
    """
    size = (str(size_bytes // KIB),) if size_bytes else ()
    # --force: the caller has looked at what is there. A label has 15 bytes at most, and a null.
    done = _run("mkswap", "--force", "--label", label[:15], device, *size, hint="apt-get install util-linux")
    if done.returncode:
        raise ConfigError(f"mkswap {device}: {' '.join(done.stderr.split())}")
    found = signature(device)
    if found.get("TYPE") != "swap":
        raise ConfigError(f"{device}: mkswap left no swap signature", hint="see dmesg for I/O errors")
    return found.get("UUID", "")


def _run(*command: str, hint: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is missing", hint=hint) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="it needs root, and /sys and /proc writable") from error
