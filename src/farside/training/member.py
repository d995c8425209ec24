"""A member's session: its region and lanes, which it makes again for as long as the job goes on.

What a lane loses nobody misses (`kmod_shim/engine/kv.c`), so all that is left to do is to make it again: at once, then
at growing distances, and to the address that the newest plan names. Threads: one waits for lanes that end, one for
plans where they change, and one for as long as an Aggregator can't be reached. None holds the interpreter's lock while
it waits.
"""

import contextlib
import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from farside.agent.aggregator.door import NONCE_BYTES, Answer, Attach, Caller, Feature, Invite, Refused, Welcome
from farside.agent.aggregator.engine_job import engine_job
from farside.agent.aggregator.layout import Layout, Tensor, make_layout, rule_problem
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, Run, plan_problem
from farside.agent.lost_peer import notice_lost_peer
from farside.endpoint import parse_address
from farside.errors import ConfigError, EngineError, FarsideError, PeerError, RemoteProtocolError
from farside.kernel_file import boot_id
from farside.kmod_shim.engine.aggregation import Member, RegionPair
from farside.log import get_log
from farside.training.queue_pair import DIAL_LIMIT_S, RdmaChoice, answer_of, make_pair

_log = get_log("training")

FIRST_LIMIT_S = 30.0
"""For the first lanes: ranks and Aggregators are started together, in any order."""
RETRY_FIRST_S, RETRY_MAX_S = 0.01, 0.5
TELL_PERIOD_S = 10.0
REFRESH_S = 1.0
"""An Aggregator that is away for so long may have been replaced: the plan is asked for."""
WAIT_SLICE_S = 1.0
QUIET_S = 60.0
"""A result that has not come for so long is told of, and again after as long."""
_WHERE = (
    "name an address of its setting `listen`, such as unix:/run/farside/aggregator-members.sock, not its admin_socket"
)
_START = "start it there (farside aggregator), or name the address that it listens on"


Start: TypeAlias = tuple[int, Sequence[Sequence[Any]]]
"""The version that a job begins with, and what its optimizer has by then."""


class PlanSource(Protocol):
    """Where a member's plan comes from.

    Attributes:
        job, start: Name and number of this start.
        rank, members: Of this process, and how many there are.
        is_static: The plan never changes.
    """

    job: str
    start: int
    rank: int
    members: int
    is_static: bool

    def plan(self, layout: Layout, *, rule: str, after_epoch: int) -> JobPlan:
        """Blocks until there is a plan newer than this epoch; 0: the present one. The first call declares the layout.

        Raises:
            FarsideError: there will be none; one line. Also after `close`.
        """
        ...

    def measured(self, iteration: int, iteration_s: float) -> None:
        """Tells how long this member's last iterations took, an iteration."""
        ...

    def close(self) -> None:
        """Ends a call that blocks."""
        ...


def source_from_environment() -> PlanSource:
    """The plan of the job that this process is in, as its environment says.

    Raises:
        ConfigError: it is in none; one line.
    """
    # Late: who gives a source of their own needs no other.
    from farside.training.relay_plan import SOCKET, RelayPlan
    from farside.training.static_plan import static_plan_from

    return RelayPlan() if os.environ.get(SOCKET) else static_plan_from()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """A connection on which frames come next.

    Attributes:
        is_shm: The Aggregator has the region.
        keys: Of the codes of frames' heads; empty: they have none.
        pair: By which gradients and results go; None: they are in the region, or go with the frames.
    """

    sock: socket.socket
    welcome: Welcome
    is_shm: bool
    keys: bytes
    pair: RegionPair | None

    def close(self) -> None:
        """Ends what the engine has not taken."""
        self.sock.close()
        if self.pair is not None:
            self.pair.close()


