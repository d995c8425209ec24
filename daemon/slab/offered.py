"""Slab memory that registers each slab with the RDMA devices when the slab is made, before it is lent.

Registering a slab takes as long as zeroing a part of it (54 of 54.25 ms for 1 GiB, [infiniswap §2.7.4.1]). The pool
makes slabs ahead, in threads; what it maps is offered to the exporter there and then, and registered in the background
for the sessions that there are. A lease then takes a key, not a registration.
"""

import threading

from farside.daemon.slab.lender import Exporter
from farside.daemon.slab.pool import SlabMemory
from farside.errors import EngineError


class OfferedMemory:
    """A ``SlabMemory`` over another one."""

    def __init__(self, memory: SlabMemory, exporter: Exporter) -> None:
        self._memory = memory
        self._exporter = exporter
        self._lock = threading.Lock()  # the pool's threads, and the one that ends the exporter
        self._is_closed = False

    def map(self, fd: int, length_bytes: int, /) -> int:
        """Maps a memfd, and offers it. Raises EngineError."""
        address = self._memory.map(fd, length_bytes)
        try:
            with self._lock:
                # The exporter is gone by the end of the donor, while threads of the pool may still make and free slabs.
                if not self._is_closed:
                    self._exporter.offer(address, length_bytes)
        except EngineError:
            self._memory.unmap(address, length_bytes)
            raise
        return address

    def unmap(self, address: int, length_bytes: int, /) -> None:
        """Takes the memory back from the exporter, and unmaps it."""
        with self._lock:
            if not self._is_closed:
                self._exporter.withdraw(address)
        self._memory.unmap(address, length_bytes)

    def close(self) -> None:
        """The exporter is about to end, and takes all its registrations along."""
        with self._lock:
            self._is_closed = True
