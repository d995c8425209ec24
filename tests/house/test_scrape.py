"""Metrics over HTTP: few scrapers at once, and a peer that says nothing costs little."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge

from farside import scrape
from farside.scrape import SCRAPERS_MAX, serve_metrics
from tests.support.ports import free_port

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def play(body: Callable[[int], Coroutine[object, object, None]]) -> None:
    async def live() -> None:
        registry, port = CollectorRegistry(), free_port()
        Gauge("farside_test_things", "Things.", registry=registry).set(3)
        async with await serve_metrics(f"127.0.0.1:{port}", registry):
            await body(port)

    asyncio.run(asyncio.wait_for(live(), 60))


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def scraped(port: int) -> bytes:
    """What a scrape is answered; nothing when it is hung up on."""
    async with connected(port) as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionError):
            return await reader.read()
        return b""


def test_a_scrape_gets_what_the_registry_holds() -> None:
    async def body(port: int) -> None:
        answer = await scraped(port)

        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"farside_test_things 3.0" in answer

    play(body)


def test_silent_peers_keep_no_scraper_out() -> None:
    """[L11] Eight connections that said nothing kept Prometheus out for ten seconds at a time."""

    async def body(port: int) -> None:
        async with AsyncExitStack() as others:
            silent = [await others.enter_async_context(connected(port)) for _ in range(SCRAPERS_MAX)]

            assert b"farside_test_things" in await scraped(port)
            assert await silent[0][0].read() == b"", "the oldest one was hung up on"

    play(body)


def test_a_silent_peer_is_hung_up_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "SCRAPE_LIMIT_S", 0.05)

    async def body(port: int) -> None:
        async with connected(port) as (reader, _):
            assert await reader.read() == b""

    play(body)
