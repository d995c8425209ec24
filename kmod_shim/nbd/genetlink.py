"""Generic netlink socket: sends a request to a kernel family, and returns its answer or errno.

pyroute2 encodes and decodes the messages. The socket is the standard library's: one blocking send and receive need no
event loop and no thread. A process that must work while memory is out can't afford those.

How it works. A request carries a sequence number, and the kernel repeats it in its answer. An answer is either a
message of the family, or NLMSG_ERROR with an errno, where 0 is the acknowledgement that NLM_F_ACK asks for. Messages to
a multicast group are no answers: they come unasked, and a socket that is full loses them (`Unheard`).
"""

import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, Protocol, Self

from pyroute2.netlink import ctrlmsg, genlmsg

from farside.errors import FarsideError, Unavailable

CONTROL_ID = 0x10  # GENL_ID_CTRL, the family that knows the others
GET_FAMILY = 3  # CTRL_CMD_GETFAMILY
REQUEST, ACK = 1, 4  # NLM_F_REQUEST, NLM_F_ACK
ERROR = 2  # NLMSG_ERROR: an errno; 0 is the acknowledgement
ADD_MEMBERSHIP = 1  # NETLINK_ADD_MEMBERSHIP
ANSWER_BYTES_MAX = 65536
ANSWER_LIMIT_S = 30.0  # DISCONNECT waits in the kernel until the device's receivers have ended

_NETLINK_GENERIC, _SOL_NETLINK = 16, 270  # linux/netlink.h, linux/socket.h; not all of Python's builds have them
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port


class NetlinkRefusal(FarsideError):
    """The kernel answered a request with an errno."""

    def __init__(self, request: str, number: int) -> None:
        super().__init__(f"{request}: {os.strerror(number)} ({errno.errorcode.get(number, number)})")
        self.errno = number


class Unheard(FarsideError):
    """The kernel sent more than the socket had room for: some messages are lost."""


class Socket(Protocol):
    """Protocol of a netlink socket, so that tests can use one without a kernel."""

    def send(self, data: bytes, /) -> int:
        """Sends one datagram."""
        ...

    def recv(self, size: int, /) -> bytes:
        """The next datagram."""
        ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option, with the arguments of socket.setsockopt."""

    def settimeout(self, seconds: float | None, /) -> None:
        """How long recv waits before it raises TimeoutError; None: for ever."""

    def close(self) -> None:
        """Ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A generic netlink family of this kernel: its number, and its multicast groups by name."""

    name: str
    number: int
    groups: tuple[tuple[str, int], ...]


def open_socket() -> Socket:
    """A bound generic netlink socket. Raises Unavailable where there is none, as in some containers."""
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
        # Port 0: the kernel chooses an address that no other socket has. Group 0: nothing comes unasked before `join`.
        sock.bind((0, 0))
    except (OSError, AttributeError) as error:
        raise Unavailable(f"no generic netlink socket: {error}", hint="is this a restricted container?") from error
    return sock


class GenericNetlink:
    """Requests over one socket, one at a time. Close it, or use it with ``with``."""

    def __init__(self, sock: Socket | None = None) -> None:
        self._socket = open_socket() if sock is None else sock
        self._sequence = 0
        self._socket.settimeout(ANSWER_LIMIT_S)

    def close(self) -> None:
        """Ends the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def family(self, name: str) -> Family | None:
        """The family of that name, or None when this kernel does not have it now."""
        message = ctrlmsg()
        message["cmd"], message["version"] = GET_FAMILY, 1
        message["attrs"] = [("CTRL_ATTR_FAMILY_NAME", name)]
        try:
            answer: Any = ctrlmsg(self.request(CONTROL_ID, message, name=f"family {name}"))
        except NetlinkRefusal as refusal:
            # The module is not loaded, or the kernel is older than the family.
            if refusal.errno == errno.ENOENT:
                return None
            raise
        answer.decode()
        groups = answer.get_attr("CTRL_ATTR_MCAST_GROUPS") or ()
        return Family(
            name=name,
            number=answer.get_attr("CTRL_ATTR_FAMILY_ID"),
            groups=tuple(
                (group.get_attr("CTRL_ATTR_MCAST_GRP_NAME"), group.get_attr("CTRL_ATTR_MCAST_GRP_ID"))
                for group in groups
            ),
        )

    def request(self, number: int, message: genlmsg, *, name: str, wants_ack: bool = False) -> bytes:
        """Sends one message to a family; returns the answer's bytes, empty for an acknowledgement.

        Args:
            number: The family's.
            message: Its fields and attributes; the header is filled in here.
            name: What an error calls the request.
            wants_ack: For commands that answer with nothing else.

        Raises:
            NetlinkRefusal: The kernel answered with an errno.
            FarsideError: It did not answer within ANSWER_LIMIT_S.
        """
        # New for each request, so that the late answer to an earlier one can be recognised.
        self._sequence += 1
        header: Any = message["header"]
        header["type"], header["flags"] = number, REQUEST | (ACK if wants_ack else 0)
        header["sequence_number"], header["pid"] = self._sequence, 0
        message.encode()
        try:
            self._socket.send(bytes(message.data))
            return self._answer(name)
        # Before OSError, of which it is a kind.
        except TimeoutError as error:
            raise FarsideError(f"{name}: the kernel has not answered for {ANSWER_LIMIT_S:g} s") from error
        except OSError as error:
            raise FarsideError(f"{name}: {error}") from error

    def join(self, group: int) -> None:
        """Receive messages to the group from now on, by `heard`."""
        self._socket.setsockopt(_SOL_NETLINK, ADD_MEMBERSHIP, group)

    def heard(self, timeout_s: float | None) -> bytes | None:
        """The next message of a group, or None when nothing came in time. None waits for ever.

        Raises:
            Unheard: Messages were lost; those that come from now on are received again.
        """
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(ANSWER_BYTES_MAX)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError as error:
            # The kernel says this once after it has dropped messages, and goes on with those that come then.
            if error.errno == errno.ENOBUFS:
                raise Unheard("the kernel said more than there was room for") from error
            raise FarsideError(f"listening to the kernel: {error}") from error
        finally:
            # For the next request, which has a limit of its own.
            self._socket.settimeout(ANSWER_LIMIT_S)

    def _answer(self, name: str) -> bytes:
        while True:
            data = self._socket.recv(ANSWER_BYTES_MAX)
            _, kind, _, sequence, _ = _HEADER.unpack_from(data)
            if sequence != self._sequence:
                continue  # the late answer to a request that was given up
            if kind != ERROR:
                return data
            (code,) = struct.unpack_from("=i", data, _HEADER.size)
            if code:
                raise NetlinkRefusal(name, -code)
            return b""
