"""As much of systemd as a process with a descriptor store sees: what it is told, what it keeps, what it hands over."""

import array
import fcntl
import os
import select
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.waiting import until

_HIGH = 100  # above what a shell is asked to put in place


class Manager:
    """Starts one service's process, again and again; ``store`` is what it keeps between.

    A thread reads all the time, as systemd does: the socket's queue holds ten messages, and a service that has more to
    say waits for its reader.
    """

    def __init__(self, folder: Path) -> None:
        self.store: dict[str, list[int]] = {}
        self.said: list[str] = []
        self._path = folder / "notify.sock"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(self._path))
        self._sock.setblocking(False)
        self._lock = threading.Lock()
        self._closed = os.eventfd(0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str] = os.environ
    ) -> "subprocess.Popen[bytes]":
        """Starts the process with everything that is kept."""
        self.listen()
        with self._lock:
            kept = [(name, fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH)) for name, fds in self.store.items() for fd in fds]
        places = " ".join(f"{3 + number}<&{fd}" for number, (_, fd) in enumerate(kept))
        given = {
            "NOTIFY_SOCKET": str(self._path),
            "LISTEN_FDS": str(len(kept)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in kept),
        }
        try:
            return subprocess.Popen(
                ["bash", "-c", f'export LISTEN_PID=$$; exec "$@" {places}', "-", *command],
                env=dict(environment) | given,
                pass_fds=[fd for _, fd in kept],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        finally:
            for _, fd in kept:
                os.close(fd)

    def listen(self) -> None:
        """Takes in what was said so far."""
        with self._lock:
            while True:
                try:
                    data, ancillary, _, _ = self._sock.recvmsg(4096, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
                except BlockingIOError:
                    return
                self._take(data.decode(), [array.array("i", payload[:4])[0] for _, _, payload in ancillary])

    def until_said(self, text: str) -> None:
        """Returns when it has been told ``text``."""

        def heard() -> bool:
            self.listen()
            return any(text in message for message in self.said)

        until(heard, what=text, deadline_s=30)

    def forget(self) -> None:
        """What it was told so far."""
        self.listen()
        self.said.clear()

    def close(self) -> None:
        """Lets go of everything, as a stop of the service does."""
        os.eventfd_write(self._closed, 1)
        self._reader.join()
        os.close(self._closed)
        self.listen()
        for name in list(self.store):
            self._drop(name)
        self._sock.close()

    def _read(self) -> None:
        while self._closed not in select.select([self._sock.fileno(), self._closed], [], [])[0]:
            self.listen()

    def _take(self, message: str, fds: list[int]) -> None:
        self.said.append(message)
        fields: dict[str, str] = {}
        for line in message.splitlines():
            name, _, value = line.partition("=")
            fields[name] = value
        if "FDSTORE" in fields:
            (fd,) = fds
            self.store.setdefault(fields["FDNAME"], []).append(fd)
        if "FDSTOREREMOVE" in fields:
            self._drop(fields["FDNAME"])

    def _drop(self, name: str) -> None:
        for fd in self.store.pop(name, []):
            os.close(fd)
