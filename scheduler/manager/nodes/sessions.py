"""Sessions of agents: the WebSocket /v1/agents/session, one an agent, and the check for nodes that fell silent."""

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastapi import FastAPI, HTTPException
from starlette.websockets import WebSocket, WebSocketDisconnect

from farside.agent import messages as m
from farside.agent import protocol
from farside.errors import FarsideError, LocalProtocolError, PeerError, RemoteProtocolError
from farside.log import Rarely, get_log
from farside.scheduler.admission.idle_gpus import NO_IDLE_RULES, IdleRules
from farside.scheduler.manager.auth.caller import Caller, Callers, Proof
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.codec import encode_event
from farside.scheduler.manager.model.event import Event, NodeKeyed, NodeLost
from farside.scheduler.manager.model.presence import LEASE_GRACE_S, Fronts, RemotePresence
from farside.scheduler.manager.nodes import checkpoint_folder as checkpoint
from farside.scheduler.manager.nodes import services
from farside.scheduler.manager.nodes.admission import WaitingNodes, is_stranger, refusal_of_revoked
from farside.scheduler.manager.nodes.agent_connection import AgentConnection, let_in
from farside.scheduler.manager.nodes.agent_socket import SILENT_S
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.donors import DonorRing
from farside.scheduler.manager.nodes.entry_budget import EntryBudget, damped
from farside.scheduler.manager.nodes.silence import Silence, left_leases
from farside.scheduler.manager.store.presence import tell
from farside.scheduler.manager.view.overview import Sensed

# Close codes of RFC 6455 §7.4.1.
GOING_AWAY, POLICY_VIOLATION, INTERNAL_ERROR = 1001, 1008, 1011
# An accepted connection that says nothing is closed after so long.
HELLO_LIMIT_S = 10.0
LEAD_LIMIT_S = 30.0
WATCH_PERIOD_S = 1.0
# So often in a node's timeout, or in the grace of a lease, a manager says which nodes and fronts it hears: one may come
# late, or be lost.
BEATS = 4
REFUSAL_S = 1.0  # before a node hears that it has written too much
# Made anew for each of a thousand nodes that join at a time, the list of donors would take all of the processor. Each
# agent looks at it after its next report at the latest.
RING_PERIOD_S = 1.0

_log = get_log("manager.agents")


@dataclass(slots=True, eq=False, kw_only=True)
class _Session:
    """One connection of an agent.

    Attributes:
        changed: Set whenever there may be something to send.
        asker: Questions and orders to it that are not in the log.
        takes_questions: It was welcomed, and knows such questions.
        sensed: Its latest report, as far as no log keeps it; None: there is none yet.
        heard_s: When its last frame came.
        since_entry: The last entry of the log when it was let in.
        has_joined: The log says that it is up.
        problems: By service, why its last state could not be read.
        excess: What it says that it has, beyond what anybody vouched for, as the log was told; empty: nothing.
    """

    connection: AgentConnection
    side: protocol.ManagerSide
    line: AgentLine
    changed: asyncio.Event
    asker: checkpoint.Asker
    sensed: Sensed | None
    heard_s: float
    since_entry: int
    has_joined: bool = False
    takes_questions: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)
    excess: str = ""


