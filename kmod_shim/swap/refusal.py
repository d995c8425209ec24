"""Rules that refuse to attach or detach a swap device; each says what to do. PURE.

A refusal that names an option in ``force`` may be overruled by that option; the others never. The options' names say
what may happen, so that nobody types them by habit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farside.geometry import GRANULE_BYTES, PAGE_BYTES
from farside.kmod_shim.disk_backing import NETWORK_FILESYSTEMS, Backing, shares_disk
from farside.kmod_shim.preflight import Check, Outcome
from farside.kmod_shim.swap.hibernation import Hibernation, names_device
from farside.kmod_shim.swap.record import Attached
from farside.kmod_shim.swap.table import Room, SwapArea
from farside.units import format_bytes

MAY_HANG = "--force-although-the-machine-may-hang"
SAME_DISK = "--force-swap-on-the-same-disk"
OVERWRITE = "--force-overwrite"
MEMORY_OUT = "--force-although-memory-may-run-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason. ``found`` and ``way_out`` make one line; ``force`` is the option that overrules it, or empty.

    ``by_guard``: it goes away when the served device's processes are guarded, which attaching asks for.
    """

    found: str
    way_out: str
    force: str = ""
    by_guard: bool = False


def refusal_line(refusal: Refusal) -> str:
    """One refusal for people: what was found, the way out, and the option that overrules it."""
    return f"{refusal.found}; {refusal.way_out}{f' ({refusal.force})' if refusal.force else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherArea:
    """Swap that is on already, and where it is (None: unknown)."""

    area: SwapArea
    backing: Backing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Status of a running `farside blockdev`, as far as attaching needs it."""

    name: str
    size_bytes: int
    slab_bytes: int
    workers: int
    connections: int
    offered: bool
    server_pid: int
    supervisor_pid: int
    listen: tuple[str, ...]
    disk_path: str

    @property
    def free_workers(self) -> int:
        """Connections that the device can serve besides those that it serves."""
        return self.workers - self.connections


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachFacts:
    """Facts for the rules of attaching.

    Attributes:
        may_administer: We have CAP_SYS_ADMIN.
        device: The device file that was asked for; empty for any.
        device_number: Its MAJOR:MINOR, empty without one.
        device_is_connected: Somebody is connected to it.
        connections: Sockets that the kernel is to have.
        guard: The checks of its processes; empty where no swap is wanted.
    """

    served: Served
    is_swap: bool
    priority: int
    may_administer: bool
    device: str
    device_number: str
    device_is_connected: bool
    connections: int
    records: tuple[Attached, ...]
    guard: tuple[Check, ...]
    backings: tuple[Backing, ...]
    others: tuple[OtherArea, ...]
    hibernation: Hibernation
    asked_bytes: int = 0  # size of the swap that is asked for; 0: all of the device


def attach_refusals(facts: AttachFacts) -> Iterator[Refusal]:
    """Every reason not to attach, gravest first; none when all is well."""
    yield from _right(facts)
    yield from _device(facts)
    yield from _served(facts)
    yield from _size(facts)
    # A device with --block is not swapped to, so nothing can wait for itself.
    if facts.is_swap:
        yield from _backup(facts)
        yield from _other_swap(facts)
        yield from _sleep(facts)
        yield from _guard(facts)


def detach_refusals(area: SwapArea, room: Room) -> Iterator[Refusal]:
    """Reasons not to switch swap off now: memory, or a group's limit, would not hold what is out."""
    out = format_bytes(area.used_bytes)
    if area.used_bytes > room.total_bytes:
        yield Refusal(
            found=f"{out} are out on {area.path}, and memory has room for {format_bytes(room.memory_bytes)}"
            + (f", other swap for {format_bytes(room.other_swap_bytes)}" if room.other_swap_bytes else ""),
            way_out=f"end programs, or add {format_bytes(area.used_bytes - room.total_bytes)} of other swap first",
            force=MEMORY_OUT,
        )
    for group in room.groups:
        # The kernel does not say on which area a group's pages are: at worst all of them are on this one.
        excess = min(area.used_bytes, group.swapped_bytes) + group.used_bytes - group.limit_bytes
        if excess > room.other_swap_bytes:
            yield Refusal(
                found=f"cgroup {group.name} has {format_bytes(group.swapped_bytes)} out and a limit of "
                f"{format_bytes(group.limit_bytes)}: its programs would be killed",
                way_out=f"raise its memory.max by {format_bytes(excess)}, or end them first",
                force=MEMORY_OUT,
            )


def standing(refusals: Sequence[Refusal], forced: Sequence[str]) -> tuple[Refusal, ...]:
    """Refusals that no given option overrules."""
    return tuple(refusal for refusal in refusals if not refusal.force or refusal.force not in forced)


def _right(facts: AttachFacts) -> Iterator[Refusal]:
    if not facts.may_administer:
        yield Refusal(
            found="attaching a device needs CAP_SYS_ADMIN, and this process has not got it",
            way_out="run it as root, outside of containers",
        )


