"""How many connections the API takes of one owner, and how long it waits for a request: real sockets, a small app."""

import asyncio
import errno
import gc
import os
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from farside.listen import open_listener
from farside.scheduler.manager.api.answer import listed
from farside.scheduler.manager.api.limit import connections
from farside.scheduler.manager.api.limit.connections import Connections, say_rarely
from farside.scheduler.manager.api.limit.handshake import CountedListener, forget_failed
from farside.scheduler.manager.api.limit.http_connection import LimitedProtocol
from farside.scheduler.manager.auth.caller import UNTOLD
from farside.scheduler.manager.nodes.agent_socket import AgentSocketProtocol
from farside.tls import TlsFiles, client_tls, server_tls
from tests.support.certificates import SERVER, Authority

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMIT_S = 90.0
ENOUGH_S = 2.0  # for a request of a client that waits for a processor
PIECES, PIECE_BYTES = 64, 65_536
REQUEST = b"GET / HTTP/1.1\r\nHost: m\r\n\r\n"
LONG = REQUEST.replace(b"/ ", b"/long ")
LISTING = REQUEST.replace(b"/ ", b"/listing ")
SESSION = (
    b"GET / HTTP/1.1\r\nHost: m\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
HELLO_FRAME = b"\x81\x82\0\0\0\0hi"  # RFC 6455 §5.2: text, whole, masked with zeroes
HALF_HEADER = b"GET / HTTP/1.1\r\nHo"
HALF_BODY = b"POST / HTTP/1.1\r\nHost: m\r\nContent-Length: 10\r\n\r\nhalf"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await receive()
        await receive()  # HELLO
        scope["state"][UNTOLD]()
        await send({"type": "websocket.send", "text": "welcome"})
        await asyncio.Event().wait()
    if scope["path"] == "/waits":
        await asyncio.Event().wait()
    if scope["path"] == "/long":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for at in range(PIECES + 1):
            body = b"x" * PIECE_BYTES if at < PIECES else b""
            await send({"type": "http.response.body", "body": body, "more_body": at < PIECES})
        return
    if scope["path"] == "/listing":
        await listed("1", lambda: [b"x" * PIECE_BYTES] * PIECES, "")(scope, receive, send)
        return
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


class NodeAllocation:
    """A server at a unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections = Connections()
        self.state = ServerState()

    async def connect(self, said: bytes = b"") -> Connection:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(said)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def a_place(folder: Path) -> AsyncIterator[NodeAllocation]:
    place = NodeAllocation(folder / "s")
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws=AgentSocketProtocol)
    make = partial(
        LimitedProtocol, config=config, server_state=place.state, app_state={}, connections=place.connections
    )
    server = await asyncio.get_running_loop().create_unix_server(make, str(place.path))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield place
    finally:
        server.close()
        for task in place.state.tasks:
            task.cancel()
        await asyncio.gather(*place.state.tasks, return_exceptions=True)


def place_test(test: Callable[[NodeAllocation, AsyncExitStack], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        async with a_place(folder) as place, AsyncExitStack() as ending:
            await test(place, ending)

    asyncio.run(run())


async def opened(place: NodeAllocation, ending: AsyncExitStack, said: bytes = b"") -> Connection:
    made = await place.connect(said)
    ending.callback(made[1].close)
    return made


async def is_answered(made: Connection) -> bool:
    return (await made[0].readuntil(b"bytes")).startswith(b"HTTP/1.1 200")


async def is_closed(made: Connection) -> bool:
    try:
        return await made[0].read() == b""
    except ConnectionResetError:
        return True


async def says_without_end(made: Connection, more: bytes) -> None:
    while True:
        made[1].write(more)
        await made[1].drain()


@pytest.mark.parametrize(
    ("said", "then"),
    [(b"", b""), (b"\r\n", b""), (HALF_HEADER, b""), (HALF_BODY, b""), (REQUEST, HALF_HEADER), (REQUEST, b"\r\n")],
)
def test_who_does_not_say_all_of_a_request_in_time_is_hung_up_on(
    said: bytes, then: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = ENOUGH_S if then else 0.05  # only a whole request has to come in time
    monkeypatch.setattr(connections, "HEADER_LIMIT_S", limit_s)
    monkeypatch.setattr(connections, "BODY_LIMIT_S", limit_s)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        made = await opened(place, ending, said)

        if then:
            assert await is_answered(made)
            made[1].write(then)  # which ends uvicorn's own wait for the next request
        assert await is_closed(made)

    place_test(test, tmp_path)


def test_a_header_and_what_frames_a_body_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_BYTES_MAX", 1 << 20)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        for begin, more in ((HALF_HEADER, b"x" * 1024), (HALF_BODY.replace(b"10", b"9" * 12), b"x" * 4096)):
            made = await opened(place, ending, begin)
            with pytest.raises(ConnectionError):
                await says_without_end(made, more)

    place_test(test, tmp_path)


def test_a_long_answer_has_all_the_time_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_LIMIT_S", ENOUGH_S)
    monkeypatch.setattr(connections, "BODY_LIMIT_S", ENOUGH_S)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        waits = await opened(place, ending, REQUEST.replace(b"/ ", b"/waits "))
        later = await opened(place, ending)

        assert await is_closed(later)  # which had the same time
        assert not waits[0].at_eof()

    place_test(test, tmp_path)


@pytest.mark.parametrize("said", [b"", HALF_HEADER, HALF_BODY])
def test_one_more_than_a_user_may_have_takes_the_place_of_his_that_waits_longest(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_A_USER", 4)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        made = [await opened(place, ending, said) for _ in range(20)]
        last = await opened(place, ending, REQUEST)

        assert await is_answered(last)
        assert all([await is_closed(one) for one in made[:17]])
        assert len(place.state.connections) <= 4

    place_test(test, tmp_path)


async def session(place: NodeAllocation, ending: AsyncExitStack) -> Connection:
    """An agent's connection that was accepted and has not said HELLO."""
    made = await opened(place, ending, SESSION)
    assert b" 101 " in await made[0].readuntil(b"\r\n\r\n")
    return made


def test_sessions_that_never_say_hello_are_those_of_their_owner_and_give_way_to_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger that had read a key's name off ws:// opened 9,900 of them in 8 s; the API grew by 343 MB."""
    monkeypatch.setattr(connections, "CONNECTIONS_A_USER", 4)
    owner = f"uid:{os.geteuid()}"

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        agent = await session(place, ending)
        agent[1].write(HELLO_FRAME)
        assert b"welcome" in await agent[0].read(100)

        silent = [await session(place, ending) for _ in range(20)]

        assert all([await is_closed(one) for one in silent[:16]])
        assert not any(one[0].at_eof() for one in (*silent[16:], agent))
        assert place.connections.count(owner) == 4
        for one in (*silent, agent):
            one[1].close()
        while place.connections.count(owner):
            await asyncio.sleep(0)

    place_test(test, tmp_path)


def test_a_connection_that_is_being_answered_is_taken_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_A_USER", 2)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        waits = [await opened(place, ending, REQUEST.replace(b"/ ", b"/waits ")) for _ in range(2)]
        while len(place.state.tasks) < 2:
            await asyncio.sleep(0)

        assert await is_closed(await opened(place, ending, REQUEST))
        assert len(place.state.connections) == 2
        waits[0][1].close()
        while len(place.state.connections) == 2:
            await asyncio.sleep(0)
        assert await is_answered(await opened(place, ending, REQUEST))

    place_test(test, tmp_path)


class SecurePlace:
    """A server of TLS at loopback; clients may come from any of its addresses."""

    def __init__(self, authority: Authority) -> None:
        self.client = client_tls(TlsFiles(ca=authority.cert, cert=Path(), key=Path()))
        self.connections = Connections()
        self.port = 0
        self.state = ServerState()

    async def raw(self, ending: AsyncExitStack, said: bytes = b"", address: str = "127.0.0.1") -> Connection:
        made = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        ending.callback(made[1].close)
        made[1].write(said)
        return made

    async def answers(self, address: str = "127.0.0.1") -> bool:
        made = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.client, server_hostname="localhost", local_addr=(address, 0)
        )
        made[1].write(REQUEST)
        try:
            return await is_answered(made)
        finally:
            made[1].close()
            await made[1].wait_closed()

    async def until_shaking(self, count: int) -> None:
        while self.connections.handshakes != count:
            await asyncio.sleep(0)


