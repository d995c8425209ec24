"""`farside swap attach`: make a served device /dev/nbdX and swap on it; a failed attempt is undone.

1. ask the blockdev, look at the machine, and refuse with every reason at once
2. page-cluster and the reserve of free memory; have the blockdev guarded against memory pressure, and look again
3. dial it once for each socket, and hand those to the kernel; from here on detach has its record
4. no scheduler, queue depth; swap signature
5. swapon; /proc/swaps must show it
A failure on the way takes everything back.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from farside import admin
from farside.errors import ConfigError, FarsideError
from farside.kmod_shim.nbd import sysfs
from farside.kmod_shim.nbd.client import attach_by_client, detach_by_client
from farside.kmod_shim.nbd.dial import Offer, dial, hang_up
from farside.kmod_shim.nbd.message import BLOCK_BYTES, Connection
from farside.kmod_shim.nbd.netlink import NbdNetlink
from farside.kmod_shim.swap.call import swap_on
from farside.kmod_shim.swap.facts import Wish, ask_served, attach_facts, connections_of
from farside.kmod_shim.swap.hibernation import allow_sleep, forbid_sleep
from farside.kmod_shim.swap.record import Attached, forget_record, live_records, save_record
from farside.kmod_shim.swap.refusal import (
    MAY_HANG,
    OVERWRITE,
    Refusal,
    Served,
    attach_refusals,
    refusal_line,
    standing,
)
from farside.kmod_shim.swap.sysctl import Before, restore_machine, tune_machine
from farside.kmod_shim.swap.table import find_area, read_swaps


class Refused(ConfigError):
    """Reasons that refuse to attach; one line each."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("\n".join(refusal_line(refusal) for refusal in refusals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of attaching; ``overruled`` are the refusals that options took away."""

    attached: Attached
    overruled: tuple[Refusal, ...]


def attach(wish: Wish, root: Path, tell: Callable[[str], None]) -> Result:
    """Attaches the device, as swap unless the wish says otherwise; ``tell`` gets a line for each step that takes long.

    Raises:
        Refused: Reasons not to, all of them; nothing was done.
        FarsideError: A step failed; what was done before is taken back.
    """
    # 1. look. What the guard can cure (by_guard) is not refused yet: step 2 asks for it.
    served = ask_served(wish.admin_socket)
    refusals = _refusals(root, wish, served)
    if left := [refusal for refusal in standing(refusals, wish.forced) if not refusal.by_guard]:
        raise Refused(left)
    # After the refusals: until here nothing was changed on this machine.
    sysfs.load_module(root)
    with ExitStack() as undo:
        # 2. guard
        before = tune_machine(root) if wish.is_swap and not wish.keep_sysctl else Before()
        # Steps are undone in the reverse order, when a later one fails.
        undo.callback(restore_machine, root, before)
        refusals = _refusals(root, wish, served)
        # Guarding starts a new server, so it is asked for only where something is missing.
        if any(refusal.by_guard for refusal in refusals):
            served = _guarded(wish, served, tell)
            refusals = _refusals(root, wish, served)
        if left := list(standing(refusals, wish.forced)):
            raise Refused(left)
        # 3. connect
        undo.callback(allow_sleep_unless_used, root)
        attached = _connected(root, wish, served, before)
        # Before the record is saved: that may fail for want of room, and the device would stay.
        undo.callback(_take_back, root, attached, tell)
        save_record(root, attached)
        # 4. prepare
        sysfs.tune_queue(root, attached.index)
        if wish.is_swap:
            _sign(wish, attached)
            # 5. swap on
            # Before swap is on: from then on hibernation would freeze the server that it writes to.
            forbid_sleep(root)
            swap_on(attached.device, priority=wish.priority, discard=True)
            # What the kernel shows counts, not that the call succeeded.
            if find_area(read_swaps(root), attached.device) is None:
                raise FarsideError(f"{attached.device} is not in /proc/swaps after swapon", hint="see dmesg")
        # All is well, so nothing is undone. Only callbacks may be on this stack: a generator's context manager that is
        # dropped here would still run its end.
        undo.pop_all()
    return Result(attached=attached, overruled=tuple(refusals))


def allow_sleep_unless_used(root: Path) -> None:
    """Allows hibernation again, unless an attached device may be swap."""
    if not any(record.is_swap for record in live_records(root)):
        allow_sleep(root)


def _refusals(root: Path, wish: Wish, served: Served) -> tuple[Refusal, ...]:
    block = None if wish.index is None else sysfs.read_block(root, wish.index)
    busy = block is not None and block.pid is not None
    return tuple(attach_refusals(attach_facts(root, wish, served, live_records(root), busy=busy)))


