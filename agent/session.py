"""The agent's connection to the manager: opened again when it is lost; every report arrives exactly once.

Each connection starts with HELLO and every task that is known; then come the reports that were not acknowledged, then
new ones: at once when a task's state changes, and every ``period_s`` otherwise. Commands are carried out as they come.
Tasks run on while there is no manager.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Response

from farside.agent import messages as m
from farside.agent.backoff import backoff_s
from farside.agent.line import Line, open_line, open_proved_line
from farside.agent.mutual_proof import HEADER, INVITATION
from farside.agent.near_manager import connect_near
from farside.agent.outbox import Outbox
from farside.agent.protocol import AgentSide, close_reason
from farside.agent.run.fence import now_s
from farside.agent.run.ledger import Command
from farside.agent.token import NodeToken, read_token
from farside.clock import Clock
from farside.errors import ConfigError, RemoteProtocolError, first_of
from farside.log import get_log
from farside.own_task import in_own_task
from farside.tls import TlsFiles, client_tls, tls_problem

WELCOME_LIMIT_S = 40.0
"""A manager that has just started waits up to half a minute for its scheduler process to lead."""
HURRY_S = 0.25
"""As often as a donor looks at its memory: what it takes back for a job is told of soon after it is there."""
BATCH_S = 0.02
"""After the first change of a state: how long others may still join its report (8 ranks of a node end together)."""

SAID_MAX = 300  # characters of a refusal

NEAR = "unix:"
NEAR_URL = "ws://localhost"  # what HTTP is told of a unix socket

_log = get_log("agent.session")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerAddress:
    """Address of the manager, and how its identity is proved.

    Attributes:
        url: unix:PATH, ws://HOST:PORT or wss://HOST:PORT.
        token_file: Token of this node, or an invitation; empty: none. Files are read at each attempt, so that they can
            be changed.
        state_dir: Folder for the token that the node gets for an invitation.
        tls: What the manager's certificate is verified by, and our own, if we have one.
        takes_unproved: A manager on ws:// that cannot prove itself is obeyed, and gets the token.
    """

    url: str
    token_file: Path
    state_dir: Path
    tls: TlsFiles
    takes_unproved: bool = False

    def is_invited(self) -> bool:
        """Whether there is an invitation in the token's file. Raises ConfigError as `read_token` does."""
        return self.token_file.is_absolute() and self._token.read().startswith(INVITATION)

    def tokens(self) -> tuple[str, ...]:
        """The tokens to connect by, the most likely first; see `NodeToken.to_try`."""
        return self._token.to_try()

    def keep_token(self, token: str, *, is_settled: bool) -> None:
        """Writes down the token that the node got for its invitation; see `NodeToken.keep`."""
        self._token.keep(self._token.read(), token, is_settled=is_settled)

    @property
    def _token(self) -> NodeToken:
        return NodeToken(self.token_file, self.state_dir)


