"""Node service `aggregator`: what this node's Aggregator offers and does, its plans, and the members on this node.

The Aggregator is a program of its own (`farside aggregator`), asked by its admin socket once a second. It is told all
its plans again whenever they change, or another process answers: plans are whole states.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from farside import admin
from farside.agent import messages as m
from farside.agent.relay import Relay
from farside.agent.relay_protocol import Ticket, token_of
from farside.agent.run.account import Refused
from farside.agent.service.service import NodeService
from farside.clock import Clock
from farside.errors import ConfigError, FarsideError
from farside.log import get_log

ASK_LIMIT_S = 2.0
PERIOD_S = 1.0
GONE_S = 2.0
"""An Aggregator that does not answer for so long is gone: its parent starts a new one in less."""
RELAY_VARIABLE, TOKEN_VARIABLE = "FARSIDE_AGGREGATION", "FARSIDE_AGGREGATION_TOKEN"
KEY_NAME = "relay.key"
KEY_BYTES = 32

_log = get_log("agent.aggregator")
_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.AggregatorOrder)
_MOVES = ("copied", "pushed", "broken_here", "broken_there")
_COUNTS = (
    "lanes", "updates", "busy_s", "size_squares", "size_times", "pushed_bytes", "result_bytes", "memory_bytes",
)  # fmt: skip


class AggregatorService(NodeService):
    """The service ``aggregator``.

    Args:
        socket: Admin socket of the node's Aggregator; None: there is none.
        relay: For the members on this node; None: jobs that aggregate do not run here.
        key: By which members' tokens are made.
        uid_of: The uid that a user's tasks run as; raises `Refused`.
        hasten: Called when the manager should hear of this at once.
    """

    name = m.AGGREGATOR
    version = 2

    def __init__(
        self,
        socket: Path | None,
        relay: Relay | None,
        *,
        key: bytes,
        uid_of: Callable[[str], int],
        hasten: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._socket, self._relay, self._key = socket, relay, key
        self._uid_of, self._hasten, self._clock = uid_of, hasten, clock
        self._facts = m.AggregatorFacts()
        self._order: m.AggregatorOrder | None = None  # None: no manager has said anything
        self._carried: tuple[object, str] | None = None  # the order that the Aggregator has, and which process it was
        self._heard_s = -GONE_S
        self._problem = ""
        self._wake = asyncio.Event()

    def facts(self) -> bytes:
        """Its `AggregatorFacts`, shortened to what is carried: jobs with moves first."""
        facts = self._facts
        held = sorted(facts.held, key=lambda job: not any(getattr(job, name) for name in _MOVES))
        readings = () if self._relay is None else self._relay.readings()
        while True:
            now = replace(facts, held=tuple(held), readings=readings, has_relay=self._relay is not None)
            said = _ENCODER.encode(now)
            if len(said) <= m.SERVICE_BYTES_MAX or not (held or readings):
                return said
            held, readings = held[: len(held) * 3 // 4], readings[: len(readings) * 3 // 4]

    def obey(self, order: msgspec.Raw) -> None:
        """All plans, an `AggregatorOrder`."""
        self._order = _ORDER.decode(order)
        if self._relay is not None:
            self._relay.take(one.plan for one in self._order.plans if one.has_members)
        self._wake.set()

    def metrics(self) -> Mapping[str, float]:
        """Cores offered, jobs, and bytes held."""
        facts = self._facts
        return {"cores": facts.offer.cores, "jobs": len(facts.held), "used_bytes": facts.used_bytes}

    def drained(self) -> bool:
        """Whether no chunk of a job is here, or on its way here."""
        order = self._order
        planned = order is not None and (order.grants or any(one.number is not None for one in order.plans))
        return not planned and not self._facts.held

    def variables(self, start: m.Start) -> Mapping[str, str]:
        """The relay, and the token of this task."""
        membership = start.spec.membership
        if membership is None or self._relay is None:
            return {}
        try:
            uid = self._uid_of(start.spec.user)
        except Refused:
            return {}  # it will not be started
        job = m.job_of_task(start.task_id)
        ticket = Ticket(job=job, start=start.start, rank=membership.rank, members=membership.members, uid=uid)
        return {RELAY_VARIABLE: os.fspath(self._relay.path), TOKEN_VARIABLE: token_of(ticket, self._key)}

    async def run(self) -> None:
        """Keeps the Aggregator's plans, and answers members, until it is cancelled."""
        async with AsyncExitStack() as stack:
            if self._relay is not None:
                try:
                    await stack.enter_async_context(self._relay.serving())
                except ConfigError as error:  # another agent of this machine has it, or the folder is not there
                    _log.warning("jobs that aggregate do not run here", why=str(error))
                    self._relay = None
            await self._keep_asking()

    async def look(self) -> None:
        """Reads the Aggregator once; before the first HELLO, or chunks here would be given to others."""
        await self._look()

    async def _keep_asking(self) -> None:
        while True:
            self._wake.clear()
            before = _moves_of(self._facts), self._facts.offer
            await self._look()
            if (_moves_of(self._facts), self._facts.offer) != before:
                self._hasten()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()

    async def _look(self) -> None:
        """Reads the Aggregator's status, and sends it its plans where it does not have them."""
        if self._socket is None or not self._socket.exists():
            self._lose("")
            return
        try:
            told = await admin.ask(self._socket, "status", timeout_s=ASK_LIMIT_S)
            server, order = str(told["incarnation"]), self._order
            if order is not None and self._carried != (order, server):
                await admin.ask(self._socket, "plan", timeout_s=ASK_LIMIT_S, **_plans_of(order))
                self._carried = (order, server)
                told = await admin.ask(self._socket, "status", timeout_s=ASK_LIMIT_S)
            self._facts = facts_of(told)
        except FarsideError as error:
            self._lose(str(error))
            return
        except (KeyError, TypeError, ValueError) as error:
            self._lose(f"this is no Aggregator's status: {error!r:.200}")
            return
        self._heard_s, self._problem = self._clock.now_s(), ""

    def _lose(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem:
                _log.warning("the Aggregator does not answer", why=problem)
        if self._clock.now_s() - self._heard_s >= GONE_S:
            self._facts, self._carried = m.AggregatorFacts(), None


def relay_key(state_dir: Path) -> bytes:
    """The key of members' tokens, kept in the agent's state folder, made when there is none.

    Raises:
        OSError: It can't be read or made.
    """
    path = state_dir / KEY_NAME
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) == KEY_BYTES:
            return found
        path.unlink()  # the disk was full when it was made
        return relay_key(state_dir)
    with os.fdopen(fd, "wb") as file:
        key = secrets.token_bytes(KEY_BYTES)
        file.write(key)
    return key


