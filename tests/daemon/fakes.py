"""Stand-ins for the C engine in tests of the donor. `test_fakes.py` holds them to what the real ones do."""

import mmap
import socket
from collections import Counter
from dataclasses import dataclass, field, fields, replace

from farside.errors import EngineError
from farside.kmod_shim.engine.binding import ExportStats

ENOMEM, EEXIST, ENOENT = 12, 17, 2


@dataclass
class FakeMemory:
    """Maps memfds as ne_map does, at made-up addresses; `view` reads and writes there."""

    limit: int = 1 << 30
    views: dict[int, mmap.mmap] = field(default_factory=dict)
    next_address: int = 1 << 32

    def map(self, fd: int, length_bytes: int, /) -> int:
        if sum(len(view) for view in self.views.values()) + length_bytes > self.limit:
            raise EngineError("map", ENOMEM)
        address, self.next_address = self.next_address, self.next_address + length_bytes
        self.views[address] = mmap.mmap(fd, length_bytes)
        return address

    def unmap(self, address: int, length_bytes: int, /) -> None:
        view = self.views.pop(address)
        assert len(view) == length_bytes
        view.close()


@dataclass
class FakeExporter:
    """Keeps what it was told, with ne_export's refusals."""

    leases: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    conns: dict[int, list[socket.socket]] = field(default_factory=dict)
    pairs: dict[int, list[socket.socket]] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    ended: list[int] = field(default_factory=list)
    closed: bool = False

    def lease(self, lease: int, session: int, token: int, addr: int, size_bytes: int, /) -> None:
        if lease in self.leases:
            raise EngineError("export_lease", EEXIST)
        self.leases[lease] = (session, token, addr, size_bytes)

    def revoke(self, lease: int, /) -> None:
        if self.leases.pop(lease, None) is None:
            raise EngineError("export_revoke", ENOENT)
        self.calls["revoke"] += 1

    def conn(self, session: int, sock: int, keys: bytes = b"", /) -> None:
        self.keys[session] = keys
        self.conns.setdefault(session, []).append(socket.socket(fileno=sock))

    def conn_rdma(self, session: int, sock: int, address: str, /) -> None:
        self.pairs.setdefault(session, []).append(socket.socket(fileno=sock))

    def offer(self, addr: int, size_bytes: int, /) -> None:
        assert not self.closed
        self.offered[addr] = size_bytes

    def withdraw(self, addr: int, /) -> None:
        assert not self.closed
        del self.offered[addr]

    def fence(self, session: int, /) -> None:
        self.calls["fence"] += 1
        for connection in (*self.conns.pop(session, []), *self.pairs.pop(session, [])):
            connection.close()

    def malformed(self) -> tuple[int, ...]:
        told, self.ended = tuple(self.ended), []
        return told

    def stats(self) -> ExportStats:
        nothing = ExportStats(**dict.fromkeys((each.name for each in fields(ExportStats)), 0))
        return replace(
            nothing,
            connections=sum(map(len, self.conns.values())),
            rdma_connections=sum(map(len, self.pairs.values())),
        )

    def destroy(self) -> None:
        for session in [*self.conns, *self.pairs]:
            self.fence(session)
        self.closed = True