class AgentSessions:
    """All connected agents.

    ``node_timeout_s``: a node that is silent for so long is lost. ``move_s``: borrowers of a node that is to sleep get
    so long to move what they have there. ``takes_unproved``: agents of the version before may come over ws://.
    ``secret``: the store's, from which keys of jobs follow. ``idle``: when jobs' GPUs count as idle.
    ``recall_s``: borrowers get so long to move what they have in memory that a job there needs. ``rest_after_s``: idle
    time after which nodes that stay on may rest; 0: never.
    """

    def __init__(
        self,
        log: LiveLog,
        callers: Callers,
        node_timeout_s: float,
        *,
        move_s: float = 900.0,
        takes_unproved: bool = True,
        secret: bytes = b"",
        idle: IdleRules = NO_IDLE_RULES,
        recall_s: float = 0.0,
        rest_after_s: float = 0.0,
    ) -> None:
        self._log = log
        self._callers = callers
        self._takes_unproved = takes_unproved
        self._node_timeout_s = node_timeout_s
        self._move_s, self._recall_s, self._rest_after_s = move_s, recall_s, rest_after_s
        self._secret, self._idle = secret, idle
        self._sessions: dict[str, _Session] = {}
        # The list of donors and when it was made; -inf: the first look makes it anew if the log has moved on.
        self._ring, self._ring_s = DonorRing(log.state), -math.inf
        self._name = secrets.token_hex(8)  # of this process, among the managers of one store
        self._remote_presence = RemotePresence()
        self._silence = Silence(node_timeout_s, self._remote_presence)
        self.fronts = Fronts(log.clock.now_s(), self._remote_presence)
        self.waiting = WaitingNodes()  # those that nobody knows
        self._budgets: dict[str, EntryBudget] = {}  # of nodes that were let in
        # Each has its own: strangers from many addresses must hide neither who was hung up on nor which node is slowed.
        self._refused, self._hung_up, self._slowed = Rarely(), Rarely(), Rarely()
        self.service_faults = 0  # states of services that could not be read

    def sensed(self) -> Mapping[str, Sensed]:
        """The latest report of each connected agent, as far as no log keeps it."""
        return {name: one.sensed for name, one in self._sessions.items() if one.sensed is not None}

    def beats(self) -> Mapping[str, str]:
        """The boot of each node that is up: of those that are connected here, and others that the log says so of.

        A node that was connected here and is not any more is silent, whatever the log says until it is called lost.
        """
        found = {name: one.line.hello.boot_id for name, one in self._sessions.items()}
        for node in self._log.state.nodes.values():
            is_stopping = node.power is not None and node.power.is_stopping
            if node.is_up and not is_stopping and not self._silence.was_here(node.name):
                found.setdefault(node.name, node.boot_id)
        return found

    @property
    def ring(self) -> DonorRing:
        """The donors that nodes may borrow from now."""
        now_s = self._log.clock.now_s()
        if self._ring.version != self._log.state.donors_version and now_s - self._ring_s >= RING_PERIOD_S:
            self._ring, self._ring_s = DonorRing(self._log.state), now_s
        return self._ring

    @property
    def connected(self) -> int:
        """Agents that are connected here."""
        return len(self._sessions)

    @property
    def unproved(self) -> int:
        """Connected agents that sent their token without asking for the manager's proof."""
        return sum(not one.connection.is_proved for one in self._sessions.values())

    def serve(self, app: FastAPI) -> None:
        """Adds the route."""

        @app.websocket(protocol.PATH)
        async def session(socket: WebSocket) -> None:
            connection = await let_in(socket, self._callers, self._log.now_s(), takes_unproved=self._takes_unproved)
            if isinstance(connection, str):
                _say_rarely(self._refused, "refused an agent", _address_of(socket), connection)
                return
            try:
                await self._converse(connection)
            except RemoteProtocolError as error:
                _say_rarely(self._hung_up, "hung up on an agent", _address_of(socket), error)
                await connection.close(error.code or POLICY_VIOLATION, protocol.close_reason(error))
            except FarsideError as error:  # the store is full, or gone: the agent keeps what it has to tell
                _log.error("hung up on an agent", address=_address_of(socket), reason=error)
                await connection.close(INTERNAL_ERROR, "the manager's store can't be written; come again")
            except (WebSocketDisconnect, RuntimeError, TimeoutError):
                pass  # it is gone, or never said HELLO; starlette says RuntimeError when we speak after that
            except asyncio.CancelledError:
                pass  # this process ends, and uvicorn would write a page about it

    async def watch_silence(self) -> None:
        """Writes into the log which nodes and fronts nobody heard of for too long, until it is cancelled."""
        beat, next_beat_s, last_beat_s, told = 0, -math.inf, -math.inf, frozenset[str]()
        period_s = min(self._node_timeout_s, LEASE_GRACE_S) / BEATS
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            now_s, here = self._log.clock.now_s(), frozenset(self._sessions)
            try:
                # Before a node is called lost: it may have moved to another manager of this store, which then has said
                # so. That is why a manager says at once whom it hears newly.
                if now_s >= next_beat_s or here - told or self._lost(now_s):
                    beat, next_beat_s = beat + 1, now_s + period_s
                    heard = [*here, *self.fronts.since(last_beat_s, now_s)]
                    said = await asyncio.to_thread(tell, self._log.store, self._name, beat, heard, now_s)
                    self._remote_presence.told(said, now_s)
                    if now_s - last_beat_s < LEASE_GRACE_S:  # after a pause of this machine all were silent
                        await self._log.write(left_leases(self._log.state.live_jobs(), self.fronts, now_s), "silence")
                    last_beat_s, told = now_s, here
                await self._log.write(self._lost(now_s), "silence")
            except FarsideError as error:
                _log.error("could not be written", what="lost nodes", reason=error)
            await self._hang_up_on_lost()

    async def _hang_up_on_lost(self) -> None:
        """Ends sessions of nodes that another manager has called lost: they join again, and the log says so."""
        for session in list(self._sessions.values()):
            node = self._log.state.nodes.get(session.line.node)
            if session.has_joined and node is not None and not node.is_up and node.lost_reason:
                _log.warning("hung up on an agent: another manager called its node lost", node=node.name)
                await session.connection.close(GOING_AWAY, "another manager called this node lost; come again")

    async def watch_tokens(self) -> None:
        """Hangs up on agents whose token does not count any more, within a second, until it is cancelled."""
        seen, told = self._tokens_stamp(None)
        admissions = self._log.state.admissions
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            stamp, told = self._tokens_stamp(told)
            # Only a change can have taken a token away: looking at each of two thousand agents each second costs. The
            # admissions are held here and compared themselves: once freed, their address may become a later one's.
            if stamp != seen or self._log.state.admissions is not admissions:
                seen, admissions = stamp, self._log.state.admissions
                for session in list(self._sessions.values()):
                    await self._hang_up_on_revoked(session)

    def _tokens_stamp(self, told: str | None) -> tuple[object, str | None]:
        try:
            return self._callers.tokens_stamp(), None
        except FarsideError as error:
            # The tokens of before count on, as for all requests; once for each reason.
            if str(error) != told:
                _log.error("the tokens' file is not usable", reason=error)
            return "unusable", str(error)

    async def _hang_up_on_revoked(self, session: _Session) -> None:
        refusal = self._refusal_of(session)
        if refusal:
            _log.warning("hung up on an agent: its token counts no more", node=session.line.node, reason=refusal)
            await session.connection.close(protocol.CloseCode.FORBIDDEN, refusal)

    def _refusal_of(self, session: _Session) -> str:
        """Why a session that was let in must end; empty: it may go on."""
        hello = session.line.hello
        admission = self._log.state.admissions.get(hello.node)
        if admission is not None and admission.revoked_entry > session.since_entry:
            # Also where the name was let in again since: by its certificate, say, the revoked one would stay.
            return f"{hello.node:.40} was revoked"
        try:
            return self._may_not_speak(hello, self._callers.of(session.connection.socket))
        except HTTPException as error:
            return str(error.detail)
        except FarsideError:
            return ""  # not readable just now: `watch_tokens` says it, and looks again when it has changed

    def _lost(self, now_s: float) -> list[NodeLost]:
        return self._silence.lost(self._log.state.nodes.values(), self._sessions, now_s)

    async def checkpoint_problem(self, user: str, path: str) -> str:
        """Why this user can't keep checkpoints in this folder; empty: no node that is connected speaks against it."""
        askers = {name: one.asker for name, one in self._sessions.items() if one.takes_questions}
        return await checkpoint.folder_problem(askers, user, path)

    async def power_off(self, node: str) -> None:
        """Has an agent shut its node down, which was closed by the order that is in force.

        Raises:
            PeerError: It is not connected here, or can't.
        """
        session = self._sessions.get(node)
        if session is None or not session.takes_questions:
            raise PeerError(f"{node}: its agent is not connected here")
        if m.CAN_POWER_OFF not in session.line.hello.can:
            hint = 'power_off = "systemctl poweroff" in its agent.toml'
            raise PeerError(f"{node}: its agent may not shut it down", hint=hint)
        state = self._log.state
        session.asker.tell(m.PowerOff(closed_by=state.nodes[node].closed_by, generation=state.generation))

    # ------------------------------------------------------------------ one session

    async def _converse(self, connection: AgentConnection) -> None:
        side = protocol.ManagerSide()
        async with asyncio.timeout(HELLO_LIMIT_S):
            hello = side.receive(await connection.receive())
        assert isinstance(hello, m.Hello)
        connection.hello_came()
        # Asked for now and not before: a proof over ws:// is complete with the code of this frame.
        self._admit(hello, self._caller_of(connection), connection)
        await self._refuse_debtor(hello.node)
        if connection.lasting_key:
            # In the log before anything else: two connections by one invitation cannot both come here.
            await self._log.write([NodeKeyed(node=hello.node, key=connection.lasting_key)], f"node {hello.node}")
            connection.settle()
        # Again, as what was awaited took time: what was revoked meanwhile has no session yet that would be ended. [M9]
        self._admit(hello, self._caller_of(connection), connection)
        line, changed = self._line(hello, _address_of(connection.socket)), asyncio.Event()
        # The new session takes the place of the older one before anything is awaited; otherwise two of one node could
        # both believe to be the only one.
        older = self._sessions.get(hello.node)
        session = self._sessions[hello.node] = _Session(
            connection=connection, side=side, line=line, changed=changed, asker=checkpoint.Asker(changed.set),
            sensed=None if older is None else older.sensed, heard_s=self._log.clock.now_s(),
            since_entry=self._log.state.seq,
        )  # fmt: skip
        try:
            if older is not None:
                await older.connection.close(GOING_AWAY, "another connection of this node")
            # In the log and in the state before WELCOME: the first commands rest on what the agent has just said.
            events = line.joined(self._log.state)
            await self._log.write(events, f"node {line.node}")
            session.has_joined = True
            await self._pay(line.node, events, 0)
            await self._wait_for_lead()
            await connection.send(side.send(m.Welcome(generation=self._log.state.generation)))
            _log.info("a node joined", node=line.node, gpus=len(hello.gpus), tasks=len(hello.tasks))
            _note_excess(session, self._log.state.nodes[line.node].excess)
            if not connection.is_proved:
                _log.warning(
                    "a node takes any manager's word", node=line.node, hint="update its Farside, or use wss://"
                )
            await self._both_ways(session)
        finally:
            # A session that was replaced must not remove its successor, nor say that the node fell silent.
            if self._sessions.get(hello.node) is session:
                del self._sessions[hello.node]
                # One that was silent counts from when it was last heard, and not from when that was noticed.
                silent_s = float(connection.socket.scope.get(SILENT_S, 0.0))
                self._silence.ended(hello.node, max(session.heard_s, self._log.clock.now_s() - silent_s))

    def _line(self, hello: m.Hello, address: str) -> AgentLine:
        return AgentLine(
            hello, address, move_s=self._move_s, secret=self._secret, idle=self._idle, now_s=self._log.clock.now_s(),
            recall_s=self._recall_s, rest_after_s=self._rest_after_s, served_s=self.fronts.served_s,
        )  # fmt: skip

    def _caller_of(self, connection: AgentConnection) -> Caller:
        try:
            return self._callers.of(connection.socket)
        except HTTPException as error:  # it was taken away just now
            raise RemoteProtocolError(str(error.detail), code=protocol.CloseCode.FORBIDDEN) from error

    def _admit(self, hello: m.Hello, caller: Caller, connection: AgentConnection) -> None:
        refusal = self._may_not_speak(hello, caller)
        is_named = caller.proof is Proof.KERNEL or (caller.proof is Proof.TOKEN and caller.role is Role.NODE)
        if not refusal and is_stranger(self._log.state, hello.node, is_named=is_named):
            self.waiting.note(hello, _address_of(connection.socket), self._log.now_s())
            refusal = f"{hello.node:.40} is not known here: `farside node accept {hello.node:.40}` lets it in"
        if refusal:
            raise RemoteProtocolError(refusal, code=protocol.CloseCode.FORBIDDEN)
        rival = self._rival_of(hello)
        if rival:
            raise RemoteProtocolError(rival, code=protocol.CloseCode.NAME_TAKEN)

    async def _refuse_debtor(self, node: str) -> None:
        """Refuses a node that owes too much: each connection writes before it pays."""
        excess_s = self._budget(node).excess_s(self._log.clock.now_s())
        if excess_s:
            # One that comes again at once would cost more than one that is let in.
            await asyncio.sleep(min(excess_s, REFUSAL_S))
            raise RemoteProtocolError(f"it wrote too much; come again in {excess_s:.0f} s", code=GOING_AWAY)

    def _may_not_speak(self, hello: m.Hello, caller: Caller) -> str:
        admission = self._log.state.admissions.get(hello.node)
        if admission is not None and admission.is_revoked:
            return refusal_of_revoked(hello.node)
        if caller.role is Role.NODE and not caller.name:
            # Whoever had it could be a node that nobody knows, and was handed other users' jobs.
            return f"a token for any node counts no more: `farside token {hello.node:.40}` makes this node's own"
        refusal, invite = f"may not speak for node {hello.node}", f"`farside node invite {hello.node:.40}`"
        if caller.role is Role.NODE and caller.name != hello.node:
            own = f'`node = "{caller.name}"`'
            return f"node {caller.name} {refusal}; set {own} in its agent.toml, or {invite}"
        if caller.role is Role.USER:
            return f"user {caller.name} {refusal}; {invite} makes a token that may"
        return ""

    def _rival_of(self, hello: m.Hello) -> str:
        """Refusal of an agent whose name another one has, and what to do; empty: there is none.

        An agent with another state folder knows nothing of the first one's tasks. Were it let in while that one may
        come back, these would be called lost, and start again on the same GPUs.
        """
        session, node = self._sessions.get(hello.node), self._log.state.nodes.get(hello.node)
        if session is not None and self._refusal_of(session):
            session = None  # its end is near: until then it must not keep out who was invited in its place
        if session is not None and session.line.hello.boot_id != hello.boot_id:
            return f"another machine is connected as {hello.node}; give one of them another name"
        known = [session.line.hello.agent] if session is not None else []
        if node is not None and node.is_up and node.boot_id == hello.boot_id:
            known.append(node.agent)  # until it is called lost it may come back, or talk to another manager
        if hello.agent and any(agent not in ("", hello.agent) for agent in known):
            return f"an agent with another state_dir is {hello.node:.40} here; end it, or give one of them another name"
        return ""

    async def _wait_for_lead(self) -> None:
        """Commands bear the generation of a scheduler process; the first may not have taken the lead yet."""
        changed = asyncio.Event()
        self._log.watch(changed)
        try:
            async with asyncio.timeout(LEAD_LIMIT_S):
                while not self._log.state.generation:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise RemoteProtocolError("no scheduler process leads yet; come again", code=GOING_AWAY) from None
        finally:
            self._log.unwatch(changed)

    async def _both_ways(self, session: _Session) -> None:
        node = session.line.node
        self._log.watch(session.changed, node)
        session.takes_questions = m.CAN_PROBE in session.line.hello.can
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(session))
                try:
                    await self._receive(session)
                finally:
                    sending.cancel()
        except ExceptionGroup as several:
            # The route above handles single errors; the group has the one of the receiver or of the sender.
            raise several.exceptions[0] from None
        finally:
            self._log.unwatch(session.changed, node)
            session.takes_questions = False
            session.asker.close()

    async def _receive(self, session: _Session) -> None:
        line = session.line
        while True:
            frame = await session.connection.receive()
            report = session.side.receive(frame)
            session.heard_s = self._log.clock.now_s()
            if isinstance(report, m.Probed):
                session.asker.answered(report)
                continue
            assert isinstance(report, m.Report)
            budget, now_s, state = self._budget(line.node), self._log.clock.now_s(), self._log.state
            events = damped(line.reported(state, report, now_s), state, budget, now_s)
            sensed = sensed_of(line.report or report, can_close=m.CAN_LENDING in line.hello.can)
            session.sensed = replace(
                sensed, aggregator=line.aggregator, executor=line.executor, memory=line.memory,
                lend_refusal=line.lend_refusal, swap_refusal=line.swap_refusal, swap_set_bytes=line.swap_set_bytes,
            )  # fmt: skip
            self._note_problems(session)
            await self._log.write(events, f"node {line.node}")
            _note_excess(session, self._log.state.nodes[line.node].excess)
            # The acknowledgement comes after the write: an agent drops what was acknowledged, and must not drop what is
            # not in the log.
            await session.connection.send(session.side.send(m.Ack(seq=report.seq)))
            if report.tasks or line.awaits_donors(self.ring):
                session.changed.set()  # what it said may be all that its next command waits for
            await self._pay(line.node, events, len(frame))

    def _budget(self, node: str) -> EntryBudget:
        return self._budgets.setdefault(node, EntryBudget(self._log.clock.now_s()))

    async def _pay(self, node: str, events: Sequence[Event], size_bytes: int) -> None:
        """Slows a node that wrote too much into the log; one that goes on without end waits until it owes less.

        So does one that reports without end what is not worth an entry. ``size_bytes``: of the frame.
        """
        budget, now_s = self._budget(node), self._log.clock.now_s()
        if not events:
            await asyncio.sleep(budget.idle_rest_s(size_bytes, now_s))
            return
        budget.spend(sum(len(encode_event(event)[1]) for event in events), now_s)
        rest_s = budget.rest_s(now_s)
        if rest_s:
            if self._slowed.may(node) is not None:
                seconds = round(budget.debt_s(now_s), 1)
                _log.warning("a node writes too much into the log and is slowed", node=node, seconds=seconds)
            await asyncio.sleep(rest_s)

    def _note_problems(self, session: _Session) -> None:
        """Counts services that could not be read, and says once why."""
        line = session.line
        for name, why in line.service_problems.items():
            self.service_faults += 1
            if session.problems.get(name) != why:
                _log.warning("a service's state is left out", node=line.node, service=name, why=why)
        session.problems = line.service_problems

    async def _send(self, session: _Session) -> None:
        line = session.line
        while True:
            # Cleared before the state is read: a change during the sends sets it again, and the loop looks once more.
            session.changed.clear()
            state = self._log.state
            to_services = (
                *line.donors(state, self.ring), *line.lending(state), *line.orders(state), *line.plans(state),
                *line.groups(state),
            )  # fmt: skip
            for command in (*session.asker.unsent(), *line.commands(state), *to_services):
                try:
                    frame = session.side.send(command)
                except LocalProtocolError as error:  # the API lets no such job in; one of an older version may be there
                    _log.error("a command can't be sent", node=line.node, reason=error)
                    continue
                await session.connection.send(frame)
            await session.changed.wait()


