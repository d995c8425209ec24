"""Listening sockets by name: makes the file of a unix socket, and removes one that a dead process left.

A file that is no socket is never removed, and neither is a socket that somebody serves: both are an error of one line.
"""

import errno
import fcntl
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from farside.endpoint import parse_endpoint
from farside.errors import ConfigError

BACKLOG = 4096  # connections not accepted yet: a cluster that reconnects at once after a restart, beside strangers

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


def open_listener(
    endpoint: str, *, setting: str = "listen", mode: int = 0o600, backlog: int = BACKLOG
) -> socket.socket:
    """A socket that listens at ``tcp:HOST:PORT`` or ``unix:PATH``; by default only the owner may connect to the latter.

    ``backlog`` is how many connections wait in the kernel, by TCP; the first packets of more are dropped.

    Raises:
        ConfigError: it cannot, with the reason; ``setting`` is what the user has to change.
    """
    try:
        where = parse_endpoint(endpoint)
        return _unix(where, mode) if isinstance(where, str) else _tcp(*where, backlog)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting} {endpoint}: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    text = str((isinstance(error, OSError) and error.strerror) or error)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE and ";" not in text:
        return text.split(" (")[0] + "; end who listens there (ss -ltnp shows), or name another port"
    return text


def allow_many_connections() -> None:
    """Raises this process's limit of open files to the hard one.

    Each connection is one, and each slab. The customary 1024 is for programs that use select(); ours do not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def peer_process(sock: socket.socket) -> tuple[int, int]:
    """Pid and uid at the other end of this unix socket, as the kernel says (SO_PEERCRED, unix(7)).

    They are of the process that called connect(2), or for a client listen(2): nobody can change them later.
    """
    pid, uid, _gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of this unix socket: `peer_process`."""
    return peer_process(sock)[1]


def close_listener(listener: socket.socket) -> None:
    """Closes it, and removes a unix socket's file."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    listener.close()
    if isinstance(path, str) and path:
        with suppress(OSError):  # in use: another process listens there by now
            clear_stale(path)


def clear_stale(path: str) -> None:
    """Removes the unix socket that a process left behind; nothing happens where there is no file.

    Raises:
        OSError: it is no socket, or somebody serves it; the file stays.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "a file that is no socket is there; remove it, or name another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full queue is an answer too: somebody listens
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another process serves it; end that one, or name another path")


def _tcp(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=backlog)
    # Accepted sockets inherit it. asyncio sets it itself only where a socket names its protocol, as these do not: an
    # answer in two writes would wait 40 ms for the other end's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _unix(path: str, mode: int) -> socket.socket:
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _locked(folder):
            clear_stale(path)
            listener.bind(path)
            # Nobody can connect between bind() and listen(), so that the mode is right from the start.
            os.chmod(path, mode)
            listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lock, so that a starting process does not remove the socket of another one that starts too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
