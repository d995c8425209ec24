"""Descriptors that outlive every server process: memory files, listeners, the disk, and clients' sockets."""

import os

from farside.log import get_log
from farside.notify import drop_fd, store_fd

GUARDED = "guarded"  # name of an empty memory file; a later supervisor that is handed it guards itself

log = get_log("blockdev.supervisor")


class HeldDescriptors:
    """The descriptors of one device by name, owned from when they are kept."""

    def __init__(self, fds: dict[str, int], *, are_stored: bool) -> None:
        """``are_stored``: the service manager keeps a copy of each too, for the supervisor that comes next."""
        self.fds = fds
        self.are_stored = are_stored

    def keep(self, name: str, fd: int) -> None:
        """Keep one more descriptor."""
        self.fds[name] = fd
        if self.are_stored:
            store_fd(name, fd)

    def store_all(self) -> None:
        """Gives the service manager a copy of each."""
        for name, fd in self.fds.items():
            store_fd(name, fd)

    def hold_client(self, worker: int, fd: int) -> None:
        """Takes the socket of the client that this worker serves from now on; -1 where there was no room for it."""
        # Worker numbers are used again: a socket that is still held under this one is of an earlier client.
        self.forget_client(worker)
        # A process without a free descriptor gets the message without the one that was sent with it.
        if fd < 0:
            log.error("no room to keep a client's socket: the connection ends with its server", worker=worker)
        else:
            self.keep(f"conn:{worker}", fd)

    def forget_client(self, worker: int) -> None:
        """Closes the socket of this worker's client, which has left."""
        fd = self.fds.pop(f"conn:{worker}", None)
        if fd is not None:
            if self.are_stored:
                drop_fd(f"conn:{worker}")
            os.close(fd)

    @property
    def has_clients(self) -> bool:
        """True while some connection has a client that waits for a server."""
        return any(name.startswith("conn:") for name in self.fds)

    def close(self) -> None:
        """Closes all of them."""
        for fd in self.fds.values():
            os.close(fd)
