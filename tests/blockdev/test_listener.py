"""Handshakes on real sockets: what is read, who is let in, and when it ends."""

import asyncio
import os
import socket
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest

from farside.blockdev.client import listener as subject
from farside.blockdev.client.handshake import Export
from farside.blockdev.client.listener import Clients, Listener, why_not
from farside.blockdev.client.peer_user import peer_uid
from farside.blockdev.client.stream import TlsDoor
from farside.blockdev.engine_port import Engine
from farside.blockdev.task import Tasks
from farside.errors import EngineError
from farside.listen import open_listener

EXPORT = Export(name="swap0", description="", size_bytes=1 << 20)
REQUEST = b"\x25\x60\x95\x13 the first request of the transmission phase"


@dataclass
class Workers:
    """Stands for the engine: keeps the sockets that it is given."""

    given: dict[int, socket.socket] = field(default_factory=dict)
    refuses: bool = False

    def conn_attach(self, worker: int, sock: int, session: object = None) -> None:
        if self.refuses:
            raise EngineError("conn_attach", 16)
        self.given[worker] = socket.socket(fileno=sock)


@dataclass
class Door:
    workers: Workers
    held: list[int]
    forgotten: list[int]
    clients: Clients
    listener: Listener


@pytest.fixture
def door() -> Iterator[Door]:
    workers = Workers()
    held: list[int] = []
    forgotten: list[int] = []
    clients = Clients(
        cast(Engine, workers), 2, hold=lambda worker, fd: held.append(worker), forget=forgotten.append
    )  # fmt: skip
    yield Door(workers, held, forgotten, clients, Listener(EXPORT, clients, Tasks()))
    for sock in workers.given.values():
        sock.close()


def go(*, name: bytes = b"") -> bytes:
    data = struct.pack(">I", len(name)) + name + b"\0\0"
    return struct.pack(">I", 3) + struct.pack(">QII", 0x49484156454F5054, 7, len(data)) + data


def negotiate(door: Door, sent: bytes, *, step: int = 0) -> tuple[int | None, bytes]:
    """One client that sends these bytes, in pieces of ``step``; the worker it got, and what it heard."""

    async def live() -> tuple[int | None, bytes]:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        served = asyncio.create_task(door.listener.negotiate(ours))
        pieces = [sent[i : i + step] for i in range(0, len(sent), step)] if step else [sent]
        for piece in pieces:
            await loop.sock_sendall(theirs, piece)
            await asyncio.sleep(0)
        if not sent:
            theirs.shutdown(socket.SHUT_WR)
        worker = await served
        heard = await loop.sock_recv(theirs, 65536)
        theirs.close()
        return worker, heard

    return asyncio.run(live())


@pytest.mark.parametrize("step", [0, 1, 7])
def test_the_first_request_is_left_for_the_engine(door: Door, step: int) -> None:
    worker, heard = negotiate(door, go() + REQUEST, step=step)

    assert worker == 0
    assert heard.startswith(b"NBDMAGICIHAVEOPT")
    sock = door.workers.given[0]
    assert sock.recv(1000) == REQUEST


