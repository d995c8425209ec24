"""Relay of shared aggregation: the socket by which a node's members declare their model and hear their plan.

It holds nothing that has to outlive it: tokens prove themselves, plans come again from the manager, and members that
find nobody here try on while they train. Every user of the machine may connect, so what a user's connections and
messages may take is bounded by user; members that are hung up on come again.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from farside.agent import messages as m
from farside.agent.aggregator.layout import Tensor, first_difference, make_layout, rule_problem, update_of
from farside.agent.aggregator.plan import JobPlan
from farside.agent.relay_protocol import (
    HEAD_BYTES,
    LINE_CHARS_MAX,
    MEMBER_BYTES_MAX,
    POLL_S,
    Ask,
    Declare,
    FromMember,
    FromRelay,
    Given,
    Measured,
    Refused,
    Ticket,
    Wait,
    encoded,
    from_member,
    length_of,
    proved_ticket,
    token_in,
)
from farside.errors import ConfigError, FarsideError, RemoteProtocolError
from farside.listen import clear_stale, open_listener, peer_uid
from farside.log import Rarely, get_log
from farside.proof import Unproved

WINDOW = 100
"""Iterations whose times are told: as many as a job is watched for after a change."""
MODEL_RUNS_MAX = 512
"""Runs of equal chunks in what the manager is told of a model; beyond that, neighbours are told as one."""
MEMBERS_HELD_MAX = 512
CONNECTIONS_MAX, USER_CONNECTIONS_MAX = 1024, 256
"""A member has two, one that asks and one that tells. One too many of a user takes the place of the user's oldest."""
USER_BYTES_MAX = 16 << 20
"""Bytes of a user's unfinished messages. A connection that is to bring more ends, and its member tries again."""
MESSAGE_LIMIT_S = 10.0
"""For a message to come whole, and for an answer to be taken."""
FORGET_S = 4 * POLL_S
"""Members ask again within `POLL_S`: a start without a plan that nobody asks for is over."""

_log = get_log("agent.relay")

JobStart = tuple[str, int]


@dataclass(slots=True)
class _Job:
    """One start of a job, as its members here and the manager say."""

    plan: JobPlan | None = None
    tensors: tuple[Tensor, ...] = ()
    digest: str = ""
    rule: str = ""
    asked_s: float = 0.0  # when a member asked last, by the loop's clock
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    first: dict[int, int] = field(default_factory=dict)  # by rank, the first iteration that was told
    times: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)


