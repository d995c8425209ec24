"""Facts for the rules of refusal.py: the served device, the machine, and the swap in use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farside import admin
from farside.errors import PeerError
from farside.kmod_shim.disk_backing import Backing, find_backing
from farside.kmod_shim.guard_check import guard_checks
from farside.kmod_shim.preflight import Check, has_capability
from farside.kmod_shim.swap.hibernation import read_hibernation
from farside.kmod_shim.swap.record import Attached
from farside.kmod_shim.swap.refusal import AttachFacts, OtherArea, Served
from farside.kmod_shim.swap.table import read_swaps

CAP_SYS_ADMIN = 21
LOOPS_MAX = 8  # a file on a loop device on a file, and so on: nobody stacks more


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user asked for.

    Attributes:
        admin_socket: Of the blockdev that serves the device.
        index: X of /dev/nbdX; None: any that is free.
        connections: Sockets, or 0: one a core, as far as there are workers.
        size_bytes: Of the swap on the device; 0: all of it.
        forced: Options that overrule refusals.
    """

    admin_socket: Path
    index: int | None = None
    is_swap: bool = True
    priority: int = 100
    connections: int = 0
    by_nbd_client: bool = False
    size_bytes: int = 0
    keep_sysctl: bool = False
    forced: tuple[str, ...] = ()


def ask_served(admin_socket: Path) -> Served:
    """Device behind an admin socket.

    Raises:
        PeerError: nothing answers, it is no blockdev of this version, neither root's nor ours, or names another process
            as its server: we would look at one process's guard and swap to another.
    """
    told, pid = admin.call_process_of({0, os.geteuid()}, admin_socket, "status", absent_hint=admin.BY_SOCKET)
    # Only the fields of Served are read: a newer blockdev may say more.
    try:
        served = msgspec.convert(told, type=Served)
    except msgspec.ValidationError as error:
        raise PeerError(
            f"{admin_socket}: no blockdev of this version answers there",
            hint="name the blockdev's own admin socket with --socket; an older one needs `farside admin replace`",
        ) from error
    if served.server_pid != pid:
        raise PeerError(
            f"{admin_socket}: process {pid} answers and says that process {served.server_pid} does",
            hint="try again if the server was just replaced; else ask who has put that socket there",
        )
    return served


def guard_of(root: Path, served: Served) -> tuple[Check, ...]:
    """Checks whether the device's processes can serve swap.

    The spare server is left out: it may still be loading, and it locks its memory before it takes anything over.
    """
    return guard_checks(root, (served.supervisor_pid, served.server_pid))


def connections_of(wish: Wish, served: Served) -> int:
    """Number of sockets for the kernel: as asked for, otherwise one a core as far as workers are free."""
    # Each socket needs a worker of its own, and other clients may have some.
    return wish.connections or max(1, min(len(os.sched_getaffinity(0)), served.free_workers))


def attach_facts(root: Path, wish: Wish, served: Served, records: tuple[Attached, ...], *, busy: bool) -> AttachFacts:
    """All facts for attaching, now. ``busy``: the device that was asked for is connected."""
    device = "" if wish.index is None else f"/dev/nbd{wish.index}"
    return AttachFacts(
        served=served,
        is_swap=wish.is_swap,
        priority=wish.priority,
        may_administer=has_capability(root, CAP_SYS_ADMIN),
        device=device,
        device_number=_number(root, device),
        device_is_connected=busy,
        connections=connections_of(wish, served),
        asked_bytes=wish.size_bytes,
        records=records,
        guard=guard_of(root, served) if wish.is_swap else (),
        backings=tuple(_backings(root, served.disk_path)) if served.disk_path else (),
        others=tuple(_others(root)),
        hibernation=read_hibernation(root),
    )


def _backings(root: Path, path: str) -> Iterator[Backing]:
    # Through loop devices down to what their files lie on.
    todo, seen = [path], set[str]()
    while todo and len(seen) < LOOPS_MAX:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        # A path that can't be looked at yields no fact, and so no refusal.
        with suppress(OSError):
            backing = find_backing(Path(one), root)
            todo += backing.files
            yield backing


def _others(root: Path) -> Iterator[OtherArea]:
    for area in read_swaps(root):
        # Areas on nbd devices are not other disks: the rules for them are about records and backup disks.
        if not area.path.startswith("/dev/nbd"):
            backing = None
            with suppress(OSError):
                backing = find_backing(Path(area.path), root)
            yield OtherArea(area=area, backing=backing)


def _number(root: Path, device: str) -> str:
    try:
        return (root / f"sys/block/{device.removeprefix('/dev/')}/dev").read_text().strip() if device else ""
    except OSError:
        return ""