def secure_test(test: Callable[[SecurePlace, AsyncExitStack], Awaitable[None]], folder: Path) -> None:
    authority = Authority(folder)
    made = authority.make("manager", says=SERVER)
    place = SecurePlace(authority)

    async def run() -> None:
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        make = partial(
            LimitedProtocol, config=config, server_state=place.state, app_state={}, connections=place.connections
        )
        listener = CountedListener(open_listener("tcp:127.0.0.1:0"), place.connections)
        place.port = listener.getsockname()[1]
        context = server_tls(TlsFiles(ca=Path(), cert=made.cert, key=made.key))
        server = await asyncio.get_running_loop().create_server(make, sock=listener, ssl=context)
        try:
            async with asyncio.timeout(LIMIT_S), AsyncExitStack() as ending:
                await test(place, ending)
        finally:
            server.close()
            for task in place.state.tasks:
                task.cancel()
            await asyncio.gather(*place.state.tasks, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize(
    "said", [b"", *(pytest.param(said, marks=pytest.mark.long) for said in (b"\x16\x03\x01\x02\x00", REQUEST))]
)
def test_nothing_stays_of_a_handshake_that_failed(said: bytes, tmp_path: Path) -> None:
    def kept() -> int:
        return sum(isinstance(one, SSLProtocol) for one in gc.get_objects())

    async def test(place: SecurePlace, ending: AsyncExitStack) -> None:
        forget_failed(asyncio.get_running_loop())
        before = kept()
        made = [await place.raw(ending, said) for _ in range(20)]
        if said != REQUEST:  # who speaks no TLS is hung up on
            await place.until_shaking(20)
        for one in made:
            one[1].close()
        await place.until_shaking(0)

        while kept() != before:  # until the limit of all is over, if it does not come
            await asyncio.sleep(0.01)
        assert await place.answers()

    gc.collect()
    gc.disable()
    try:
        secure_test(test, tmp_path)
    finally:
        gc.enable()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00"])
def test_connections_that_never_speak_tls_are_those_of_their_address_and_give_way_to_new_ones(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_AN_ADDRESS", 4)

    async def test(place: SecurePlace, ending: AsyncExitStack) -> None:
        other = await place.raw(ending, address="127.0.0.2")
        made = [await place.raw(ending, said) for _ in range(50)]

        assert all([await is_closed(one) for one in made[:46]])
        assert place.connections.handshakes == 5
        assert await place.answers()
        assert await is_closed(made[46])
        assert not any(one[0].at_eof() for one in (*made[47:], other))

    secure_test(test, tmp_path)


def test_handshakes_of_all_addresses_together_have_a_bound_and_who_speaks_tls_gets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKES_MAX", 10)

    async def test(place: SecurePlace, ending: AsyncExitStack) -> None:
        made = [await place.raw(ending, address=f"127.0.0.{2 + at % 20}") for at in range(200)]

        assert all([await is_closed(one) for one in made[:190]])
        assert place.connections.handshakes == 10
        assert await place.answers()

    secure_test(test, tmp_path)


def test_who_hangs_up_during_the_handshake_or_speaks_no_tls_counts_no_more(tmp_path: Path) -> None:
    async def test(place: SecurePlace, ending: AsyncExitStack) -> None:
        made = [await place.raw(ending) for _ in range(20)]
        await place.until_shaking(20)

        for at, one in enumerate(made):
            if at % 2:
                one[1].close()
            else:
                one[1].write(b"GET / HTTP/1.1\r\n\r\n")

        await place.until_shaking(0)
        assert await place.answers()
        while place.connections.count("127.0.0.1"):
            await asyncio.sleep(0)

    secure_test(test, tmp_path)


def test_who_does_not_read_a_long_answer_makes_room_for_one_more_of_his_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_A_USER", 1)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        stalled = await opened(place, ending, LONG)

        assert await is_answered_at_last(place, ending)  # at first that one is being answered, and one more is refused

        assert len(await all_of(stalled)) < PIECE_BYTES * PIECES

    place_test(test, tmp_path)


def test_who_does_not_read_a_long_answer_does_so_no_less_when_he_asks_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_A_USER", 1)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        stalled = await opened(place, ending, LONG)
        assert isinstance(stalled[1].transport, asyncio.Transport)
        stalled[1].transport.pause_reading()  # it reads nothing ahead either
        while not place.state.connections:
            await asyncio.sleep(0)
        (server,) = place.state.connections
        assert isinstance(server, LimitedProtocol)
        paused = 0
        while paused < 100:  # what the kernel takes at first is over
            paused = paused + 1 if server.flow.write_paused else 0
            await asyncio.sleep(0)
        stalled[1].write(REQUEST)
        while not server.pipeline:
            await asyncio.sleep(0)

        assert await is_answered_at_last(place, ending)
        stalled[1].transport.resume_reading()
        assert len(await all_of(stalled)) < PIECE_BYTES * PIECES

    place_test(test, tmp_path)


def test_who_goes_before_his_listing_has_come_leaves_no_lines_in_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(place: NodeAllocation, _ending: AsyncExitStack) -> None:
        for _ in range(10):
            _reader, writer = await place.connect(LISTING)
            writer.transport.abort()
        while place.state.connections or place.state.tasks:
            await asyncio.sleep(0)

    place_test(test, tmp_path)

    assert not caplog.records


def test_who_reads_a_long_answer_on_gets_all_of_it_and_then_waits_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_A_USER", 1)

    async def test(place: NodeAllocation, ending: AsyncExitStack) -> None:
        reads = await opened(place, ending, LONG)
        for _ in range(PIECES):
            await reads[0].readexactly(PIECE_BYTES)
        await reads[0].readuntil(b"\r\n0\r\n\r\n")

        assert await is_answered_at_last(place, ending)
        assert await is_closed(reads)

    place_test(test, tmp_path)


async def is_answered_at_last(place: NodeAllocation, ending: AsyncExitStack) -> bool:
    while True:
        try:
            return await is_answered(await opened(place, ending, REQUEST))
        except (asyncio.IncompleteReadError, ConnectionError):
            continue


async def all_of(made: Connection) -> bytes:
    found = b""
    try:
        while part := await made[0].read(PIECE_BYTES):
            found += part
    except ConnectionError:
        pass
    return found


def test_who_is_not_limited_may_have_any_number() -> None:
    made = Connections(frozenset({"uid:0"}))

    assert all(made.admit("uid:0", 2) for _ in range(5))
    assert [made.admit("uid:7", 2) for _ in range(3)] == [True, True, False]


def test_that_no_files_are_left_is_said_once_a_minute_and_without_a_trace(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        say_rarely(loop)
        said = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "Too many")}
        for _ in range(1000):
            loop.call_exception_handler(said)

    with caplog.at_level("DEBUG", logger="farside"):
        asyncio.run(run())

    assert [record.levelname for record in caplog.records if record.name.startswith("farside")] == ["ERROR"]
    assert "Traceback" not in caplog.text + capfd.readouterr().err
