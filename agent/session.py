"""The agent's connection to the manager: opened again when it is lost; every report arrives exactly once.

Each connection starts with HELLO and every task that is known; then come the reports that were not acknowledged, then
new ones: at once when a task's state changes, and every ``period_s`` otherwise. Commands are carried out as they come.
Tasks run on while there is no manager.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from farside.agent import messages as m
from farside.agent.backoff import backoff_s
from farside.agent.near_manager import connect_near
from farside.agent.outbox import Outbox
from farside.agent.protocol import FRAME_BYTES_MAX, PATH, AgentSide, close_reason
from farside.agent.token import read_token
from farside.clock import Clock
from farside.errors import ConfigError, RemoteProtocolError, first_of
from farside.log import get_log
from farside.own_task import in_own_task
from farside.tls import TlsFiles, client_tls, tls_problem

OPEN_LIMIT_S = 10.0
WELCOME_LIMIT_S = 40.0
"""A manager that has just started waits up to half a minute for its scheduler process to lead."""
PING_EVERY_S = 10.0
"""A dead manager, or a cut cable, is noticed within twice this."""
BATCH_S = 0.02
"""After the first change of a state: how long others may still join its report (8 ranks of a node end together)."""

NEAR = "unix:"
NEAR_URL = "ws://localhost"  # what HTTP is told of a unix socket

_log = get_log("agent.session")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerAddress:
    """Address of the manager, and how its identity is proved.

    Attributes:
        url: unix:PATH, ws://HOST:PORT or wss://HOST:PORT.
        token_file: Bearer token of role node; empty: none. Files are read at each attempt, so that they can be changed.
        tls: What the manager's certificate is verified by, and our own, if we have one.
    """

    url: str
    token_file: Path
    tls: TlsFiles


def near_path(url: str) -> str:
    """The unix socket's path of a manager on this machine; empty for one on a network."""
    return url.removeprefix(NEAR) if url.startswith(NEAR) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Functions of the agent that the session needs."""

    hello: Callable[[], m.Hello]
    read: Callable[[], Awaitable[m.Reading]]
    take: Callable[[m.Start | m.Stop | m.Forget], None]
    probe: Callable[[m.Probe], Awaitable[m.Probed]]
    donors: Callable[[tuple[m.DonorAddress, ...]], None]
    lending: Callable[[m.Lending], None]
    service: Callable[[m.Service], None]
    power_off: Callable[[m.PowerOff], Coroutine[Any, Any, None]]
    seen_generation: Callable[[], int]


class _Connection(ClientConnection):
    """Connection whose failure to open has the reason from TLS, where there is one.

    A manager refuses a node's certificate after the node's own handshake is over: when HTTP's is under way.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(exc, ssl.SSLError):
            self.protocol.handshake_exc = exc