class Relay:
    """The relay of one node.

    Args:
        path: Its socket; every user of the machine may connect.
        key: By which tokens are made and proved.
        tell: Takes what the manager shall hear about a job.

    Attributes:
        waiting: Questions of members that wait for a plan.
    """

    def __init__(self, path: Path, key: bytes, tell: Callable[[m.Told], None]) -> None:
        self.path = path
        self._key = key
        self._tell = tell
        self._jobs: dict[JobStart, _Job] = {}
        self.waiting = 0
        self._conversations: set[asyncio.Task[None]] = set()
        self._open = Unproved(USER_CONNECTIONS_MAX, CONNECTIONS_MAX)
        self._coming: Counter[int] = Counter()  # bytes of messages that are not whole yet, by user
        self._rarely = Rarely()

    def take(self, plans: Iterable[JobPlan]) -> None:
        """The plans of all jobs with members here; those of others are over."""
        now = {(plan.job, plan.start): plan for plan in plans}
        for key, plan in now.items():
            job = self._jobs.setdefault(key, _Job())
            if job.digest not in ("", plan.digest):
                # Members on another node have declared another model, and they were first.
                job.tensors, job.digest, job.rule = (), "", ""
            if job.plan != plan:
                job.plan = plan
                self._wake(job)
        for key in [key for key, job in self._jobs.items() if job.plan is not None and key not in now]:
            job = self._jobs.pop(key)
            job.plan = None
            self._wake(job)

    def _wake(self, job: _Job) -> None:
        job.changed.set()
        job.changed = asyncio.Event()

    def readings(self) -> tuple[m.MemberReading, ...]:
        """How long iterations took lately, of the slowest member of each job."""
        found = []
        for (name, start), job in self._jobs.items():
            if job.times:
                ended = {rank: times[-1][0] for rank, times in job.times.items()}
                done = min(ended[rank] - job.first[rank] + 1 for rank in ended)
                slowest_s = max(
                    median(took_s for at, took_s in times if at > ended[rank] - WINDOW)
                    for rank, times in job.times.items()
                )
                found.append(m.MemberReading(job=name, start=start, iterations=done, iteration_s=slowest_s))
        return tuple(found)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers members during the body.

        Raises:
            ConfigError: The socket can't be made.
        """
        listener = open_listener(f"unix:{self.path}", setting="aggregation_socket")
        # Anybody may connect: the token and the kernel say who it is.
        os.chmod(self.path, 0o666)  # noqa: S103
        server = await asyncio.start_unix_server(self._greet, sock=listener)
        try:
            yield
        finally:
            server.close()
            with suppress(OSError):
                clear_stale(os.fspath(self.path))
            for task in self._conversations:
                task.cancel()
            await asyncio.gather(*self._conversations, return_exceptions=True)

    def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer_uid(writer.get_extra_info("socket"))
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer, uid))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

        def hang_up() -> None:
            writer.transport.abort()
            task.cancel()

        if not self._open.come(str(uid), task, hang_up) and self._rarely.may("crowd") is not None:
            _log.warning("too many connections; the oldest of the user that has most is hung up on", uid=uid)
        task.add_done_callback(lambda _: self._open.leave(str(uid), task))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int) -> None:
        try:
            await self._serve(reader, writer, uid)
        except FarsideError as error:
            writer.write(encoded(Refused(line=str(error)[:LINE_CHARS_MAX])))
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                async with asyncio.timeout(MESSAGE_LIMIT_S):
                    await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it is gone, or too slow
        finally:
            writer.transport.abort()  # who reads nothing keeps nothing open

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int) -> None:
        while True:
            ticket, message = await self._received(reader, uid)
            if isinstance(message, Measured):
                self._measure(ticket, message)
                continue
            writer.write(encoded(await self._answer(ticket, message)))
            async with asyncio.timeout(MESSAGE_LIMIT_S):
                await writer.drain()

    async def _received(self, reader: asyncio.StreamReader, uid: int) -> tuple[Ticket, FromMember]:
        """The next message, and who has proved to send it."""
        length = length_of(await reader.readexactly(HEAD_BYTES), MEMBER_BYTES_MAX)
        with self._room_for(length, uid):
            async with asyncio.timeout(MESSAGE_LIMIT_S):
                body = await reader.readexactly(length)
            ticket = proved_ticket(token_in(body), self._key, uid)
            return ticket, from_member(body)

    @contextmanager
    def _room_for(self, length: int, uid: int) -> Iterator[None]:
        if self._coming[uid] + length > USER_BYTES_MAX:
            raise ConnectionAbortedError("too much comes at once from this user")
        self._coming[uid] += length
        try:
            yield
        finally:
            self._coming[uid] -= length
            if not self._coming[uid]:
                del self._coming[uid]

    def _asked_for(self, key: JobStart) -> _Job:
        """What is known of a start that a member asks for, a new one if need be."""
        now_s = asyncio.get_running_loop().time()
        if key not in self._jobs:
            # It ended before it had a plan, and nobody says so.
            over = [one for one, job in self._jobs.items() if job.plan is None and now_s > job.asked_s + FORGET_S]
            for one in over:
                del self._jobs[one]
            if len(self._jobs) >= MEMBERS_HELD_MAX:
                raise RemoteProtocolError("too many jobs declare models on this node")
        job = self._jobs.setdefault(key, _Job())
        job.asked_s = now_s
        return job

    async def _answer(self, ticket: Ticket, ask: Ask) -> FromRelay:
        key = ticket.job, ticket.start
        job = self._asked_for(key)
        if ask.tensors:
            self._declare(ticket, job, ask)
        elif ask.digest != job.digest and (job.digest or job.plan is None):
            return Declare()  # which tensor differs only tensors say
        problem = self._differs(job, ask, ticket)
        if problem:
            return Refused(line=problem[:LINE_CHARS_MAX])
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                while job.plan is None or job.plan.epoch <= ask.after_epoch:
                    changed = job.changed
                    if self._jobs.get(key) is not job:
                        return Refused(line=f"job {ticket.job}: start {ticket.start} of it is over")
                    self.waiting += 1
                    try:
                        await changed.wait()
                    finally:
                        self.waiting -= 1
                problem = self._differs(job, ask, ticket)
                return Refused(line=problem[:LINE_CHARS_MAX]) if problem else Given(plan=job.plan)
        return Wait()

    def _declare(self, ticket: Ticket, job: _Job, ask: Ask) -> None:
        if job.digest or (job.plan is not None and job.plan.digest != ask.digest):
            return  # `_differs` looks at what it says of itself; to cut a model takes long
        try:
            layout = make_layout(ask.tensors)
        except ConfigError as error:
            raise RemoteProtocolError(str(error)) from error
        problem = rule_problem(ask.tensors, ask.rule)
        if problem or layout.digest != ask.digest:
            raise RemoteProtocolError(problem or "the digest is not that of these tensors; update Farside")
        job.tensors, job.digest, job.rule = layout.tensors, layout.digest, ask.rule
        if job.plan is None:
            runs = [(task.count, task.chunk_bytes) for task in layout.tasks]
            declared = m.DeclaredModel(
                digest=layout.digest, rule=ask.rule, members=ticket.members, chunks=tuple(_few(runs))
            )
            raw = msgspec.Raw(msgspec.json.encode(declared))
            self._tell(m.Told(service=m.AGGREGATOR, job=ticket.job, start=ticket.start, raw=raw))
            _log.info("a model was declared", job=ticket.job, start=ticket.start, tensors=len(layout.tensors))

    def _differs(self, job: _Job, ask: Ask, ticket: Ticket) -> str:
        """Why this member can't have the job's plan; empty: it can.

        One whose model is another one than that of members on other nodes gets it: the Aggregators know the tensors,
        and refuse it by the one that differs.
        """
        if job.digest and ask.digest != job.digest and ask.tensors:
            them = "another member on this node"
            here, there = update_of(ask.tensors, ask.rule), update_of(job.tensors, job.rule)
            if here and there and here != there:
                return f"update is '{here}' at rank {ticket.rank} and '{there}' at {them}; let all ranks say the same"
            what = first_difference(ask.tensors, job.tensors, them=them)
            return f"rank {ticket.rank} has another model than {them}: {what or 'it is cut otherwise'}"
        if job.rule and ask.rule != job.rule:
            other = f"another member on this node '{job.rule}'"
            return f"rank {ticket.rank} wants '{ask.rule}', and {other}; all want the same"
        if job.plan is not None and job.plan.members != ticket.members:
            return f"the plan is of {job.plan.members} members, and there are {ticket.members}"
        return ""

    def _measure(self, ticket: Ticket, told: Measured) -> None:
        job = self._jobs.get((ticket.job, ticket.start))
        if job is not None:
            job.first.setdefault(ticket.rank, told.iteration)
            times = job.times.setdefault(ticket.rank, deque(maxlen=WINDOW))
            times.append((max(told.iteration, job.first[ticket.rank]), told.iteration_s))


def _few(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of (chunks, bytes of each), so few that a report has room for them; neighbours share their mean size."""
    while len(runs) > MODEL_RUNS_MAX:
        pairs = zip(runs[::2], [*runs[1::2], *([(0, 0)] * (len(runs) % 2))], strict=True)
        runs = [(one + two, (one * a + two * b) // (one + two)) for (one, a), (two, b) in pairs]
    return runs