def near_path(url: str) -> str:
    """The unix socket's path of a manager on this machine; empty for one on a network."""
    return url.removeprefix(NEAR) if url.startswith(NEAR) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Functions of the agent that the session needs.

    Attributes:
        take: Carries out a command of a manager that has proved itself, or has not.
        seen_generation: Generation below which a manager is over, for one that has proved itself, or has not.
        welcomed: A manager of this generation leads; it has proved itself, or has not.
        heard: The manager has acknowledged what was sent at this time, by `fence.now_s`.
        hurries: A job may wait for what changes here, so reports come every `HURRY_S` at least.
    """

    hello: Callable[[], m.Hello]
    read: Callable[[], Awaitable[m.Reading]]
    take: Callable[[Command, bool], None]
    probe: Callable[[m.Probe], Awaitable[m.Probed]]
    donors: Callable[[tuple[m.DonorAddress, ...]], None]
    lending: Callable[[m.Lending], None]
    service: Callable[[m.Service], None]
    power_off: Callable[[m.PowerOff], Coroutine[Any, Any, None]]
    seen_generation: Callable[[bool], int]
    welcomed: Callable[[int, bool], None]
    heard: Callable[[float], None] = lambda at_s: None
    hurries: Callable[[], bool] = lambda: False


class Session:
    """Keeps the connection while `run` runs.

    Attributes:
        is_connected: The manager has said WELCOME on a connection that is still open.
        is_proved: That manager has proved itself; True while there is none.
        last_problem: Why there is none, in one line.
    """

    def __init__(
        self, manager: ManagerAddress, node: Node, *, clock: Clock, rng: Random, period_s: float, reconnect_s: float
    ) -> None:
        self.is_connected = False
        self.is_proved = True
        self.last_problem = "not tried yet"
        self._manager, self._node = manager, node
        self._clock, self._rng = clock, rng
        self._period_s, self._reconnect_s = period_s, reconnect_s
        self._outbox = Outbox()
        self._sent_s: dict[int, float] = {}  # when each report was sent that is not acknowledged
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

    def report_soon(self) -> None:
        """What services say has changed so much that the manager should hear it at once."""
        self._news.set()

    async def run(self) -> None:
        """Stays connected until it is cancelled."""
        failures = 0
        while True:
            problem = "the connection ended"
            try:
                await in_own_task(self._connect_once())
            # A faulty answer of a manager must not end an agent with jobs on it either.
            except Exception as error:
                problem = _problem(error, self._manager)
            was_connected, self.is_connected, self.is_proved = self.is_connected, False, True
            # One line for each reason: attempts go on for as long as the manager is away.
            if problem != self.last_problem or was_connected:
                _log.warning("no connection to the manager", manager=self._manager.url, why=problem)
            self.last_problem = problem
            failures = 0 if was_connected else failures + 1
            wait_s = backoff_s(failures, longest_s=self._reconnect_s, rng=self._rng)
            await self._clock.sleep_until_s(self._clock.now_s() + wait_s)

    async def _connect_once(self) -> None:
        url, near = self._manager.url, near_path(self._manager.url)
        if near:
            # Before the token is read: a program that is not the manager is not to get it. [H2]
            sock = await asyncio.to_thread(connect_near, near)
            async with open_line(NEAR_URL, self._token_headers(is_near=True), is_proved=True, sock=sock) as line:
                await self._converse(line)
        elif urlsplit(url).scheme == "wss":
            await self._connect_by_tls(url)
        else:
            await self._connect_by_proof(url)

    async def _connect_by_tls(self, url: str) -> None:
        tls = client_tls(self._manager.tls)
        if self._manager.is_invited():
            await self._try_tokens(url, tls)
            return
        async with open_line(url, self._token_headers(), is_proved=True, tls=tls) as line:
            await self._converse(line)

    async def _connect_by_proof(self, url: str) -> None:
        try:
            await self._try_tokens(url)
            return
        except InvalidStatus as error:
            # One of the version before asks for a token, and its answer knows nothing of proofs.
            if HEADER in error.response.headers or error.response.status_code not in (401, 403):
                raise
        if not self._manager.takes_unproved or self._manager.is_invited():
            hint = "update it, write wss://, or set accept_unproved_manager = true for as long as it is not updated"
            raise ConfigError("the manager cannot prove itself: it is of a version before this one, or none", hint=hint)
        async with open_line(url, self._token_headers(), is_proved=False) as line:
            await self._converse(line)

    async def _try_tokens(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        """Connects by the first token that the manager knows; an invitation is exchanged for a lasting one."""
        *others, last = self._manager.tokens()
        for token in others:
            try:
                async with open_proved_line(url, token, tls=tls) as line:
                    await self._converse(line, settles=token)
                    return
            except InvalidStatus as error:
                if error.response.status_code != 401:
                    raise
        async with open_proved_line(url, last, tls=tls) as line:
            if last.startswith(INVITATION):
                # Before the manager hears of it: from its side the invitation is used then.
                self._manager.keep_token(line.lasting_token, is_settled=False)
                await self._converse(line, settles=line.lasting_token)
            else:
                await self._converse(line)

    def _token_headers(self, *, is_near: bool = False) -> dict[str, str]:
        file = self._manager.token_file
        # On its unix socket the manager knows us by the kernel's word. One of before does not, and takes a token there.
        if not file.is_absolute() or (is_near and not file.exists()):
            return {}
        # Read at each attempt, so that a token can be changed without a restart.
        return {"Authorization": f"Bearer {read_token(file)}"}

    async def _converse(self, line: Line, *, settles: str = "") -> None:
        side = AgentSide(seen_generation=self._node.seen_generation(line.is_proved))
        try:
            # HELLO names every task, so the manager learns what it missed before it sends commands.
            begun_s = now_s()
            await line.send(side.send(self._node.hello()))
            async with asyncio.timeout(WELCOME_LIMIT_S):
                side.receive(await line.receive())
            if settles:
                self._manager.keep_token(settles, is_settled=True)
            self._node.welcomed(side.generation, line.is_proved)
            self._node.heard(begun_s)
            self.is_connected, self.is_proved, self.last_problem = True, line.is_proved, ""
            _log.info("connected to the manager", manager=self._manager.url, generation=side.generation)
            if not line.is_proved:
                _log.warning("the manager has not proved itself", hint="update it, or write wss://")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._obey(line, side, group))
                group.create_task(self._report(line, side))
        except* RemoteProtocolError as faults:
            fault = first_of(faults)
            await line.close(fault.code or 1002, close_reason(fault))
            raise fault from None

    async def _obey(self, line: Line, side: AgentSide, group: asyncio.TaskGroup) -> None:
        while True:
            message = side.receive(await line.receive())
            if isinstance(message, m.Ack):
                self._outbox.acknowledge(message.seq)
                self._note_heard(message.seq)
                self._acked.set()
            elif isinstance(message, m.Probe):
                group.create_task(self._answer(line, side, message))  # a slow mount must not hold commands up
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
                self._node.take(message, self.is_proved)

    def _note_heard(self, seq: int) -> None:
        # Not the time of the answer, which may have been on its way for long: when the manager wrote it, it had this.
        sent_s = self._sent_s.pop(seq, None)
        self._sent_s = {other: at_s for other, at_s in self._sent_s.items() if other > seq}
        if sent_s is not None:
            self._node.heard(sent_s)

    async def _answer(self, line: Line, side: AgentSide, probe: m.Probe) -> None:
        try:
            frame = side.send(await self._node.probe(probe))
        except Exception as error:  # a folder that cannot be asked about must not cost the node its connection
            _log.error("a checkpoint folder could not be checked", folder=probe.path, cause=error)
            frame = side.send(m.Probed(probe_id=probe.probe_id, problem="this node could not look"))
        await line.send(frame)

    async def _report(self, line: Line, side: AgentSide) -> None:
        # The manager may have written them before the connection broke: their numbers show it, and it counts none
        # twice.
        for old in self._outbox.unacked:
            self._sent_s[old.seq] = now_s()
            await line.send(side.send(old))
        while True:
            report = self._outbox.compose(await self._node.read())
            # Too many reports are under way: the next one waits until the manager has acknowledged one of them.
            if report is None:
                self._acked.clear()
                await self._acked.wait()
                continue
            self._sent_s[report.seq] = now_s()
            await line.send(side.send(report))
            if not self._outbox.has_news:
                self._news.clear()
                await self._until_news()

    async def _until_news(self) -> None:
        """Returns a batch's time after the first news, or when the period is over."""
        news = asyncio.ensure_future(self._news.wait())
        period_s = min(self._period_s, HURRY_S) if self._node.hurries() else self._period_s
        period = asyncio.ensure_future(self._clock.sleep_until_s(self._clock.now_s() + period_s))
        try:
            await asyncio.wait((news, period), return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                await self._clock.sleep_until_s(self._clock.now_s() + BATCH_S)
        finally:
            for future in (news, period):
                future.cancel()
            # Not each by itself with its CancelledError suppressed: that could be our own.
            await asyncio.gather(news, period, return_exceptions=True)


def _problem(error: Exception, manager: ManagerAddress) -> str:
    first = first_of(error) if isinstance(error, ExceptionGroup) else error
    if isinstance(first, ssl.SSLError):
        return str(tls_problem(first, manager.url, manager.tls))
    if isinstance(first, InvalidStatus):
        status = first.response.status_code
        why = {401: "the manager does not know this node's token", 403: "the manager refuses this node's token"}
        return _refusal(first.response) or why.get(status, f"the manager answered HTTP {status}")
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


def _refusal(response: Response) -> str:
    """The manager's own reason in its answer to an opening; empty: it gave none, as those of before."""
    try:
        said = json.loads(response.body or b"{}")["detail"]
    except (ValueError, KeyError, TypeError):
        return ""
    # Nobody has proved anything yet, so this may be anybody's text.
    plain = " ".join(str(said).split())[:SAID_MAX]
    return f"the manager refuses: {plain}" if plain.isprintable() else ""
