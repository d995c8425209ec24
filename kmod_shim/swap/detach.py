"""`farside swap detach`: swapoff first, always; connections end only when nothing needs them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farside.errors import ConfigError, FarsideError
from farside.kmod_shim.nbd import sysfs
from farside.kmod_shim.swap.attach import Refused, allow_sleep_unless_used, disconnect
from farside.kmod_shim.swap.call import progress_line, swap_off
from farside.kmod_shim.swap.record import Attached, forget_record, live_records
from farside.kmod_shim.swap.refusal import detach_refusals, standing
from farside.kmod_shim.swap.sysctl import leave_machine
from farside.kmod_shim.swap.table import SwapArea, find_area, read_room, read_swaps

RETRY_S = 5.0  # between two attempts of detach_patiently


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """Bytes that were brought back, and the time it took."""

    attached: Attached
    bytes_back: int
    seconds: float


def choose(root: Path, device: str | None) -> Attached:
    """The attached device that is meant; without a name the only one. Raises ConfigError."""
    records = live_records(root)
    if device is not None:
        index = sysfs.device_index(device)
        found = next((record for record in records if record.index == index), None) or _unrecorded(root, index)
        if found is None:
            raise ConfigError(f"{sysfs.device_path(index)} is not attached", hint="see `farside swap status`")
        return found
    # Without a name the choice must be clear: to switch off the wrong swap may take minutes.
    match records:
        case (only,):
            return only
        case ():
            raise ConfigError("no device is attached", hint="name a device attached otherwise, such as /dev/nbd0")
    names = ", ".join(record.device for record in records)
    raise ConfigError("several devices are attached", hint=f"name one of {names}")


def detach(attached: Attached, root: Path, tell: Callable[[str], None], *, forced: tuple[str, ...] = ()) -> Detached:
    """Switches swap off where it is on, then disconnects; ``tell`` gets a line about its progress.

    Raises:
        Refused: Memory would not hold what is out; nothing was done.
        FarsideError: The kernel refused, or it was interrupted; the device stays attached and swap on.
    """
    began_s = time.monotonic()
    # 1. swap off: nothing below may happen while pages are there
    area = find_area(read_swaps(root), attached.device)
    if area is not None:
        if left := standing(tuple(detach_refusals(area, read_room(root, area))), forced):
            raise Refused(left)
        _swap_off(area, root, tell)
    # 2. nothing else may use it: udev for a moment after swapoff, a mount, another swap area
    sysfs.wait_for_udev()
    sysfs.hold_exclusively(attached.device)
    # 3. disconnect, and put the machine back as it was before the first device
    disconnect(attached)
    forget_record(root, attached.index)
    others = tuple(record for record in live_records(root) if record.index != attached.index)
    leave_machine(root, attached, others)
    allow_sleep_unless_used(root)
    return Detached(attached=attached, bytes_back=area.used_bytes if area else 0, seconds=time.monotonic() - began_s)


def served_by(root: Path, admin_socket: Path) -> tuple[Attached, ...]:
    """Attached devices of the blockdev with that admin socket."""
    return tuple(record for record in live_records(root) if record.admin_socket == str(admin_socket))


def detach_patiently(
    attached: Attached, root: Path, tell: Callable[[str], None], *, wait_s: float, forced: tuple[str, ...] = ()
) -> Detached:
    """Detach, with new attempts until ``wait_s`` have passed: programs that end make room for swapped pages.

    Raises:
        FarsideError: It could not be done in that time; the last reason.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return detach(attached, root, tell, forced=forced)
        # Refused is one of them: there was no room at that moment.
        except FarsideError as error:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise
            tell(f"{error} (trying on for {left_s:.0f} s)")
            time.sleep(min(RETRY_S, left_s))


def _swap_off(area: SwapArea, root: Path, tell: Callable[[str], None]) -> None:
    began_s = time.monotonic()

    def used_bytes() -> int | None:
        now = find_area(read_swaps(root), area.path)
        return None if now is None else now.used_bytes

    def told(now_bytes: int) -> None:
        tell(progress_line(before_bytes=area.used_bytes, now_bytes=now_bytes, began_s=began_s))

    swap_off(area.path, used_bytes=used_bytes, tell=told)
    # What the kernel shows counts: to disconnect a device with swap on it would lose its pages.
    if used_bytes() is not None:
        raise ConfigError(f"{area.path} is still in /proc/swaps after swapoff", hint="see dmesg")


def _unrecorded(root: Path, index: int) -> Attached | None:
    # Attached by nbd-client, or its record is lost: the kernel knows enough of it to let it go in the right order.
    block = sysfs.read_block(root, index)
    if block is None or block.pid is None:
        return None
    return Attached(
        index=index,
        export=block.backend.removeprefix("farside:"),
        endpoint="",
        admin_socket="",
        connections=0,
        size_bytes=block.size_bytes,
        server_flags=0,
        backend=block.backend,
        is_swap=find_area(read_swaps(root), sysfs.device_path(index)) is not None,
        priority=0,
    )
