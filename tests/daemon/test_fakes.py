"""The stand-ins for the engine do what the engine does: each rule is tried on both."""

import mmap
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from farside.daemon.slab.lender import Exporter
from farside.daemon.slab.pool import SlabMemory
from farside.errors import EngineError
from tests.daemon.fakes import EEXIST, ENOENT, FakeExporter, FakeMemory

SLAB = 2 << 20
TOKEN = 2**64 - 5
REQUEST = struct.Struct("<IHHIIQQQ")  # wire.h, struct ne_wire_request
REPLY = struct.Struct("<IIQ")
READ, WRITE = 1, 2
SESSION_CONNECTIONS = 64  # engine.h, NE_SESSION_CONNS_MAX


@dataclass
class Engine:
    exporter: Exporter
    memory: SlabMemory


@pytest.fixture(params=["fake", "real"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "fake":
        made = Engine(FakeExporter(), FakeMemory())
    else:
        binding = pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")
        made = Engine(binding.Exporter(), binding)
    yield made
    made.exporter.destroy()


@pytest.fixture
def memfd() -> Iterator[int]:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(fd, SLAB)
    yield fd
    os.close(fd)


def test_mapped_memory_is_populated_and_shared(engine: Engine, memfd: int) -> None:
    address = engine.memory.map(memfd, SLAB)

    with mmap.mmap(memfd, SLAB) as view:
        assert address > 0
        assert view[:] == bytes(SLAB)
    engine.memory.unmap(address, SLAB)


def test_a_lease_number_is_used_once_at_a_time(engine: Engine, memfd: int) -> None:
    address = engine.memory.map(memfd, SLAB)
    engine.exporter.lease(3, 1, TOKEN, address, SLAB)

    with pytest.raises(EngineError) as caught:
        engine.exporter.lease(3, 1, TOKEN, address, SLAB)
    assert caught.value.errno == EEXIST
    engine.exporter.revoke(3)
    engine.exporter.lease(3, 2, TOKEN, address, SLAB)
    engine.exporter.revoke(3)
    engine.memory.unmap(address, SLAB)


def test_what_is_not_leased_cannot_be_revoked(engine: Engine) -> None:
    with pytest.raises(EngineError) as caught:
        engine.exporter.revoke(7)
    assert caught.value.errno == ENOENT


def test_a_fenced_session_has_no_connections_and_others_keep_theirs(engine: Engine) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    for session, (_, theirs) in enumerate(pairs, 1):
        engine.exporter.conn(session, theirs.fileno())
        theirs.detach()

    engine.exporter.fence(1)
    engine.exporter.fence(9)  # one that was never there

    assert pairs[0][0].recv(1) == b""
    pairs[1][0].setblocking(False)
    with pytest.raises(BlockingIOError):
        pairs[1][0].recv(1)
    assert engine.exporter.stats().connections == 1
    for ours, _ in pairs:
        ours.close()


def test_the_real_one_serves_a_lease_by_its_token_until_it_is_revoked(memfd: int) -> None:
    binding = pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")
    exporter = binding.Exporter()
    address = binding.map(memfd, SLAB)
    exporter.lease(3, 1, TOKEN, address, SLAB)
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    exporter.conn(1, theirs.detach())

    assert ask(ours, WRITE, token=TOKEN, payload=b"x" * 4096) == (0, b"")
    assert ask(ours, READ, token=TOKEN, length=4096) == (0, b"x" * 4096)
    assert os.pread(memfd, 4096, 4096) == b"x" * 4096
    status, payload = ask(ours, READ, token=TOKEN - 1, length=4096)
    assert status != 0
    assert payload == bytes(4096)
    exporter.revoke(3)
    assert ask(ours, READ, token=TOKEN, length=4096)[0] == ENOENT
    assert exporter.stats().refused == 2
    exporter.destroy()
    binding.unmap(address, SLAB)
    ours.close()


def test_the_real_one_names_the_session_whose_connection_it_ends_for_what_came_on_it() -> None:
    binding = pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")
    exporter = binding.Exporter()
    pairs = [socket.socketpair() for _ in range(3)]
    for session, (_, theirs) in enumerate(pairs, 7):
        exporter.conn(session, theirs.detach())

    pairs[0][0].sendall(b"no request".ljust(REQUEST.size))
    pairs[1][0].close()  # as borrowers do
    assert pairs[0][0].recv(1) == b""

    assert exporter.malformed() == (7,)
    assert exporter.malformed() == ()
    assert exporter.stats().refused == 1
    exporter.destroy()
    for ours, _ in pairs:
        ours.close()


def test_a_session_has_a_bounded_number_of_connections_and_threads() -> None:
    """[L10] One more ends the oldest of the same session, and of no other."""
    binding = pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")
    exporter = binding.Exporter()
    pairs = [socket.socketpair() for _ in range(SESSION_CONNECTIONS + 3)]
    for number, (_, theirs) in enumerate(pairs):
        exporter.conn(1 if number else 2, theirs.detach())

    assert exporter.stats().connections == SESSION_CONNECTIONS + 1
    for ours, _ in pairs:
        ours.setblocking(False)
    assert [number for number, (ours, _) in enumerate(pairs) if is_ended(ours)] == [1, 2]
    exporter.destroy()
    for ours, _ in pairs:
        ours.close()


def is_ended(sock: socket.socket) -> bool:
    """Whether the other end has closed."""
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


def ask(sock: socket.socket, op: int, *, token: int, length: int = 0, payload: bytes = b"") -> tuple[int, bytes]:
    """Status and payload of one request to lease 3 at 4 KiB."""
    length = length or len(payload)
    sock.sendall(REQUEST.pack(0x31515246, op, 0, 3, length, 4096, token, 9) + payload)
    wanted = REPLY.size + (length if op == READ else 0)
    answer = b""
    while len(answer) < wanted:
        answer += sock.recv(wanted - len(answer))
    magic, status, cookie = REPLY.unpack_from(answer)
    assert (magic, cookie) == (0x31505246, 9)
    return status, answer[REPLY.size :]
