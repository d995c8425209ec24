"""Members and Aggregators in one process: lanes are cut, Aggregators ended and chunks moved at will."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import (
    Aggregator,
    AggregatorEvent,
    AggregatorEventKind,
    Chunk,
    DType,
    Hyper,
    Job,
    Member,
    Rule,
    reduce,
)
from tests.support.waiting import until

Array = npt.NDArray[Any]

JOB = 7
# Of codes, as the handshake makes them: the heads that go out, then those that come in.
MEMBER_KEYS = bytes(range(32))
AGGREGATOR_KEYS = MEMBER_KEYS[16:] + MEMBER_KEYS[:16]
DEADLINE_S = 60.0
STORED = {
    DType.F32: np.float32, DType.F16: np.float16, DType.F64: np.float64, DType.I32: np.int32, DType.I64: np.int64,
}  # fmt: skip
# What an optimizer keeps: parameters, then momentum or two moments.
ARRAYS = {Rule.SUM: 0, Rule.MEAN: 0, Rule.SGD: 2, Rule.ADAM: 3, Rule.ADAMW: 3}


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def make_job(rule: Rule, *, members: int = 2, chunks: int = 5, dtype: DType = DType.F32) -> Job:
    """Chunks of different sizes, none of them a whole number of vectors."""
    return Job(members, rule, tuple(Chunk(1000 + 13 * index, dtype) for index in range(chunks)))


class Reference:
    """One process that sums the same gradients in rank order."""

    def __init__(self, job: Job, hyper: Hyper) -> None:
        self.job, self.hyper = job, hyper
        self.masters = [
            [start_of(job, index).astype(np.float32), *(np.zeros(chunk.count, np.float32) for _ in range(2))]
            for index, chunk in enumerate(job.chunks)
        ]

    def step(self, iteration: int) -> list[bytes]:
        """The result of each chunk."""
        found = []
        for index, chunk in enumerate(self.job.chunks):
            output = np.zeros(chunk.count, STORED[chunk.dtype])
            gradients = [gradient_of(self.job, rank, index, iteration) for rank in range(self.job.members)]
            reduce(
                self.job.rule, chunk.dtype, gradients, [output], step=iteration, hyper=self.hyper,
                masters=self.masters[index][: ARRAYS[self.job.rule]],
            )  # fmt: skip
            found.append(output.tobytes())
        return found


def start_of(job: Job, index: int) -> Array:
    """Parameters at the start."""
    chunk = job.chunks[index]
    return (np.arange(chunk.count) / 100).astype(STORED[chunk.dtype])


def gradient_of(job: Job, rank: int, index: int, iteration: int) -> Array:
    """What a member has computed."""
    chunk = job.chunks[index]
    rng = np.random.default_rng(10_000 * iteration + 100 * rank + index)
    return (rng.normal(size=chunk.count) * 10).astype(STORED[chunk.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The plan's word on a chunk."""

    owner: int
    epoch: int
    next_owner: int | None = None
    next_epoch: int = 0


