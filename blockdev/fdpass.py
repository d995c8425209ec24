"""Messages with file descriptors between supervisor and server process, over a SOCK_SEQPACKET socketpair.

One message is one JSON object with ``op``, and at most one descriptor:

    supervisor -> server   fd name + descriptor ("state", "control", "config", "disk", "listen:0", "conn:3");
                           check: these are the device's memory files, can you go on with them; adopt: that was all;
                           stop: for a successor; drain: when clients have left; now; quit + the successor's pid;
                           stays: there will be no successor, it has ended or could not be started
    server -> supervisor   loaded; ready; stopped; failed + exit code and reason; replace; guard;
                           keep: the next SIGTERM is a restart's; conn + worker and descriptor; forget + worker
"""

import array
import json
import socket
from dataclasses import dataclass

from farside.kmod_shim.received_fd import receive_with_fd

MESSAGE_BYTES_MAX = 4096
GUARDED = "guarded"  # on a server's command line: lock your memory first of all
KEPT = "kept"  # there too: a service manager keeps the device's descriptors, and starts the supervisor again


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; ``fd`` is -1 without a descriptor, otherwise the receiver closes it."""

    op: str
    name: str = ""
    number: int = 0
    fd: int = -1


def pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends."""
    # SEQPACKET keeps messages apart as datagrams do, and reports the end of the other side as streams do.
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def send(end: socket.socket, op: str, *, name: str = "", number: int = 0, fd: int = -1) -> None:
    """Sends one message; ``fd`` stays the caller's. Raises OSError when the other side is gone."""
    data = json.dumps({"op": op, "name": name, "number": number}).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
    # The kernel gives the receiver a duplicate; it holds one from now on, even if the message is never read.
    end.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> Message | None:
    """The next message, or None when the other side has ended. Raises BlockingIOError where there is none yet."""
    try:
        data, fd, _is_cut = receive_with_fd(end, MESSAGE_BYTES_MAX)
    # The other side ended before it had read all that we sent. The kernel says so once, ahead of what it sent us.
    except ConnectionResetError:
        data, fd, _is_cut = receive_with_fd(end, MESSAGE_BYTES_MAX)
    # No message is empty: this is the end of the other side.
    if not data:
        return None
    # -1 also where this process had no room for the descriptor: the message itself still counts.
    fields = json.loads(data)
    return Message(op=fields["op"], name=fields["name"], number=fields["number"], fd=fd)
