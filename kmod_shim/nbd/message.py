"""Messages of the kernel's "nbd" generic netlink family, built and parsed. PURE.

Names and numbers are those of <linux/nbd-netlink.h>, version 1. The header does not say these facts, which are from
drivers/block/nbd.c of Linux 6.1:

* The kernel makes no handshake: transmission starts at once on the sockets that it is given.
* More than one socket needs the transmission flag CAN_MULTI_CONN.
* The number of sockets is fixed at CONNECT.
* RECONFIGURE replaces only sockets that are dead; it answers 0 also when none is.
* RECONFIGURE must repeat the backend identifier that CONNECT gave.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pyroute2.netlink import genlmsg, nla

FAMILY = "nbd"
GROUP = "nbd_mc_group"
VERSION = 1

# The request timeout has to be longer than a freeze of user space that fails (/sys/power/pm_freeze_timeout, 20 s): a
# request that reaches it costs its socket, which then needs RECONFIGURE. A longer timeout delays nothing but a request
# that is really lost.
TIMEOUT_S = 30
# With every socket dead, requests wait this long for RECONFIGURE. Then page-ins fail, and processes are killed.
DEAD_CONNECTION_TIMEOUT_S = 1800
BLOCK_BYTES = 4096


class Command(IntEnum):
    """Commands of the family."""

    CONNECT = 1
    DISCONNECT = 2
    RECONFIGURE = 3
    LINK_DEAD = 4
    STATUS = 5


# Positions count: an attribute's place in nla_map is its number in <linux/nbd-netlink.h>.
class NbdMessage(genlmsg):  # type: ignore[misc]  # pyroute2 has no types
    """One message in pyroute2's terms."""

    prefix = "NBD_ATTR_"
    nla_map = (
        ("NBD_ATTR_UNSPEC", "none"),
        ("NBD_ATTR_INDEX", "uint32"),
        ("NBD_ATTR_SIZE_BYTES", "uint64"),
        ("NBD_ATTR_BLOCK_SIZE_BYTES", "uint64"),
        ("NBD_ATTR_TIMEOUT", "uint64"),
        ("NBD_ATTR_SERVER_FLAGS", "uint64"),
        ("NBD_ATTR_CLIENT_FLAGS", "uint64"),
        ("NBD_ATTR_SOCKETS", "sockets"),
        ("NBD_ATTR_DEAD_CONN_TIMEOUT", "uint64"),
        ("NBD_ATTR_DEVICE_LIST", "devices"),
        ("NBD_ATTR_BACKEND_IDENTIFIER", "asciiz"),
    )

    class sockets(nla):  # type: ignore[misc]  # noqa: N801 (pyroute2 finds it by this name)
        """A list of file descriptors."""

        nla_map = (("NBD_SOCK_ITEM_UNSPEC", "none"), ("NBD_SOCK_ITEM", "item"))

        class item(nla):  # type: ignore[misc]  # noqa: N801
            """One descriptor."""

            nla_map = (("NBD_SOCK_UNSPEC", "none"), ("NBD_SOCK_FD", "uint32"))

    class devices(nla):  # type: ignore[misc]  # noqa: N801
        """The answer to STATUS."""

        nla_map = (("NBD_DEVICE_ITEM_UNSPEC", "none"), ("NBD_DEVICE_ITEM", "item"))

        class item(nla):  # type: ignore[misc]  # noqa: N801
            """One device."""

            nla_map = (
                ("NBD_DEVICE_UNSPEC", "none"),
                ("NBD_DEVICE_INDEX", "uint32"),
                ("NBD_DEVICE_CONNECTED", "uint8"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Attributes of CONNECT and RECONFIGURE.

    Attributes:
        index: X of /dev/nbdX, or None for any that is free (CONNECT only).
        sockets: Connected TCP or unix stream sockets, past the handshake; the kernel takes references of its own.
        server_flags: The transmission flags that the server sent.
        backend: Shows in /sys/block/nbdX/backend, and keeps another server's sockets out; empty: none.
    """

    index: int | None
    sockets: tuple[int, ...]
    size_bytes: int
    server_flags: int
    backend: str = ""
    block_bytes: int = BLOCK_BYTES
    timeout_s: int = TIMEOUT_S
    dead_connection_timeout_s: int = DEAD_CONNECTION_TIMEOUT_S
    client_flags: int = 0  # none of NBD_CFLAG_*: the device lives until DISCONNECT, whoever closes it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device of a STATUS answer."""

    index: int
    is_connected: bool


def connect_message(connection: Connection) -> NbdMessage:
    """Makes a device of connected sockets. Answered by a message that has the index."""
    # Without an index the kernel takes a free device, or makes one.
    told: list[tuple[str, object]] = [] if connection.index is None else [("INDEX", connection.index)]
    told += [
        ("SIZE_BYTES", connection.size_bytes),
        ("BLOCK_SIZE_BYTES", connection.block_bytes),
        ("TIMEOUT", connection.timeout_s),
        ("SERVER_FLAGS", connection.server_flags),
        ("CLIENT_FLAGS", connection.client_flags),
        ("DEAD_CONN_TIMEOUT", connection.dead_connection_timeout_s),
    ]
    return _message(Command.CONNECT, [*told, *_backend(connection), _sockets(connection)])


def reconfigure_message(connection: Connection) -> NbdMessage:
    """Gives a device's dead sockets new ones; size and flags stay. Acknowledged."""
    assert connection.index is not None
    told: list[tuple[str, object]] = [
        ("INDEX", connection.index),
        ("TIMEOUT", connection.timeout_s),
        ("DEAD_CONN_TIMEOUT", connection.dead_connection_timeout_s),
    ]
    return _message(Command.RECONFIGURE, [*told, *_backend(connection), _sockets(connection)])


def disconnect_message(index: int) -> NbdMessage:
    """Ends a device's connections; what is asked of it from then on fails. Acknowledged."""
    return _message(Command.DISCONNECT, [("INDEX", index)])


def status_message(index: int | None = None) -> NbdMessage:
    """Asks for one device, or all. Answered by a message with a device list."""
    return _message(Command.STATUS, [] if index is None else [("INDEX", index)])


def read_index(data: bytes) -> int:
    """The device that a CONNECT answer is about."""
    return int(_read(data).get_attr("NBD_ATTR_INDEX"))


def read_status(data: bytes) -> tuple[DeviceState, ...]:
    """The devices of a STATUS answer, by index."""
    listed = _read(data).get_attr("NBD_ATTR_DEVICE_LIST")
    found = () if listed is None else listed.get_attrs("NBD_DEVICE_ITEM")
    states = (
        DeviceState(index=item.get_attr("NBD_DEVICE_INDEX"), is_connected=bool(item.get_attr("NBD_DEVICE_CONNECTED")))
        for item in found
    )
    return tuple(sorted(states, key=lambda state: state.index))


def read_dead_link(data: bytes) -> int | None:
    """Device that has lost a socket, from a message to the group; None for any other message."""
    message = _read(data)
    return int(message.get_attr("NBD_ATTR_INDEX")) if message["cmd"] == Command.LINK_DEAD else None


# A message of the family; names go without their common prefix.
def _message(command: Command, attributes: list[tuple[str, object]]) -> NbdMessage:
    message = NbdMessage()
    message["cmd"], message["version"] = int(command), VERSION
    message["attrs"] = [(f"NBD_ATTR_{name}", value) for name, value in attributes]
    return message


def _sockets(connection: Connection) -> tuple[str, object]:
    # A list of items that have one descriptor each, as <linux/nbd-netlink.h> nests them.
    items = [("NBD_SOCK_ITEM", {"attrs": [("NBD_SOCK_FD", fd)]}) for fd in connection.sockets]
    return "SOCKETS", {"attrs": items}


def _backend(connection: Connection) -> list[tuple[str, object]]:
    # An empty identifier would be compared like any other: without one the attribute is left out.
    return [("BACKEND_IDENTIFIER", connection.backend)] if connection.backend else []


def _read(data: bytes) -> Any:
    message = NbdMessage(data)
    message.decode()
    return message