class Rig:
    """A job's members and its Aggregators; each chunk is first at the Aggregator of its number's remainder."""

    def __init__(
        self, job: Job, *, shm: Sequence[bool] | bool, hyper: Hyper | None = None, aggregators: int = 1
    ) -> None:
        self.job, self.hyper = job, hyper if hyper is not None else Hyper(lr=0.1)
        self.shm = [shm] * job.members if isinstance(shm, bool) else list(shm)
        self.places = [Place(owner=index % aggregators, epoch=1) for index in range(len(job.chunks))]
        self.epoch = 1
        self.moved = 0
        self._bulk: set[tuple[int, int]] = set()
        self._copied: set[tuple[int, int]] = set()
        self._pushed: set[tuple[int, int]] = set()
        self.aggregators: list[Aggregator] = [self._aggregator(number) for number in range(aggregators)]
        self.members = [Member(job, rank) for rank in range(job.members)]
        self._lock = threading.Lock()
        self._ends = False
        self._threads: list[threading.Thread] = []
        self._cuts: dict[tuple[int, int], socket.socket] = {}
        self._bulk_cuts: dict[tuple[int, int], socket.socket] = {}

    def _aggregator(self, number: int) -> Aggregator:
        made = Aggregator(1 << 30)
        made.add_job(JOB, self.job)
        self._tell(number, made)
        return made

    def _tell(self, number: int, aggregator: Aggregator) -> None:
        for index, place in enumerate(self.places):
            aggregator.plan(
                JOB, index, 1, me=number, owner=place.owner, epoch=place.epoch, next_owner=place.next_owner,
                next_epoch=place.next_epoch,
            )  # fmt: skip

    def start(
        self,
        version: int = 0,
        parameters: Sequence[bytes] | None = None,
        state: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """All members have the parameters of rank 0, and each reconnects by itself."""
        for rank, member in enumerate(self.members):
            if ARRAYS[self.job.rule] and rank == 0:
                for index in range(len(self.job.chunks)):
                    member.result(index)[:] = parameters[index] if parameters else start_of(self.job, index).tobytes()
            member.start(version, state if rank == 0 else None)
            self._own(member)
            if ARRAYS[self.job.rule]:
                member.hyper(0, version + 1, self.hyper)
            self._begin(rank)
        for member in self.members:
            member.wait(0, len(self.job.chunks), version, DEADLINE_S)

    def connect(self, rank: int, number: int) -> None:
        """A lane. The Aggregator may end while it is made."""
        with self._lock:
            if self._ends:
                return
            shm, member = self.shm[rank], self.members[rank]
            theirs, ours = socket.socketpair() if shm else tcp_pair()
            with theirs, ours:
                _keep(self._cuts, (rank, number), ours)
                region = os.dup(member.region) if shm else None
                ends = (b"", b"") if shm else (AGGREGATOR_KEYS, MEMBER_KEYS)
                self.aggregators[number].attach(JOB, rank, theirs.fileno(), region, keys=ends[0])
                theirs.detach()
                member.attach(number, ours.fileno(), shm=shm, keys=ends[1])
                ours.detach()

    def _reconnect(self, rank: int, member: Member) -> None:
        with contextlib.suppress(EngineError):  # it is closed, or its job can't go on
            while True:
                self.connect(rank, member.wait_lane(DEADLINE_S))

    def replace(self, rank: int) -> None:
        """A member ends, and another process of its rank comes, which has nothing."""
        self.members[rank].close()
        self.members[rank] = Member(self.job, rank)
        self._own(self.members[rank])
        self._begin(rank)

    def _begin(self, rank: int) -> None:
        for number in range(len(self.aggregators)):
            self.connect(rank, number)
        self._threads.append(threading.Thread(target=self._reconnect, args=(rank, self.members[rank])))
        self._threads[-1].start()

    def cut_all(self) -> None:
        """Every lane ends, with what is on its way."""
        with self._lock:
            _cut(self._cuts)

    def cut_bulks(self) -> None:
        """Every lane between Aggregators ends."""
        _cut(self._bulk_cuts)

    def kill(self, number: int) -> None:
        """An Aggregator ends, and another one begins in its place that knows nothing."""
        with self._lock:
            self.aggregators[number].close()
            self._bulk = {pair for pair in self._bulk if number not in pair}
            self.aggregators[number] = self._aggregator(number)

    # ---- moves

    def _own(self, member: Member) -> None:
        for index, place in enumerate(self.places):
            member.own(index, 1, place.owner, place.epoch)

    def announce(self, *, members: bool = True) -> None:
        """Everybody has the plan; ``members``: also those, which need it only after a change that is no move."""
        for number, aggregator in enumerate(self.aggregators):
            self._tell(number, aggregator)
        for member in self.members if members else ():
            self._own(member)

    def move(self, index: int, to: int) -> None:
        """A chunk moves; it is there when `watch_moves` has seen both words about it."""
        place = self.places[index]
        self.epoch += 1
        self.places[index] = replace(place, next_owner=to, next_epoch=self.epoch)
        self.announce(members=False)

    def reassign(self, index: int, owner: int) -> None:
        """An owner is named, whatever was under way."""
        self.epoch += 1
        self.places[index] = Place(owner=owner, epoch=self.epoch)
        self.announce()

    def watch_moves(self) -> None:
        """What the manager and the Aggregators' servers do: bulk lanes, commits, and an end to broken moves."""
        self._connect_bulks()
        for number, aggregator in enumerate(self.aggregators):
            for event in iter(aggregator.next_event, None):
                if event.kind is AggregatorEventKind.NEXT_ENDED:
                    self._bulk.discard((number, event.rank))
                elif event.kind is AggregatorEventKind.PREVIOUS_ENDED:
                    self._bulk.discard((event.rank, number))
                elif event.count:
                    for index in range(event.chunk, event.chunk + event.count):
                        self._hear(number, index, event)
        self._connect_bulks()

    def _connect_bulks(self) -> None:
        for place in self.places:
            if place.next_owner is None:
                continue
            pair = (place.owner, place.next_owner)
            if pair in self._bulk:
                continue
            one, other = socket.socketpair() if all(self.shm) else tcp_pair()
            _keep(self._bulk_cuts, pair, one)
            ends = (b"", b"") if all(self.shm) else (MEMBER_KEYS, AGGREGATOR_KEYS)
            self.aggregators[place.owner].attach_next(JOB, place.next_owner, one.detach(), ends[0])
            self.aggregators[place.next_owner].attach_previous(JOB, place.owner, other.detach(), ends[1])
            self._bulk.add(pair)

    def _hear(self, number: int, index: int, event: AggregatorEvent) -> None:
        place = self.places[index]
        if place.next_owner is None:
            return
        if (number, event.epoch) == (place.next_owner, place.next_epoch):
            if event.kind is AggregatorEventKind.COPIED:
                self._copied.add((index, event.epoch))
            elif event.kind is AggregatorEventKind.PUSHED:
                self._pushed.add((index, event.epoch))
            if (index, event.epoch) in self._copied & self._pushed:
                self.places[index] = Place(owner=number, epoch=event.epoch)
                self.moved += 1
                self.announce()
        elif (number, event.epoch) == (place.owner, place.epoch):
            if event.kind is AggregatorEventKind.BROKEN_HERE:
                self.reassign(index, place.next_owner)
            elif event.kind is AggregatorEventKind.BROKEN_THERE:
                self.reassign(index, place.owner)

    def push(self, iteration: int) -> None:
        """All members push all chunks."""
        for rank, member in enumerate(self.members):
            for index in range(len(self.job.chunks)):
                member.gradient(index, iteration)[:] = gradient_of(self.job, rank, index, iteration).tobytes()
            member.push(0, len(self.job.chunks), iteration)

    def wait(self, iteration: int) -> list[list[bytes]]:
        """The results of each member. Moves go on meanwhile."""
        until(lambda: self._has(iteration), what=f"the results of iteration {iteration}", every_s=0.001)
        found = []
        for member in self.members:
            found.append([bytes(member.result(index)) for index in range(len(self.job.chunks))])
        return found

    def _has(self, iteration: int) -> bool:
        self.watch_moves()
        try:
            for member in self.members:
                member.wait(0, len(self.job.chunks), iteration, 0.005)
        except EngineError as error:
            if error.errno != errno.ETIMEDOUT:
                raise
            return False
        return True

    def close(self) -> None:
        """Ends everything."""
        with self._lock:
            self._ends = True
        for member in self.members:
            member.close()
        for thread in self._threads:
            thread.join()
        for aggregator in self.aggregators:
            aggregator.close()
        for end in (*self._cuts.values(), *self._bulk_cuts.values()):
            end.close()


def _keep(cuts: dict[tuple[int, int], socket.socket], pair: tuple[int, int], lane: socket.socket) -> None:
    """A second descriptor of a lane. That of the lane before goes: while it is open, epoll tells its end for ever."""
    before = cuts.pop(pair, None)
    if before is not None:
        before.close()
    cuts[pair] = lane.dup()


def _cut(cuts: dict[tuple[int, int], socket.socket]) -> None:
    for end in cuts.values():
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
    cuts.clear()