class MemberSession:
    """One member of one job. `connect` before anything is pushed."""

    def __init__(
        self, source: PlanSource, *, rule: str, tensors: Sequence[Tensor], hold: bool = False, rdma: str | None = None
    ) -> None:
        """Makes the layout and the region; speaks to nobody yet.

        Args:
            source: Where plans come from; closed by `close`.
            rule: What becomes of the gradients: "sum", "mean", "sgd", "adam", "adamw".
            tensors: All trainable ones, in the same order on every rank.
            hold: Results wait until they are asked for.
            rdma: "auto" or "off"; None: as the environment says.

        Raises:
            ConfigError: the model can't be aggregated by that rule; or ``rdma`` is neither.
        """
        self._rdma = RdmaChoice(rdma)
        self.layout = make_layout(tensors)
        problem = rule_problem(self.layout.tensors, rule)
        if problem:
            raise ConfigError(problem)
        self.source = source
        self.rule = rule
        self.job = engine_job(self.layout, rule=rule, members=source.members, hold=hold)
        self.member = Member(self.job, source.rank)
        self._hold = hold
        self._first_version: int | None = None
        self._life = secrets.randbits(62)
        self._lock = threading.Lock()
        self._plan: JobPlan | None = None
        self._machine = boot_id()
        self._reopening: set[int] = set()
        self._closed = threading.Event()
        self._failure: FarsideError | None = None

    @property
    def has_optimizer(self) -> bool:
        """The Aggregators step the optimizer; otherwise they only sum."""
        return self.rule not in ("sum", "mean")

    @property
    def first_version(self) -> int:
        """The version of all chunks that the job goes on from; waits for it where the job has begun before."""
        if self._first_version is None:
            self._first_version = self.iteration
        return self._first_version

    @property
    def problem(self) -> FarsideError | None:
        """Why the job can't go on; None: it can."""
        return self._failure

    @property
    def plan(self) -> JobPlan:
        """The newest plan that is known."""
        assert self._plan is not None, "connect first"
        return self._plan

    @property
    def iteration(self) -> int:
        """The lowest version of all chunks; waits until each is held.

        Raises:
            FarsideError: the job can't go on.
        """
        self.wait(0, len(self.layout.chunks), 0)
        version = self.member.version(0, len(self.layout.chunks))
        assert version is not None
        return version

    def connect(self, parameters: Callable[[], Start | None] | None = None, *, limit_s: float = FIRST_LIMIT_S) -> None:
        """Opens a lane to each Aggregator of the job, and keeps them from then on.

        Args:
            parameters: Called at rank 0 of a job that no Aggregator knows yet: puts the parameters where results are
                (`member.result`), from where all members get them. Without an Aggregator's optimizer they count as the
                result of iteration 1; None, at all members: they have the same parameters already. With an optimizer it
                may return the version that the job begins with, and the state of each chunk (`Member.start`).
            limit_s: For an Aggregator that does not answer.

        Raises:
            FarsideError: the job can't be served, in one line.
        """
        deadline_s = time.monotonic() + limit_s
        plan = self._plan = self._first_plan(deadline_s)
        if plan.digest != self.layout.digest:
            self._first_lane(plan.aggregators[0], deadline_s).close()  # refused, by the tensor that differs
            raise PeerError(f"job {plan.job}: the model is another one than the job declared; start all ranks anew")
        self._checked(plan)
        with contextlib.ExitStack() as stack:
            lanes = list[_Lane]()
            for address in self._plan.aggregators:
                lanes.append(self._first_lane(address, deadline_s))
                stack.callback(lanes[-1].close)
            if all(lane.welcome.version is None for lane in lanes):
                self._begin(parameters)
            self._own(self._plan.runs)
            for address, lane in zip(self._plan.aggregators, lanes, strict=True):
                self._hand_over(address.number, lane)
        self._start(self._keep_lanes, "lanes")
        if not self.source.is_static:
            self._start(self._follow_plans, "plans")

    def push(self, first: int, count: int, iteration: int, *, absent: bool = False) -> None:
        """The gradients of these chunks are in place; ``absent``: this member has none (`Member.push`).

        Raises:
            FarsideError: the job can't go on, or this push breaks its order.
        """
        with self._told_in_words():
            self.member.push(first, count, iteration, absent=absent)

    def wait(self, first: int, count: int, version: int, timeout_s: float | None = None) -> None:
        """Blocks until these chunks have a version.

        Raises:
            TimeoutError: they have not, by then.
            FarsideError: the job can't go on; one line.
        """
        began_s = told_s = time.monotonic()
        deadline_s = None if timeout_s is None else began_s + timeout_s
        while True:
            left_s = WAIT_SLICE_S if deadline_s is None else min(WAIT_SLICE_S, max(0.0, deadline_s - time.monotonic()))
            with self._told_in_words():
                try:
                    self.member.wait(first, count, version, left_s)
                    return
                except EngineError as error:
                    if error.errno != errno.ETIMEDOUT:
                        raise
            if self._failure is not None:
                raise self._failure
            now_s = time.monotonic()
            if now_s - told_s >= QUIET_S and not self._reopening:
                told_s = now_s
                _log.warning(
                    f"job {self.source.job}: no result of iteration {version} for {now_s - began_s:.0f} s; "
                    "another rank computes longer, has ended, or was never started"
                )
            if deadline_s is not None and now_s >= deadline_s:
                raise TimeoutError(f"chunks {first} to {first + count - 1} did not reach version {version} in time")

    def fetch(self, version: int) -> list[tuple[Any, ...]]:
        """Parameters and optimizer state of all chunks, which are held at this version (`Member.fetch`).

        Raises:
            FarsideError: they are not, or the job can't go on.
        """
        with self._told_in_words():
            return self.member.fetch(0, len(self.layout.chunks), version)

    def close(self) -> None:
        """Ends all lanes and threads, and frees the region: nothing of it may be used any more."""
        self._closed.set()
        self.source.close()
        self.member.close()

    # --- plans

    def _checked(self, plan: JobPlan) -> JobPlan:
        problem = plan_problem(plan, len(self.layout.chunks))
        if problem:
            raise PeerError(f"job {plan.job}: {problem}", hint="this is a fault of the manager's")
        return plan

    def _first_plan(self, deadline_s: float) -> JobPlan:
        """The plan; until the deadline one in which no Aggregator is away."""
        for pause_s in _pauses():
            plan = self.source.plan(self.layout, rule=self.rule, after_epoch=0)
            if not any(one.is_away for one in plan.aggregators) or time.monotonic() + pause_s > deadline_s:
                return plan
            time.sleep(pause_s)
        raise AssertionError

    def _own(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.member.own(run.first, run.count, run.owner, run.epoch)

    def _begin(self, parameters: Callable[[], Start | None] | None) -> None:
        is_first = self.source.rank == 0
        given = parameters() if is_first and parameters is not None else None
        if self.has_optimizer:
            if is_first:  # the others learn from it which version the job begins with
                self._first_version, state = given or (0, None)
                self.member.start(self._first_version, state)
            else:  # it has nothing, and begins with the job: otherwise it would count as one that came anew
                self.member.start(0)
        elif parameters is None:
            self._first_version = 0
            self.member.start(0)
        else:
            # Rank 0 is one iteration ahead, and its parameters are that one's result: so they are given to the others.
            self._first_version = 1
            self.member.start(1 if is_first else 0)

    def _follow_plans(self) -> None:
        while not self._closed.is_set():
            try:
                self._take(self.source.plan(self.layout, rule=self.rule, after_epoch=self.plan.epoch))
            except FarsideError as error:
                self._fail(error)
                return

    def _take(self, plan: JobPlan) -> None:
        """Follows a plan, unless a newer one has come."""
        self._checked(plan)
        with self._lock:
            before = self.plan
            if plan.epoch < before.epoch:
                return
            self._plan = plan
            self._own([run for run in plan.runs if run not in before.runs])
        known = {one.number for one in before.aggregators}
        for address in plan.aggregators:
            if address.number not in known:
                self._reopen_aside(address.number)

    # --- lanes

    def _keep_lanes(self) -> None:
        while not self._closed.is_set():
            try:
                number = self.member.wait_lane()
            except EngineError as error:
                if error.errno != errno.ESHUTDOWN:
                    self._fail(_words(error))
                return
            self._rdma.lane_ended(number)
            self._reopen_aside(number)

    def _reopen_aside(self, number: int) -> None:
        # A thread each: one that can't be reached must not hold up the others.
        with self._lock:
            if number in self._reopening:
                return
            self._reopening.add(number)
        self._start(lambda: self._reopen(number), f"lane {number}")

    def _reopen(self, number: int) -> None:
        away_since_s = told_s = time.monotonic()
        try:
            for pause_s in _pauses():
                address = self.plan.address(number)
                if address is None or self._closed.is_set():
                    return
                try:
                    lane = self._dial(address)
                    with contextlib.closing(lane):
                        self._reopening.discard(number)  # before: the new lane may end at once
                        self._hand_over(number, lane)
                    return
                except _NoLaneYet as error:
                    now_s = time.monotonic()
                    if now_s - told_s >= TELL_PERIOD_S:
                        told_s = now_s
                        # All in the message: where a script has no handler for Farside's log, fields are not shown.
                        _log.warning(f"Aggregator {_name(address)} is away ({error}); the job waits for it")
                    # An Aggregator that does not know the job may have no part in it any more.
                    if not self.source.is_static and (error.is_refused or now_s - away_since_s >= REFRESH_S):
                        self._take(self.source.plan(self.layout, rule=self.rule, after_epoch=0))
                self._closed.wait(pause_s)
        except FarsideError as error:
            self._fail(error)
        finally:
            self._reopening.discard(number)

    def _first_lane(self, address: AggregatorAddress, deadline_s: float) -> _Lane:
        for pause_s in _pauses():
            try:
                return self._dial(address)
            except _NoLaneYet as error:
                if error.is_told or time.monotonic() + pause_s > deadline_s:
                    is_silent = not error.is_told and not error.is_refused
                    hint = _WHERE if error.is_strange else _START if is_silent and self.source.is_static else ""
                    raise PeerError(f"Aggregator {_name(address)}: {error}", hint=hint) from None
            time.sleep(pause_s)
        raise AssertionError

    def _dial(self, address: AggregatorAddress) -> _Lane:
        """A lane that the engine has yet to get.

        Raises:
            _NoLaneYet: another try may do.
            PeerError: none will.
        """
        sock, is_shm = self._connected(address)
        try:
            return self._converse(sock, address, is_shm=is_shm)
        except BaseException:
            sock.close()
            raise

    def _connected(self, address: AggregatorAddress) -> tuple[socket.socket, bool]:
        if address.is_away:
            raise _NoLaneYet("its node offers none now")
        try:
            if address.unix and address.machine in ("", self._machine):
                try:
                    return _unix(address.unix), True
                except OSError:
                    if not address.tcp:
                        raise
            if not address.tcp:
                raise PeerError(f"Aggregator {_name(address)} is on another machine, and has no address by TCP")
            return _tcp(address.tcp), False
        except OSError as error:
            raise _NoLaneYet(error.strerror or str(error) or "no answer in time") from error

    def _converse(self, sock: socket.socket, address: AggregatorAddress, *, is_shm: bool) -> _Lane:
        plan = self.plan
        request = Attach(
            number=address.number, rank=self.source.rank, members=self.source.members, rule=self.rule,
            tensors=self.layout.tensors, life=self._life, has_region=is_shm, hold=self._hold,
            runs=plan.runs if self.source.is_static else (),
        )  # fmt: skip
        nonce = secrets.token_bytes(NONCE_BYTES)
        features = self._rdma.features(address.number, is_shm=is_shm)
        if self.layout.has_apart:
            features |= Feature.APART
        caller = Caller(plan.key, job=plan.job, start=plan.start, nonce=nonce, request=request, features=features)
        with contextlib.ExitStack() as undo:
            pair = None
            try:
                answer = answer_of(sock, caller, region=self.member.region if is_shm else None)
                if isinstance(answer, Invite):
                    pair = make_pair(self.member, plan, answer, lambda: _tcp(address.tcp))
                    undo.callback(pair.close if pair else lambda: None)
                    answer = answer_of(sock, caller)
            except OSError as error:
                raise _NoLaneYet(error.strerror or "no answer in time", is_strange=True) from error
            except RemoteProtocolError as error:
                if caller.is_proved:
                    raise _NoLaneYet(str(error), is_told=True) from error
                raise _NoLaneYet("what answers there is no Aggregator", is_told=True, is_strange=True) from error
            except FarsideError as error:  # an impostor, or one with another key: another one may come
                raise _NoLaneYet(str(error), is_told=True) from error
            lane = self._lane(sock, address, caller, answer, is_shm=is_shm, pair=pair)
            undo.pop_all()
            return lane

    def _lane(
        self, sock: socket.socket, address: AggregatorAddress, caller: Caller, answer: Answer, *, is_shm: bool,
        pair: RegionPair | None,
    ) -> _Lane:  # fmt: skip
        if isinstance(answer, Refused):
            if answer.is_final and caller.is_proved:
                raise PeerError(f"Aggregator {_name(address)}: {answer.line}")
            raise _NoLaneYet(answer.line, is_told=answer.is_final, is_refused=True)
        if not isinstance(answer, Welcome) or (answer.has_rdma and pair is None):
            raise _NoLaneYet("it speaks of a queue pair that is not there")
        if answer.has_rdma:
            self._rdma.lane_begins(address.number)
        elif caller.was_invited:
            self._rdma.fell_back(address.number, "the Aggregator could not read by it")
        if pair is not None and not answer.has_rdma:
            pair.close()
            pair = None
        return _Lane(sock=sock, welcome=answer, is_shm=is_shm, keys=caller.head_keys, pair=pair)

    def _hand_over(self, number: int, lane: _Lane) -> None:
        lane.sock.setblocking(False)
        self.member.attach(number, lane.sock.fileno(), shm=lane.is_shm, keys=lane.keys, pair=lane.pair)
        lane.sock.detach()

    # --- ends

    def _start(self, work: Callable[[], None], what: str) -> None:
        threading.Thread(target=work, name=f"farside {what}", daemon=True).start()

    def _fail(self, error: FarsideError) -> None:
        if not self._closed.is_set() and self._failure is None:
            self._failure = error
            # The next call raises it. Without a logger of the script's a second line here would have no reason.
            _log.info("the job can't go on", reason=error)

    @contextlib.contextmanager
    def _told_in_words(self) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except EngineError as error:
            raise self._failure or _words(error) from error


class _NoLaneYet(Exception):
    """No lane at this try.

    ``is_told``: another first try would not help; ``is_refused``: an Aggregator said it; ``is_strange``: who took the
    connection did not speak as an Aggregator does.
    """

    def __init__(self, line: str, *, is_told: bool = False, is_refused: bool = False, is_strange: bool = False) -> None:
        super().__init__(line)
        self.is_told = is_told
        self.is_refused = is_refused
        self.is_strange = is_strange


def _words(error: EngineError) -> FarsideError:
    if error.errno == errno.ESTALE:
        hint = "start it again; it goes on from its last checkpoint"
        return PeerError(
            "the job can't go on: no member and no Aggregator has the optimizer's state any more", hint=hint
        )
    if error.errno == errno.EDOM:
        return PeerError(
            "this rank's learning rate, or another number of its optimizer, is not rank 0's",
            hint="give all ranks the same optimizer and the same schedule",
        )
    return error


def _pauses() -> Iterator[float]:
    pause_s = RETRY_FIRST_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, RETRY_MAX_S)


def _name(address: AggregatorAddress) -> str:
    return address.tcp or address.unix or f"number {address.number} of the job"


def _unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(DIAL_LIMIT_S)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _tcp(address: str) -> socket.socket:
    sock = socket.create_connection(parse_address(address), timeout=DIAL_LIMIT_S)
    notice_lost_peer(sock)
    return sock