def _note_excess(session: _Session, excess: str) -> None:
    """Says once of a node that it claims more than anybody vouched for; a metric counts it for as long. [H3]"""
    if excess and excess != session.excess:
        node = session.line.node
        hint = f"`farside node accept {node}` if that is right; otherwise `farside node revoke {node}`"
        _log.warning("a node says that it has more than anybody vouched for", node=node, has=excess, hint=hint)
    session.excess = excess


def sensed_of(report: m.Report, *, can_close: bool = False) -> Sensed:
    """What of a report is for the moment only."""
    busy = [gpu.busy_pct for gpu in report.gpus if gpu.busy_pct is not None]
    powers_w = [gpu.power_w for gpu in report.gpus if gpu.power_w is not None]
    loans: Counter[str] = Counter()
    for loan in report.loans:
        loans[loan.borrower] += loan.bytes
    return Sensed(
        gpu_busy_pct=round(sum(busy) / len(busy)) if busy else None,
        gpu_power_w=round(sum(powers_w)) if powers_w else None,
        memory_stall_pct=report.psi.memory_full_pct,
        loans=dict(loans),
        lends=report.donor is not None and report.donor.lends,
        lendable_bytes=0 if report.donor is None else report.donor.free_bytes,
        swap_used_bytes=0 if report.swap is None else report.swap.used_bytes,
        can_close=can_close,
        closed_by=0 if report.drained is None else report.drained.number,
        holding=services.holding(report.holding),
        slabs=sum(max(1, loan.slabs) for loan in report.loans) if report.drained is None else report.drained.slabs,
    )


def _say_rarely(rarely: Rarely, message: str, address: str, reason: object) -> None:
    """Once a minute for each address: agents, and who has a token, may come again and again. [L6]"""
    left_out = rarely.may(address)
    if left_out is not None:
        more = {"more_like_it": left_out} if left_out else {}
        _log.warning(message, address=address, reason=reason, **more)


def _address_of(socket: WebSocket) -> str:
    """Where other nodes reach this one: where it came from."""
    host = socket.client.host if socket.client is not None else ""
    return "127.0.0.1" if not host or host.startswith("uid:") else host
