"""Messages of the kernel's "nbd" generic netlink family, built and parsed. PURE.

Names and numbers are those of <linux/nbd-netlink.h>, version 1. The header does not say these facts, which are from
drivers/block/nbd.c of Linux 6.1:

* The kernel makes no handshake: transmission starts at once on the sockets that it is given.
* More than one socket needs the transmission flag CAN_MULTI_CONN.
* The number of sockets is fixed at CONNECT.
* RECONFIGURE replaces only sockets that are dead; it answers 0 also when none is.
* RECONFIGURE must repeat the backend identifier that CONNECT gave.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from farside.errors import RemoteProtocolError
from farside.kmod_shim.nbd.attribute import (
    Message,
    attribute,
    attributes,
    read_message,
    read_number,
    text,
    uint32,
    uint64,
)

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


class Attribute(IntEnum):
    """Attributes of a message (NBD_ATTR_*)."""

    INDEX = 1
    SIZE_BYTES = 2
    BLOCK_SIZE_BYTES = 3
    TIMEOUT = 4
    SERVER_FLAGS = 5
    CLIENT_FLAGS = 6
    SOCKETS = 7
    DEAD_CONN_TIMEOUT = 8
    DEVICE_LIST = 9
    BACKEND_IDENTIFIER = 10


# Within SOCKETS: items of one descriptor each. Within DEVICE_LIST: items of one device each.
_SOCK_ITEM, _SOCK_FD = 1, 1
_DEVICE_ITEM, _DEVICE_INDEX, _DEVICE_CONNECTED = 1, 1, 2


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


def connect_message(connection: Connection) -> Message:
    """Makes a device of connected sockets. Answered by a message that has the index."""
    # Without an index the kernel takes a free device, or makes one.
    told = b"" if connection.index is None else uint32(Attribute.INDEX, connection.index)
    numbers = {
        Attribute.SIZE_BYTES: connection.size_bytes,
        Attribute.BLOCK_SIZE_BYTES: connection.block_bytes,
        Attribute.TIMEOUT: connection.timeout_s,
        Attribute.SERVER_FLAGS: connection.server_flags,
        Attribute.CLIENT_FLAGS: connection.client_flags,
        Attribute.DEAD_CONN_TIMEOUT: connection.dead_connection_timeout_s,
    }
    told += b"".join(uint64(kind, value) for kind, value in numbers.items())
    return _message(Command.CONNECT, told + _backend(connection) + _sockets(connection))


def reconfigure_message(connection: Connection) -> Message:
    """Gives a device's dead sockets new ones; size and flags stay. Acknowledged."""
    assert connection.index is not None
    told = uint32(Attribute.INDEX, connection.index)
    told += uint64(Attribute.TIMEOUT, connection.timeout_s)
    told += uint64(Attribute.DEAD_CONN_TIMEOUT, connection.dead_connection_timeout_s)
    return _message(Command.RECONFIGURE, told + _backend(connection) + _sockets(connection))


def disconnect_message(index: int) -> Message:
    """Ends a device's connections; what is asked of it from then on fails. Acknowledged."""
    return _message(Command.DISCONNECT, uint32(Attribute.INDEX, index))


def status_message(index: int | None = None) -> Message:
    """Asks for one device, or all. Answered by a message with a device list."""
    return _message(Command.STATUS, b"" if index is None else uint32(Attribute.INDEX, index))


def read_index(data: bytes) -> int:
    """The device that a CONNECT answer is about.

    Raises:
        RemoteProtocolError: The message names none, or is cut.
    """
    return _index(read_message(data).attributes)


def read_status(data: bytes) -> tuple[DeviceState, ...]:
    """The devices of a STATUS answer, by index.

    Raises:
        RemoteProtocolError: The message is cut, or a device has no index.
    """
    listed = dict(attributes(read_message(data).attributes)).get(Attribute.DEVICE_LIST, b"")
    found = (dict(attributes(value)) for kind, value in attributes(listed) if kind == _DEVICE_ITEM)
    states = (
        DeviceState(
            index=_number(item, _DEVICE_INDEX), is_connected=_DEVICE_CONNECTED in item and any(item[_DEVICE_CONNECTED])
        )
        for item in found
    )
    return tuple(sorted(states, key=lambda state: state.index))


def read_dead_link(data: bytes) -> int | None:
    """Device that has lost a socket, from a message to the group; None for any other message.

    Raises:
        RemoteProtocolError: The message is cut, or names no device.
    """
    message = read_message(data)
    return _index(message.attributes) if message.command == Command.LINK_DEAD else None


def _message(command: Command, told: bytes) -> Message:
    return Message(command=command, version=VERSION, attributes=told)


def _sockets(connection: Connection) -> bytes:
    # A list of items that have one descriptor each, as <linux/nbd-netlink.h> nests them.
    return attribute(
        Attribute.SOCKETS, b"".join(attribute(_SOCK_ITEM, uint32(_SOCK_FD, fd)) for fd in connection.sockets)
    )


def _backend(connection: Connection) -> bytes:
    # An empty identifier would be compared like any other: without one the attribute is left out.
    return text(Attribute.BACKEND_IDENTIFIER, connection.backend) if connection.backend else b""


def _index(told: bytes) -> int:
    return _number(dict(attributes(told)), Attribute.INDEX)


def _number(told: Mapping[int, bytes], kind: int) -> int:
    if kind not in told:
        raise RemoteProtocolError(f"nbd: the kernel's message has no attribute {kind}")
    return read_number(told[kind])
