"""Prometheus metrics: families made of figures, and an HTTP server in a process's own event loop for few scrapers.

Not by prometheus_client's own server: it gives each connection a thread and a descriptor for as long as the peer likes,
and these are what donors and devices live on.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from farside.listen import open_listener

SCRAPERS_MAX = 8  # a Prometheus or two, and somebody's curl
SCRAPE_LIMIT_S = 10.0  # Prometheus's own default
REQUEST_BYTES_MAX = 16384

Rows = Iterable[tuple[object, float | None]]


def family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    prefix: str,
    name: str,
    text: str,
    figures: float | Rows | None,
    labels: Sequence[str] = (),
) -> CounterMetricFamily | GaugeMetricFamily:
    """Family of metrics; a figure that is None is not known, and left out.

    Args:
        kind: Counter or gauge.
        prefix: What the names of a program's metrics begin with.
        name: The rest of it.
        text: What it means, a sentence.
        figures: A number; with ``labels`` a number for each label, or tuple of labels.
        labels: Names of the labels.
    """
    made = kind(f"{prefix}_{name}", text, labels=labels)
    for at, value in [((), figures)] if figures is None or isinstance(figures, int | float) else figures:
        if value is not None:
            made.add_metric([str(one) for one in (at if isinstance(at, tuple) else (at,))], value)
    return made


class _Asked(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def registry_of(collect: Callable[[], Iterable[Metric]], *, has_process: bool = True) -> CollectorRegistry:
    """A registry whose metrics are made anew at each scrape; ``has_process``: includes the process's own metrics."""
    registry = CollectorRegistry()
    registry.register(_Asked(collect))
    if has_process:
        ProcessCollector(registry=registry)
    return registry


async def serve_metrics(
    address: str, registry: CollectorRegistry, *, listener: socket.socket | None = None
) -> asyncio.Server:
    """Serves a registry's metrics on HOST:PORT until the server is closed.

    One scraper too many takes the place of the one that has said nothing for longest: who only holds places keeps no
    Prometheus out. [L11]

    ``listener``: one that listens at this address already.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    # By the order in which they came; None: it has asked, and is being answered.
    scrapers: dict[object, asyncio.WriteTransport | None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = object()
        if len(scrapers) >= SCRAPERS_MAX and not _hang_up_on_oldest(scrapers):
            writer.transport.abort()
            return
        scrapers[me] = writer.transport
        try:
            async with asyncio.timeout(SCRAPE_LIMIT_S):
                await reader.readuntil(b"\r\n\r\n")
                scrapers[me] = None
                body = generate_latest(registry)
                head = f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(body)}\r\n"
                writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a scraper, or one that has gone
        finally:
            scrapers.pop(me, None)
            writer.close()

    if listener is None:
        listener = open_listener(f"tcp:{address}", setting="metrics_listen")
    return await asyncio.start_server(answer, sock=listener, limit=REQUEST_BYTES_MAX)


def _hang_up_on_oldest(scrapers: dict[object, asyncio.WriteTransport | None]) -> bool:
    """Whether there was one that has not asked for anything yet."""
    for one, transport in scrapers.items():
        if transport is not None:
            del scrapers[one]
            transport.abort()
            return True
    return False
