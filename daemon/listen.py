"""Listening sockets from their names in the configuration."""

import errno
import os
import socket
import stat

from farside.errors import ConfigError

BACKLOG = 512
"""Connections not accepted yet: a cluster that reconnects at once after this donor's restart."""


def open_listener(endpoint: str) -> socket.socket:
    """A socket that listens at ``tcp:HOST:PORT`` or ``unix:PATH``.

    Raises:
        ConfigError: it cannot, with the reason.
    """
    kind, _, rest = endpoint.partition(":")
    try:
        return _unix(rest) if kind == "unix" else _tcp(rest)
    except OSError as error:
        raise ConfigError(f"listen {endpoint}: {error.strerror}") from error


def close_listener(listener: socket.socket) -> None:
    """Closes it, and removes a unix socket's file."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    listener.close()
    if isinstance(path, str) and path:
        try:
            os.unlink(path)
        except OSError:
            pass  # somebody was faster


def _tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return socket.create_server(
        (host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
    )


def _unix(path: str) -> socket.socket:
    _clear_stale(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _clear_stale(path: str) -> None:
    """Removes the socket that a killed process left; one that somebody serves, or another kind of file, stays."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file of that name that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another process serves it")
