"""Client of systemd's notify socket: sd_notify(3) without its library.

Descriptors that the manager keeps for us (its "fd store") outlive this process: it hands them to the next one of the
same service, after a restart and after a crash, and lets go of them when the service is stopped.
"""

import array
import os
import socket
from contextlib import suppress

LISTEN_FDS_START = 3  # sd_listen_fds(3)
STORED = "farside."  # begins the names of what we had stored, apart from what socket activation hands us
_MICROSECONDS = 1e6


def notify_systemd(message: str, *, fds: tuple[int, ...] = ()) -> None:
    """Tells ``message``, such as READY=1, with ``fds`` beside it; nothing happens where nobody wants to hear it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock, suppress(OSError):
        sock.sendmsg([message.encode()], rights, 0, "\0" + address[1:] if address.startswith("@") else address)


def store_fd(name: str, fd: int) -> None:
    """Has the manager keep a duplicate of ``fd``; one that it has already is not kept twice."""
    notify_systemd(f"FDSTORE=1\nFDNAME={_stored_name(name)}", fds=(fd,))


def drop_fd(name: str) -> None:
    """Has the manager let go of what it keeps by that name."""
    notify_systemd(f"FDSTOREREMOVE=1\nFDNAME={_stored_name(name)}")


def watchdog_period_s() -> float:
    """How often the manager wants to hear WATCHDOG=1 at the latest, halved; 0.0 where it does not listen for it."""
    meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / _MICROSECONDS / 2 if meant and text.isdigit() else 0.0


def take_given_fds() -> tuple[dict[str, int], list[int]]:
    """What the manager hands us, ours to close: stored descriptors by name, and the other listening sockets.

    They are taken out of the environment, so that child processes do not look for them.
    """
    meant = os.environ.get("LISTEN_PID") == str(os.getpid())
    count = int(os.environ.get("LISTEN_FDS", "0")) if meant else 0
    names = os.environ.get("LISTEN_FDNAMES", "").split(":") if meant else []
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    stored: dict[str, int] = {}
    listening: list[int] = []
    for number in range(count):
        fd, name = LISTEN_FDS_START + number, names[number] if number < len(names) else ""
        os.set_inheritable(fd, False)
        if name.startswith(STORED):
            stored[name.removeprefix(STORED).replace(".", ":", 1)] = fd
        else:
            listening.append(fd)
    return stored, listening


def _stored_name(name: str) -> str:
    return STORED + name.replace(":", ".")  # a name may not have a colon there