def test_a_tcp_client_whose_machine_vanishes_is_noticed(door: Door) -> None:
    async def live() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        with client:
            client.sendall(go())
            assert await door.listener.negotiate(ours) == 0

    asyncio.run(live())

    given = door.workers.given[0]
    assert given.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, every, times = (
        given.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + every * times <= 120


def test_the_supervisor_holds_the_socket_before_the_engine_has_it(door: Door) -> None:
    negotiate(door, go())

    assert door.held == [0]
    assert door.clients.taken == {0}


def test_a_client_that_hangs_up_takes_no_worker(door: Door) -> None:
    worker, _ = negotiate(door, b"")

    assert worker is None
    assert door.clients.taken == set()


def test_a_client_that_says_nothing_is_dropped_at_the_deadline(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "HANDSHAKE_LIMIT_S", 0.05)

    worker, heard = negotiate(door, b"\0\0")

    assert worker is None
    assert len(heard) == 18


def test_a_third_client_of_two_workers_is_refused_by_name(door: Door) -> None:
    negotiate(door, go())
    negotiate(door, go())

    async def third() -> bytes:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        served = asyncio.create_task(door.listener.negotiate(ours))
        await loop.sock_sendall(theirs, go())
        heard = b""
        while b"taken" not in heard:
            heard += await loop.sock_recv(theirs, 4096)
        theirs.close()
        assert await served is None
        return heard

    heard = asyncio.run(third())

    assert struct.pack(">II", 7, (1 << 31) + 2) in heard
    assert door.clients.taken == {0, 1}


def test_a_handshake_under_way_ends_before_the_door_is_closed(door: Door, tmp_path: Path) -> None:
    async def live() -> bytes:
        loop = asyncio.get_running_loop()
        async with Tasks() as tasks:
            listener = Listener(EXPORT, door.clients, tasks)
            with open_listener(f"unix:{tmp_path}/nbd.sock") as sock, socket.socket(socket.AF_UNIX) as client:
                listener.open(sock)
                client.setblocking(False)
                await loop.sock_connect(client, str(tmp_path / "nbd.sock"))
                heard = await loop.sock_recv(client, 18)
                closing = asyncio.create_task(listener.close(10.0))
                await asyncio.sleep(0)
                await loop.sock_sendall(client, go())
                await closing
                return heard

    assert asyncio.run(live()).startswith(b"NBDMAGIC")
    assert door.clients.taken == {0}


def test_a_closed_client_frees_its_worker_and_its_duplicate(door: Door) -> None:
    negotiate(door, go())

    door.clients.closed(0, 0)

    assert door.forgotten == [0]
    assert door.clients.reserve() == 0


def test_an_engine_that_takes_no_client_frees_the_worker(door: Door) -> None:
    door.workers.refuses = True

    negotiate(door, go())

    assert door.clients.taken == set()
    assert door.forgotten == [0]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Our client's socket, and the device's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


@pytest.mark.parametrize("family", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_the_kernel_tells_whose_a_connection_of_this_machine_is(family: str) -> None:
    try:
        kind = socket.AF_INET6 if ":" in family else socket.AF_INET
        with (
            socket.create_server(
                ("::" if ":" in family else family, 0), family=kind, dualstack_ipv6=":" in family
            ) as door,
            socket.create_connection((family, door.getsockname()[1])) as client,
            door.accept()[0] as server,
        ):
            assert peer_uid(server) == peer_uid(client) == os.geteuid()
    except OSError as error:
        pytest.skip(f"no {family} here: {error}")


def test_a_connection_that_its_client_has_closed_is_nobodys() -> None:
    """[M11] The kernel shows a socket without an owner as root's, and root is let in."""
    client, server = tcp_pair()
    with server:
        client.close()

        assert peer_uid(server) is None
        assert "no process" in why_not(server)


def test_a_listener_at_the_peers_place_is_not_the_peer() -> None:
    """[M11] The kernel answers with a listener where it has no such connection."""
    with ExitStack() as open_ones:
        place, door = (open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        client = open_ones.enter_context(socket.create_connection(door.getsockname()))
        server = open_ones.enter_context(door.accept()[0])
        assert peer_uid(server) == os.geteuid()
        names = SimpleNamespace(getpeername=place.getsockname, getsockname=client.getsockname)

        assert peer_uid(cast(socket.socket, names)) is None


def test_to_ask_whose_a_connection_is_costs_the_same_however_many_there_are() -> None:
    """[M11] With thousands of sockets of a stranger's, each look read all of them, in the loop that serves swap."""
    with ExitStack() as many:
        for _ in range(300):
            for end in tcp_pair():
                many.enter_context(end)
        client, server = tcp_pair()
        many.enter_context(client)
        many.enter_context(server)
        peer_uid(server)
        tracemalloc.start()
        many.callback(tracemalloc.stop)

        assert peer_uid(server) == os.geteuid()

        # A line of the table of sockets is 150 bytes: of 600 it has 90,000.
        assert tracemalloc.get_traced_memory()[1] < 32_000


def test_what_is_no_nbd_client_is_told_in_one_line_a_minute_with_whose_it_was(door: Door) -> None:
    """[L6] With `listen_unproved` each stranger's bytes cost a line, which did not say whose they were."""
    with patch.object(subject, "log") as log:
        for _ in range(5):
            client, server = tcp_pair()
            with client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
                asyncio.run(door.listener.negotiate(server))

    (line,) = log.info.call_args_list
    assert line.args == ("a client was turned away",)
    assert line.kwargs == {"client": "127.0.0.1", "reason": "unknown client flags 0x47455420"}


def test_by_tcp_only_this_user_and_root_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """[M11] Another local user read and wrote the device by 127.0.0.1."""
    client, server = tcp_pair()
    with client, server:
        assert why_not(server) == ""
        monkeypatch.setattr(subject, "peer_uid", lambda _: 9)
        assert "uid 9" in why_not(server)
        monkeypatch.setattr(subject, "peer_uid", lambda _: None)
        assert "another machine" in why_not(server)


def test_another_users_connection_is_closed_without_a_word(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """[M11] By a real process of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    async def live() -> bytes:
        async with Tasks() as tasks:
            listener = Listener(EXPORT, door.clients, tasks)
            with open_listener("tcp:127.0.0.1:0") as sock:
                listener.open(sock)
                script = (
                    "import os, socket, sys; os.setuid(9); "
                    f"s = socket.create_connection(('127.0.0.1', {sock.getsockname()[1]}), timeout=60); "
                    "sys.stdout.write(repr(s.recv(18)))"
                )
                told = await asyncio.create_subprocess_exec(
                    sys.executable, "-S", "-c", script, stdout=asyncio.subprocess.PIPE
                )
                said, _ = await told.communicate()
                await listener.close(10.0)
                return said

    assert asyncio.run(live()) == b"b''"
    assert door.clients.taken == set()


def test_strangers_at_a_tls_door_give_way_to_each_other_and_keep_nobody_out(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """[M11] Sixty-four who say nothing kept out all others for ten seconds, those by the unix socket too."""
    monkeypatch.setattr(subject, "UNPROVED_AN_ADDRESS", 2)
    monkeypatch.setattr(subject, "HANDSHAKES_MAX", 2)  # one for each socket
    monkeypatch.setattr(subject, "peer_uid", lambda _: None)
    listed = struct.pack(">I", 3) + struct.pack(">QII", 0x49484156454F5054, 3, 0)

    async def live() -> None:
        loop = asyncio.get_running_loop()

        async def come(stack: ExitStack, kind: int, where: str | tuple[str, int]) -> socket.socket:
            sock = stack.enter_context(socket.socket(kind))
            sock.setblocking(False)
            await loop.sock_connect(sock, where)
            assert (await loop.sock_recv(sock, 18)).startswith(b"NBDMAGIC")
            return sock

        async with Tasks() as tasks:
            listener = Listener(EXPORT, door.clients, tasks, tls=cast(TlsDoor, object()))
            with ExitStack() as stack:
                tcp, unix = (
                    stack.enter_context(open_listener(where)) for where in ("tcp:127.0.0.1:0", f"unix:{tmp_path}/s")
                )
                listener.open(tcp)
                listener.open(unix)
                strangers = [await come(stack, socket.AF_INET, tcp.getsockname()) for _ in range(3)]
                assert await loop.sock_recv(strangers[0], 1) == b"", "the oldest"
                for sock in strangers[1:]:
                    await loop.sock_sendall(sock, listed)
                    assert (await loop.sock_recv(sock, 100))[12:16] == struct.pack(">I", (1 << 31) + 5)
                known = await come(stack, socket.AF_UNIX, f"{tmp_path}/s")
                await loop.sock_sendall(known, go())
                assert struct.pack(">II", 7, 1) in await loop.sock_recv(known, 4096)

    asyncio.run(live())
    assert door.clients.taken == {0}


def test_who_has_a_subnet_of_ipv6_is_one_stranger(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """[M11] With 64 bits of addresses it would have had all places, and others' clients lost theirs."""
    monkeypatch.setattr(subject, "UNPROVED_AN_ADDRESS", 2)
    monkeypatch.setattr(subject, "peer_uid", lambda _: None)

    class Stranger(socket.socket):
        def getpeername(self) -> tuple[str, int]:
            return f"2001:db8::{self.fileno():x}", 1

    async def live() -> None:
        listener = Listener(EXPORT, door.clients, Tasks(), tls=cast(TlsDoor, object()))
        with ExitStack() as stack:
            pairs = [tcp_pair() for _ in range(3)]
            ours = [stack.enter_context(client) for client, _ in pairs]
            coming = [
                asyncio.ensure_future(listener.welcome(Stranger(fileno=server.detach()))) for _, server in pairs
            ]  # fmt: skip
            done, others = await asyncio.wait(coming, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert done == {coming[0]}, "the oldest"
            for client in ours:
                client.close()
            await asyncio.wait(others)

    asyncio.run(live())


def test_one_client_by_tcp_as_inetds_comes_in_as_by_a_listener(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """[M11] On standard input whoever inetd let in was served, from whatever machine."""
    client, server = tcp_pair()
    with client:
        client.sendall(go())
        assert asyncio.run(door.listener.welcome(server)) == 0
    monkeypatch.setattr(subject, "peer_uid", lambda _: None)
    stranger, server = tcp_pair()
    with stranger:
        stranger.sendall(go())
        assert asyncio.run(door.listener.welcome(server)) is None
        assert server.fileno() == -1
