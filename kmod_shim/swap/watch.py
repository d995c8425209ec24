"""Watch over attached devices: when the kernel reports a dead socket, dial a new one and hand it to the device.

A socket dies when a request on it was not answered within the kernel's timeout, or when the server has ended it. A
restart of the server, planned or not, ends no socket: the next server has the same ones. While other sockets of a
device live, the kernel sends its requests there. With none left, everything that needs a page waits for this module,
and fails in the end.

The kernel reports a death once, when it happens. Deaths before we listened, or more than our socket had room for, are
noticed in another way: the server has fewer clients than the kernel was given sockets.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from farside.errors import FarsideError
from farside.kmod_shim.nbd.dial import dial, hang_up
from farside.kmod_shim.nbd.genetlink import Unheard
from farside.kmod_shim.nbd.message import Connection
from farside.kmod_shim.nbd.netlink import NbdNetlink
from farside.kmod_shim.swap.facts import ask_served
from farside.kmod_shim.swap.record import Attached, live_records

RETRY_S = 2.0  # a server that is down now may be up then


def heal(attached: Attached, netlink: NbdNetlink) -> None:
    """Dials one socket and has the kernel put it in a dead one's place. Raises FarsideError.

    With no dead one, the kernel drops it without a word: the server then sees a client that came and went.
    """
    dialled = dial(attached.endpoint, attached.export, count=1)
    try:
        netlink.reconfigure(
            Connection(
                index=attached.index,
                sockets=tuple(sock.fileno() for sock in dialled.sockets),
                size_bytes=attached.size_bytes,
                server_flags=attached.server_flags,
                backend=attached.backend,
            )
        )
    finally:
        hang_up(dialled.sockets)


def watch(root: Path, tell: Callable[[str], None], *, listener: NbdNetlink, netlink: NbdNetlink) -> Iterator[int]:
    """Heal for ever; yield the index of each device that got a socket. ``listener`` is for notices only."""
    listener.watch()
    lacking: dict[int, int] = {}
    unheard = True  # of deaths before `listener` was there nothing came
    while True:
        # 1. observe: which devices are ours, and, where deaths were not heard, what the servers have
        records = {record.index: record for record in live_records(root)}
        if unheard:
            for index, record in records.items():
                lacking[index] = max(lacking.get(index, 0), _missing(record))
        unheard = False
        # 2. decide: a device that is not ours, or is disconnected, needs nothing
        lacking = {index: count for index, count in lacking.items() if index in records and count}
        # 3. act: one new socket for each that is missing; what fails is tried again in the next round
        for index in lacking:
            try:
                while lacking[index]:
                    heal(records[index], netlink)
                    lacking[index] -= 1
                    yield index
            except FarsideError as error:
                tell(f"/dev/nbd{index}: {error}")
        # 4. wait for the next death, RETRY_S at most
        try:
            for index in listener.dead_links(RETRY_S):
                tell(f"/dev/nbd{index} has lost a socket")
                lacking[index] = lacking.get(index, 0) + 1
                break  # heal this one first; further deaths wait in the listener's socket
        except Unheard as error:
            tell(f"{error}; asking the servers how many sockets they have")
            unheard = True


def _missing(attached: Attached) -> int:
    try:
        return attached.connections - ask_served(Path(attached.admin_socket)).connections
    except FarsideError:
        return 0  # no server answers: its sockets die, and the kernel reports that
