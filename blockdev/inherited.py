"""Inherited state of a restarted supervisor: descriptors kept by the service manager, and a server still running.

How it works. The manager keeps a duplicate of everything that the supervisor holds, and of its end of the link to the
server that serves, by the name "server:PID". A server does not notice that its supervisor has gone as long as somebody
holds that end; what it says meanwhile waits in the socket. So neither a restart of the service nor the supervisor's
death stops a page: the next supervisor goes on with the link, and has the server replaced by one of its own.
"""

import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from farside.blockdev import fdpass

SERVER = "server:"  # begins the name of a link; the server's process id follows
END_LIMIT_S = 10.0  # of a killed process


class Process(Protocol):
    """Operations on a server's process; `subprocess.Popen` has them."""

    pid: int

    def kill(self) -> None:
        """Sends SIGKILL."""

    def wait(self, timeout: float | None = None) -> int:
        """Returns its status when it has ended. Raises subprocess.TimeoutExpired."""
        ...


class Adopted:
    """A process that another supervisor started, held by a pidfd, so that its id stays valid."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError: it has ended."""
        self.pid = pid
        # From here on a signal reaches this process or none, even after the kernel has given its number to another.
        self._fd = os.pidfd_open(pid)

    def kill(self) -> None:
        """Sends SIGKILL; nothing happens to one that has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return 0 when the process has ended: only its parent gets its status.

        Raises:
            subprocess.TimeoutExpired: not within ``timeout`` seconds.
        """
        # waitpid() knows only children. A pidfd is readable once its process has ended, whoever started it.
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise subprocess.TimeoutExpired("server", timeout or 0.0)
        return 0


def link_name(process: Process) -> str:
    """Name under which the service manager keeps the link to this server."""
    return f"{SERVER}{process.pid}"


def take_server(
    fds: dict[str, int], on_message: Callable[[fdpass.Message], None]
) -> tuple[Adopted, socket.socket] | None:
    """Server that still runs, and our end of its link; removes all links from ``fds``.

    More than one is a handover that was cut short: which of them serves can't be known, so all are killed, as a crash
    would have done; None then, as where there is none. ``on_message`` is given what a server that has ended had said
    and nobody had read: the socket of a client may be in it.
    """
    found: list[tuple[Adopted, socket.socket]] = []
    for name in [name for name in fds if name.startswith(SERVER)]:
        end = socket.socket(fileno=fds.pop(name))
        # The supervisor's loop reads it, as it reads the links that it made itself.
        end.setblocking(False)
        process = _living(int(name.removeprefix(SERVER)), end)
        if process is None:
            _read_rest(end, on_message)
        else:
            found.append((process, end))
    if len(found) == 1:
        return found[0]
    # Killed and waited for: the next server adopts the state, and no other may still write to it.
    for process, end in found:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
        _read_rest(end, on_message)
    return None


def _read_rest(end: socket.socket, on_message: Callable[[fdpass.Message], None]) -> None:
    with end, suppress(BlockingIOError):
        while message := fdpass.receive(end):
            on_message(message)


def _living(pid: int, end: socket.socket) -> Adopted | None:
    # The process first and then the link: while the other side holds its end, the id is the one that we mean.
    try:
        process = Adopted(pid)
    except ProcessLookupError:
        return None
    try:
        # A look only: what the server has said meanwhile stays in the socket for the supervisor's loop.
        has_ended = not end.recv(1, socket.MSG_PEEK)
    # Open, with nothing to read.
    except BlockingIOError:
        has_ended = False
    except OSError:
        has_ended = True
    return None if has_ended else process