def _device(facts: AttachFacts) -> Iterator[Refusal]:
    # Two devices over one export would each write to the same pages.
    for record in facts.records:
        if record.export == facts.served.name:
            yield Refusal(
                found=f"{facts.served.name} is attached already, as {record.device}",
                way_out=f"`farside swap detach {record.device}` first, or go on with that one",
            )
    if facts.device_is_connected:
        yield Refusal(
            found=f"{facts.device} is busy: it is connected to a server",
            way_out="name another with --device, or leave that out for any that is free",
        )


def _served(facts: AttachFacts) -> Iterator[Refusal]:
    served = facts.served
    if not served.offered:
        yield Refusal(
            found=f"{served.name} waits for its donors and takes no clients yet",
            way_out="see `farside status`; try again when they are there",
        )
    # Not when it takes no clients at all: then the number of workers is not what keeps them out.
    elif served.free_workers < max(1, facts.connections):
        yield Refusal(
            found=f"{facts.connections} connections are wanted, {served.name} has {served.free_workers} workers free",
            way_out="raise `workers` in blockdev.toml, or name fewer with --connections",
        )


def _size(facts: AttachFacts) -> Iterator[Refusal]:
    unit = max(facts.served.slab_bytes, GRANULE_BYTES)
    if facts.served.size_bytes % unit:
        down = facts.served.size_bytes // unit * unit
        # The sizes next to it, so that the line can be followed without arithmetic.
        near = f"{down} or {down + unit}" if down else f"{unit}"
        yield Refusal(
            found=f"its size, {facts.served.size_bytes} bytes, is not a multiple of a slab ({format_bytes(unit)})",
            way_out=f"set size_bytes to {near} in blockdev.toml and start it anew",
        )
    # mkswap takes no area of fewer than ten pages.
    if facts.is_swap and (facts.asked_bytes or facts.served.size_bytes) < 10 * PAGE_BYTES:
        yield Refusal(found="it is too small for swap", way_out="make it larger")
    if facts.asked_bytes > facts.served.size_bytes:
        asked, there = format_bytes(facts.asked_bytes), format_bytes(facts.served.size_bytes)
        yield Refusal(
            found=f"swap of {asked} is asked for, and the device has {there}", way_out="name less with --size"
        )


def _backup(facts: AttachFacts) -> Iterator[Refusal]:
    disk = facts.served.disk_path
    for backing in facts.backings:
        ours = [name for name in backing.devices if name.startswith("nbd")]
        if ours:
            yield Refusal(
                found=f"the backup disk {disk} lies on /dev/{ours[0]}: swap would wait for itself",
                way_out="set disk_path to a disk of this machine",
            )
        # No option overrules this or the rule above: the machine would surely hang. A network file system only may.
        if backing.is_memory:
            where = backing.filesystem or backing.devices[0]
            yield Refusal(
                found=f"the backup disk {disk} lies in memory ({where}): what is swapped out would stay in",
                way_out="set disk_path to a disk of this machine, or protection to 'replica'",
            )
        if backing.filesystem in NETWORK_FILESYSTEMS:
            yield Refusal(
                found=f"the backup disk {disk} lies on {backing.filesystem}, which needs memory to be written to",
                way_out="set disk_path to a disk of this machine, or protection to 'replica'",
                force=MAY_HANG,
            )


def _other_swap(facts: AttachFacts) -> Iterator[Refusal]:
    backup = facts.served.disk_path
    for other in facts.others:
        path = other.area.path
        if backup and path == backup:
            yield Refusal(
                found=f"the backup disk {path} is swapped to itself",
                way_out=f"`swapoff {path}`, or give the device another disk",
            )
            continue
        if other.backing is None or other.backing.is_memory:
            continue  # swap in memory (zram) does not slow our disk, and is right to be filled before us
        disk = next(filter(None, (shares_disk(other.backing, backing) for backing in facts.backings)), "")
        if disk:
            yield Refusal(
                found=f"swap {path} and the backup disk {backup} are both on {disk} and slow each other",
                way_out=f"`swapoff {path}`, or put one of them on another disk",
                force=SAME_DISK,
            )
        # The kernel fills areas by priority, the highest first, and goes to the next only when one is full.
        if other.area.priority > facts.priority:
            yield Refusal(
                found=f"swap {path} has priority {other.area.priority}: it would be filled before this device",
                way_out=f"attach with --priority {other.area.priority + 1}, or `swapoff {path}`",
            )


def _sleep(facts: AttachFacts) -> Iterator[Refusal]:
    # Only a device that was named with --device: which one the kernel would take otherwise is not known yet.
    if facts.device and names_device(facts.hibernation, facts.device, facts.device_number):
        yield Refusal(
            found=f"the machine hibernates to {facts.device}, which works no more when its server is frozen",
            way_out="take resume= out of the kernel's command line, or name another --device",
        )


def _guard(facts: AttachFacts) -> Iterator[Refusal]:
    for check in facts.guard:
        if check.outcome is not Outcome.OK:
            yield Refusal(
                found=f"not safe to swap to, {check.name}: {check.found}",
                way_out=check.advice,
                force=MAY_HANG,
                by_guard=True,
            )
