"""Receiving one file descriptor beside the bytes of a message, by a unix socket."""

import array
import socket
from typing import NamedTuple

_FD_BYTES = array.array("i").itemsize
# Not CMSG_SPACE, whose padding has room for a second one. The kernel closes what finds no room.
_ROOM_BYTES = socket.CMSG_LEN(_FD_BYTES)


class Received(NamedTuple):
    """What came.

    Attributes:
        data: Empty at the other side's end.
        fd: The receiver's to close; -1: none.
        is_cut: More descriptors came, and are closed: a second one, or, with -1, one that this process had no room for.
    """

    data: bytes
    fd: int
    is_cut: bool


def receive_with_fd(sock: socket.socket, bytes_max: int) -> Received:
    """What comes next, with at most one descriptor, whatever was sent. Raises OSError as recvmsg(2) does."""
    data, ancillary, flags, _address = sock.recvmsg(bytes_max, _ROOM_BYTES, socket.MSG_CMSG_CLOEXEC)
    fd = -1
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(content) >= _FD_BYTES:
            fd = array.array("i", content[:_FD_BYTES])[0]
    return Received(data, fd, bool(flags & socket.MSG_CTRUNC))
