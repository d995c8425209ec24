"""How many connections the API takes of one owner, and how long it waits for a request: real sockets, a small app."""

import asyncio
import errno
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

from farside.scheduler.live.api import connection
from farside.scheduler.live.api.connection import LimitedProtocol
from farside.scheduler.live.api.crowd import Crowd, say_rarely

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMIT_S = 30.0
REQUEST = b"GET / HTTP/1.1\r\nHost: m\r\n\r\n"
HALF_HEADER = b"GET / HTTP/1.1\r\nHo"
HALF_BODY = b"POST / HTTP/1.1\r\nHost: m\r\nContent-Length: 10\r\n\r\nhalf"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/waits":
        await asyncio.Event().wait()
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


class Place:
    """A server at a unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.crowd = Crowd()
        self.state = ServerState()

    async def connect(self, said: bytes = b"") -> Connection:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(said)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def a_place(folder: Path) -> AsyncIterator[Place]:
    place = Place(folder / "s")
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    make = partial(LimitedProtocol, config=config, server_state=place.state, app_state={}, crowd=place.crowd)
    server = await asyncio.get_running_loop().create_unix_server(make, str(place.path))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield place
    finally:
        server.close()
        for task in place.state.tasks:
            task.cancel()
        await asyncio.gather(*place.state.tasks, return_exceptions=True)


def place_test(test: Callable[[Place, AsyncExitStack], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        async with a_place(folder) as place, AsyncExitStack() as ending:
            await test(place, ending)

    asyncio.run(run())


async def opened(place: Place, ending: AsyncExitStack, said: bytes = b"") -> Connection:
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
    monkeypatch.setattr(connection, "HEADER_LIMIT_S", 0.05)
    monkeypatch.setattr(connection, "BODY_LIMIT_S", 0.05)

    async def test(place: Place, ending: AsyncExitStack) -> None:
        made = await opened(place, ending, said)

        if then:
            assert await is_answered(made)
            made[1].write(then)  # which ends uvicorn's own wait for the next request
        assert await is_closed(made)

    place_test(test, tmp_path)


def test_a_header_and_what_frames_a_body_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 1 << 20)

    async def test(place: Place, ending: AsyncExitStack) -> None:
        for begin, more in ((HALF_HEADER, b"x" * 1024), (HALF_BODY.replace(b"10", b"9" * 12), b"x" * 4096)):
            made = await opened(place, ending, begin)
            with pytest.raises(ConnectionError):
                await says_without_end(made, more)

    place_test(test, tmp_path)


def test_a_long_answer_has_all_the_time_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_LIMIT_S", 0.05)
    monkeypatch.setattr(connection, "BODY_LIMIT_S", 0.05)

    async def test(place: Place, ending: AsyncExitStack) -> None:
        waits = await opened(place, ending, REQUEST.replace(b"/ ", b"/waits "))
        later = await opened(place, ending)

        assert await is_closed(later)  # which had the same time
        assert not waits[0].at_eof()

    place_test(test, tmp_path)


@pytest.mark.parametrize("said", [b"", HALF_HEADER, HALF_BODY])
def test_one_more_than_a_user_may_have_takes_the_place_of_his_that_waits_longest(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS_A_USER", 4)

    async def test(place: Place, ending: AsyncExitStack) -> None:
        made = [await opened(place, ending, said) for _ in range(20)]
        last = await opened(place, ending, REQUEST)

        assert await is_answered(last)
        assert all([await is_closed(one) for one in made[:17]])
        assert len(place.state.connections) <= 4

    place_test(test, tmp_path)


def test_a_connection_that_is_being_answered_is_taken_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS_A_USER", 2)

    async def test(place: Place, ending: AsyncExitStack) -> None:
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


def test_who_is_not_limited_may_have_any_number() -> None:
    made = Crowd(frozenset({"uid:0"}))

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

    with caplog.at_level("DEBUG"):
        asyncio.run(run())

    assert [record.levelname for record in caplog.records if record.name.startswith("farside")] == ["ERROR"]
    assert "Traceback" not in caplog.text + capfd.readouterr().err