class Session:
    """Keeps the connection while `run` runs.

    Attributes:
        is_connected: The manager has said WELCOME on a connection that is still open.
        last_problem: Why there is none, in one line.
    """

    def __init__(
        self, manager: ManagerAddress, node: Node, *, clock: Clock, rng: Random, period_s: float, reconnect_s: float
    ) -> None:
        self.is_connected = False
        self.last_problem = "not tried yet"
        self._manager, self._node = manager, node
        self._clock, self._rng = clock, rng
        self._period_s, self._reconnect_s = period_s, reconnect_s
        self._outbox = Outbox()
        self._news = asyncio.Event()
        self._acked = asyncio.Event()

    def tell(self, state: m.TaskState) -> None:
        """Send a task's state with the next report."""
        self._outbox.note(state)
        self._news.set()

    def tell_of_job(self, told: m.Told) -> None:
        """Takes what a service says about a job, for the next report."""
        if self._outbox.note_told(told):
            self._news.set()
        else:
            _log.warning("what a service tells of a job is left out: too much", service=told.service, job=told.job)

    async def run(self) -> None:
        """Stays connected until it is cancelled."""
        failures = 0
        while True:
            problem = "the connection ended"
            try:
                await in_own_task(self._connect_once())
            # A faulty answer of a manager must not end an agent with jobs on it either.
            except Exception as error:
                problem = _problem(error, self._manager.url)
            was_connected, self.is_connected = self.is_connected, False
            # One line for each reason: attempts go on for as long as the manager is away.
            if problem != self.last_problem or was_connected:
                _log.warning("no connection to the manager", manager=self._manager.url, why=problem)
            self.last_problem = problem
            failures = 0 if was_connected else failures + 1
            wait_s = backoff_s(failures, longest_s=self._reconnect_s, rng=self._rng)
            await self._clock.sleep_until_s(self._clock.now_s() + wait_s)

    async def _connect_once(self) -> None:
        near = near_path(self._manager.url)
        url = NEAR_URL if near else self._manager.url
        # Before the token is read: a program that is not the manager is not to get it. [H2]
        sock = await asyncio.to_thread(connect_near, near) if near else None
        async with connect(
            url.rstrip("/") + PATH,
            sock=sock,
            additional_headers=self._headers(is_near=bool(near)),
            ssl=client_tls(self._manager.tls) if urlsplit(self._manager.url).scheme == "wss" else None,
            create_connection=_Connection,
            compression=None,
            max_size=FRAME_BYTES_MAX,
            open_timeout=OPEN_LIMIT_S,
            ping_interval=PING_EVERY_S,
            ping_timeout=PING_EVERY_S,
            user_agent_header=None,
            proxy=None,  # the cluster's own network; an environment variable meant for browsers must not reroute it
        ) as connection:
            await self._converse(connection)

    def _headers(self, *, is_near: bool) -> dict[str, str]:
        file = self._manager.token_file
        # On its unix socket the manager knows us by the kernel's word. One of before does not, and takes a token there.
        if not file.is_absolute() or (is_near and not file.exists()):
            return {}
        # Read at each attempt, so that a token can be changed without a restart.
        return {"Authorization": f"Bearer {read_token(file)}"}

    async def _converse(self, connection: ClientConnection) -> None:
        side = AgentSide(seen_generation=self._node.seen_generation())
        try:
            # HELLO names every task, so the manager learns what it missed before it sends commands.
            await connection.send(side.send(self._node.hello()))
            async with asyncio.timeout(WELCOME_LIMIT_S):
                side.receive(await connection.recv())
            self.is_connected, self.last_problem = True, ""
            _log.info("connected to the manager", manager=self._manager.url, generation=side.generation)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._obey(connection, side, group))
                group.create_task(self._report(connection, side))
        except* RemoteProtocolError as faults:
            fault = first_of(faults)
            await connection.close(fault.code or 1002, close_reason(fault))
            raise fault from None

    async def _obey(self, connection: ClientConnection, side: AgentSide, group: asyncio.TaskGroup) -> None:
        while True:
            message = side.receive(await connection.recv())
            if isinstance(message, m.Ack):
                self._outbox.acknowledge(message.seq)
                self._acked.set()
            elif isinstance(message, m.Probe):
                group.create_task(self._answer(connection, side, message))  # a slow mount must not hold commands up
            elif isinstance(message, m.Donors):
                self._node.donors(message.donors)
            elif isinstance(message, m.Lending):
                self._node.lending(message)
                self._news.set()  # the next report carries it out and says what came of it
            elif isinstance(message, m.Service):
                self._node.service(message)
                self._news.set()
            elif isinstance(message, m.PowerOff):
                group.create_task(self._node.power_off(message))
            elif not isinstance(message, m.Welcome):
                self._node.take(message)

    async def _answer(self, connection: ClientConnection, side: AgentSide, probe: m.Probe) -> None:
        try:
            frame = side.send(await self._node.probe(probe))
        except Exception as error:  # a folder that cannot be asked about must not cost the node its connection
            _log.error("a checkpoint folder could not be checked", folder=probe.path, cause=error)
            frame = side.send(m.Probed(probe_id=probe.probe_id, problem="this node could not look"))
        await connection.send(frame)

    async def _report(self, connection: ClientConnection, side: AgentSide) -> None:
        # The manager may have written them before the connection broke: their numbers show it, and it counts none
        # twice.
        for old in self._outbox.unacked:
            await connection.send(side.send(old))
        while True:
            report = self._outbox.compose(await self._node.read())
            # Too many reports are under way: the next one waits until the manager has acknowledged one of them.
            if report is None:
                self._acked.clear()
                await self._acked.wait()
                continue
            await connection.send(side.send(report))
            if not self._outbox.has_news:
                self._news.clear()
                await self._until_news()

    async def _until_news(self) -> None:
        """Returns a batch's time after the first news, or when the period is over."""
        news = asyncio.ensure_future(self._news.wait())
        period = asyncio.ensure_future(self._clock.sleep_until_s(self._clock.now_s() + self._period_s))
        try:
            await asyncio.wait((news, period), return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                await self._clock.sleep_until_s(self._clock.now_s() + BATCH_S)
        finally:
            for future in (news, period):
                future.cancel()
            # Not each by itself with its CancelledError suppressed: that could be our own.
            await asyncio.gather(news, period, return_exceptions=True)


def _problem(error: Exception, url: str) -> str:
    first = first_of(error) if isinstance(error, ExceptionGroup) else error
    if isinstance(first, ssl.SSLError):
        return str(tls_problem(first, url))
    if isinstance(first, InvalidStatus):
        status = first.response.status_code
        why = {401: "the manager does not know this node's token", 403: "the manager refuses this node's token"}
        return why.get(status, f"the manager answered HTTP {status}")
    if isinstance(first, ConnectionClosed):
        said = first.rcvd.reason if first.rcvd is not None else ""
        return said or "the connection was lost"
    if isinstance(first, TimeoutError):
        return "no answer in time"
    if isinstance(first, OSError):
        return first.strerror or str(first)
    if not isinstance(first, WebSocketException | RemoteProtocolError | ConfigError):
        _log.error("unexpected fault", cause=first)
    return str(first)