def _guarded(wish: Wish, served: Served, tell: Callable[[str], None]) -> Served:
    tell(f"having {served.name} guarded against memory pressure: a new server takes over")
    try:
        try:
            _guard(wish)
        except admin.AnswerLost:  # the old server was ended before it could say so: the new one knows
            _guard(wish)
    except FarsideError as error:
        # A user who accepts that the machine may hang gets the device unguarded.
        if MAY_HANG not in wish.forced:
            raise
        tell(str(error))
    return ask_served(wish.admin_socket)


def _guard(wish: Wish) -> None:
    # Answered when the new server serves, so with a longer limit than other commands.
    admin.call(wish.admin_socket, "guard", timeout_s=admin.limit_of("guard"))


# Connects the device in one of the two ways, and writes down what detach needs to know.
def _connected(root: Path, wish: Wish, served: Served, before: Before) -> Attached:
    endpoint = _endpoint(served)
    count = connections_of(wish, served)
    index, offer = (_connect_by_client if wish.by_nbd_client else _connect)(root, wish, served, endpoint, count)
    return Attached(
        index=index,
        export=served.name,
        endpoint=endpoint,
        admin_socket=str(wish.admin_socket),
        connections=count,
        size_bytes=served.size_bytes,
        server_flags=offer.flags if offer else 0,
        backend=backend_of(served.name),
        is_swap=wish.is_swap,
        priority=wish.priority,
        by_nbd_client=wish.by_nbd_client,
        page_cluster_before=before.page_cluster,
        min_free_kbytes_before=before.min_free_kbytes,
        watermark_boost_before=before.watermark_boost,
    )


def _take_back(root: Path, attached: Attached, tell: Callable[[str], None]) -> None:
    # A device that may hold pages already must stay. /proc/swaps alone does not say so, because it may be unreadable.
    if find_area(read_swaps(root), attached.device) is None:
        try:
            sysfs.hold_exclusively(attached.device)
        except FarsideError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # nobody can use what has no device file
                tell(f"it stays attached, because somebody may use it; see `farside swap status`: {error}")
                return
        disconnect(attached)
        forget_record(root, attached.index)


def disconnect(attached: Attached) -> None:
    """Ends the device's connections. Nothing may use it any more."""
    if attached.by_nbd_client:
        detach_by_client(attached.index)
        return
    with NbdNetlink() as netlink:
        netlink.disconnect(attached.index)


def backend_of(export: str) -> str:
    """What /sys/block/nbdX/backend says of a device of ours."""
    return f"farside:{export}"


def _connect(root: Path, wish: Wish, served: Served, endpoint: str, count: int) -> tuple[int, Offer]:
    with NbdNetlink() as netlink:  # first: without it the server need not be asked
        dialled = dial(endpoint, served.name, count=count)
        try:
            offer = dialled.offer
            # Swap writes single pages, and a server with larger blocks would refuse them.
            if offer.block_bytes > BLOCK_BYTES:
                raise ConfigError(f"{served.name} wants blocks of {offer.block_bytes} bytes, a page has {BLOCK_BYTES}")
            return netlink.connect(
                Connection(
                    index=wish.index,
                    sockets=tuple(sock.fileno() for sock in dialled.sockets),
                    size_bytes=offer.size_bytes,
                    server_flags=offer.flags,
                    backend=backend_of(served.name),
                )
            ), offer
        finally:
            hang_up(dialled.sockets)  # the kernel has references of its own


def _connect_by_client(root: Path, wish: Wish, served: Served, endpoint: str, count: int) -> tuple[int, None]:
    index = _first_free(root) if wish.index is None else wish.index
    attach_by_client(endpoint, served.name, index, connections=count, is_swap=wish.is_swap)
    return index, None


# nbd-client has to be given a device; the netlink family finds a free one itself.
def _first_free(root: Path) -> int:
    # By number: as texts nbd10 would come before nbd2.
    for folder in sorted((root / "sys/block").glob("nbd*"), key=lambda path: int(path.name[3:])):
        block = sysfs.read_block(root, int(folder.name[3:]))
        if block is not None and block.pid is None:
            return block.index
    raise ConfigError("every nbd device is connected", hint="load nbd with a larger nbds_max")


def _endpoint(served: Served) -> str:
    # A unix socket where there is one: no network stack between a page and its server.
    return next((one for one in served.listen if one.startswith("unix:")), served.listen[0])


def _sign(wish: Wish, attached: Attached) -> None:
    # An old swap area is overwritten without a question: its content is worthless once it was switched off.
    found = sysfs.signature(attached.device)
    kind = found.get("TYPE") or found.get("PTTYPE", "")
    if kind and kind != "swap" and OVERWRITE not in wish.forced:
        raise Refused(
            [
                Refusal(
                    found=f"{attached.export} holds something that is no swap area: {kind}",
                    way_out="attach it with --block to look, or have it overwritten",
                    force=OVERWRITE,
                )
            ]
        )
    sysfs.write_swap_signature(attached.device, f"farside-{attached.export}", wish.size_bytes)
