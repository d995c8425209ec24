"""Members and Aggregators in one process, whose lanes are cut and whose Aggregators are ended at will."""

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import Aggregator, Chunk, DType, Hyper, Job, Member, Rule, reduce

Array = npt.NDArray[Any]

JOB = 7
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


class Rig:
    """A job's members and its Aggregators; each chunk is at the Aggregator of its number's remainder."""

    def __init__(
        self, job: Job, *, shm: Sequence[bool] | bool, hyper: Hyper | None = None, aggregators: int = 1
    ) -> None:
        self.job, self.hyper = job, hyper if hyper is not None else Hyper(lr=0.1)
        self.shm = [shm] * job.members if isinstance(shm, bool) else list(shm)
        self.aggregators: list[Aggregator] = [self._aggregator(number, aggregators) for number in range(aggregators)]
        self.members = [Member(job, rank) for rank in range(job.members)]
        self._lock = threading.Lock()
        self._ends = False
        self._threads: list[threading.Thread] = []
        self.cuts: list[socket.socket] = []

    def _aggregator(self, number: int, count: int) -> Aggregator:
        made = Aggregator(1 << 30)
        made.add_job(JOB, self.job)
        for chunk in range(number, len(self.job.chunks), count):
            made.own(JOB, chunk, 1, 1)
        return made

    def start(self) -> None:
        """All members have the parameters of rank 0, and each reconnects by itself."""
        for rank, member in enumerate(self.members):
            if ARRAYS[self.job.rule] and rank == 0:
                for index in range(len(self.job.chunks)):
                    member.result(index)[:] = start_of(self.job, index).tobytes()
            member.start(0)
            for chunk in range(len(self.job.chunks)):
                member.own(chunk, 1, chunk % len(self.aggregators), 1)
            if ARRAYS[self.job.rule]:
                member.hyper(0, 1, self.hyper)
            self._begin(rank)
        for member in self.members:
            member.wait(0, len(self.job.chunks), 0, DEADLINE_S)

    def connect(self, rank: int, number: int) -> None:
        """A lane. The Aggregator may end while it is made."""
        with self._lock:
            if self._ends:
                return
            shm, member = self.shm[rank], self.members[rank]
            theirs, ours = socket.socketpair() if shm else tcp_pair()
            with theirs, ours:
                self.cuts.append(ours.dup())
                region = os.dup(member.region) if shm else None
                self.aggregators[number].attach(JOB, rank, theirs.fileno(), region)
                theirs.detach()
                member.attach(number, ours.fileno(), shm=shm)
                ours.detach()

    def _reconnect(self, rank: int, member: Member) -> None:
        with contextlib.suppress(EngineError):  # it is closed, or its job can't go on
            while True:
                self.connect(rank, member.wait_lane(DEADLINE_S))

    def replace(self, rank: int) -> None:
        """A member ends, and another process of its rank comes, which has nothing."""
        self.members[rank].close()
        self.members[rank] = Member(self.job, rank)
        for chunk in range(len(self.job.chunks)):
            self.members[rank].own(chunk, 1, chunk % len(self.aggregators), 1)
        self._begin(rank)

    def _begin(self, rank: int) -> None:
        for number in range(len(self.aggregators)):
            self.connect(rank, number)
        self._threads.append(threading.Thread(target=self._reconnect, args=(rank, self.members[rank])))
        self._threads[-1].start()

    def cut_all(self) -> None:
        """Every lane ends, with what is on its way."""
        with self._lock:
            for end in self.cuts:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            self.cuts = []

    def kill(self, number: int) -> None:
        """An Aggregator ends, and another one begins in its place that knows nothing."""
        with self._lock:
            self.aggregators[number].close()
            self.aggregators[number] = self._aggregator(number, len(self.aggregators))

    def push(self, iteration: int) -> None:
        """All members push all chunks."""
        for rank, member in enumerate(self.members):
            for index in range(len(self.job.chunks)):
                member.gradient(index, iteration)[:] = gradient_of(self.job, rank, index, iteration).tobytes()
            member.push(0, len(self.job.chunks), iteration)

    def wait(self, iteration: int) -> list[list[bytes]]:
        """The results of each member."""
        found = []
        for member in self.members:
            member.wait(0, len(self.job.chunks), iteration, DEADLINE_S)
            found.append([bytes(member.result(index)) for index in range(len(self.job.chunks))])
        return found

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
        for end in self.cuts:
            end.close()
