"""Connections that were accepted and are not served yet: a queue for each address, and each address in turn.

To serve a connection costs ten times what it costs to accept one. Strangers who come faster than they can be served
would fill the kernel's queue, which then drops a borrower's first packet: it is sent again a second later. So what the
kernel has is taken at once, and waits here, where an address with many connections waits behind itself alone. [M1]
"""

import socket
from collections import deque

WAITING_AN_ADDRESS = 1024
"""All borrowers of a network may come from one address, by way of a translator, and at once after a restart."""
WAITING_ALL = 4096
"""Each is a descriptor."""


class Newcomers:
    """Accepted connections by address, up to a limit: one more takes the place of the oldest.

    Attributes:
        count: How many wait.
    """

    def __init__(self, an_address: int = WAITING_AN_ADDRESS, all_addresses: int = WAITING_ALL) -> None:
        self.count = 0
        self._an_address, self._all_addresses = an_address, all_addresses
        self._waiting: dict[str, deque[socket.socket]] = {}

    def come(self, sock: socket.socket, address: str) -> bool:
        """One more; False: another one was closed for it, of the same address or of the one that has most."""
        if len(self._waiting.get(address, ())) >= self._an_address:
            crowded = address
        elif self.count >= self._all_addresses:
            crowded = max(self._waiting, key=lambda other: len(self._waiting[other]))
        else:
            self._add(sock, address)
            return True
        self._take_from(crowded).close()
        self._add(sock, address)
        return False

    def take(self) -> tuple[socket.socket, str] | None:
        """The one to serve next, and its address: the oldest of the address whose turn it is. None: none waits."""
        if not self._waiting:
            return None
        address = next(iter(self._waiting))
        sock = self._take_from(address)
        if address in self._waiting:
            self._waiting[address] = self._waiting.pop(address)  # behind the other addresses
        return sock, address

    def close(self) -> None:
        """Closes all that wait."""
        while (one := self.take()) is not None:
            one[0].close()

    def _add(self, sock: socket.socket, address: str) -> None:
        self._waiting.setdefault(address, deque()).append(sock)
        self.count += 1

    def _take_from(self, address: str) -> socket.socket:
        queue = self._waiting[address]
        sock = queue.popleft()
        self.count -= 1
        if not queue:
            del self._waiting[address]
        return sock