def facts_of(told: Mapping[str, Any]) -> m.AggregatorFacts:
    """What an Aggregator's status says.

    Raises:
        KeyError, TypeError, ValueError: It is no such status.
    """
    offer = {name: told[name] for name in m.AggregatorOffer.__struct_fields__ if name in told}
    jobs = [
        {name: one[name] for name in m.AggregatedJob.__struct_fields__ if name in one} for one in told.get("jobs", ())
    ]
    for job in jobs:
        for name in _MOVES:
            job[name] = list(job.get(name, ()))[: m.EPOCH_RUNS_MAX]
        for name in _COUNTS:
            job[name] = job.get(name) or 0
    facts = {"offer": offer, "used_bytes": int(told.get("used_bytes", 0)), "held": jobs[: m.TASKS_MAX]}
    return msgspec.convert(facts, m.AggregatorFacts)


def _plans_of(order: m.AggregatorOrder) -> dict[str, Any]:
    """The Aggregator's own plans, as its admin socket takes them."""
    own = [{"number": one.number, "plan": one.plan} for one in order.plans if one.number is not None]
    grants = {"grants": msgspec.to_builtins(order.grants)} if order.grants else {}
    return {"plans": msgspec.to_builtins(own), **grants}


def _moves_of(facts: m.AggregatorFacts) -> object:
    return [(job.job, job.start, *(getattr(job, name) for name in _MOVES)) for job in facts.held]
