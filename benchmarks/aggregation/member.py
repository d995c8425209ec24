"""A member of ours: ``python -m benchmarks.aggregation.member RANK MEMBERS UNIX_SOCKET TCP_PORT [...]``.

The doors are those of one Aggregator after the other.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aggregation.aggregator import LANE_HEAD, MEMBER_KEYS
from benchmarks.aggregation.conversation import converse
from benchmarks.aggregation.models import Piece
from farside.kmod_shim.engine.aggregation import Chunk, Hyper, Job, Member, Rule

Floats = npt.NDArray[np.float32]
AGGREGATOR, EPOCH = 0, 1
CHECK_S = 60.0
RATE = 0.125  # of float32 exactly
RUN = 4  # chunks that are copied and pushed together: 1 MiB


class Registered:
    """Gradients and results lie in the member's region: nothing is copied."""

    def __init__(self, member: Member, chunks: Sequence[Sequence[Piece]], rank: int, members: int) -> None:
        self._member, self._chunks, self._rank, self._members = member, len(chunks), rank, members
        self._iteration = 1
        self._lacking_of: dict[int, list[int]] = {}
        for at, pieces in enumerate(chunks):
            for tensor in {piece[0] for piece in pieces}:
                self._lacking_of.setdefault(tensor, []).append(at)
        self._needed = [len({piece[0] for piece in pieces}) for pieces in chunks]
        self._lacking = list(self._needed)
        self._next = self._chunks  # those from here on have been pushed

    def step(self) -> None:
        self._member.push(0, self._chunks, self._iteration)
        self._next = 0
        self.wait()

    def push(self, tensor: int) -> None:
        """A chunk that is ready early waits for its turn."""
        for at in self._lacking_of[tensor]:
            self._lacking[at] -= 1
        first = self._next
        while first and not self._lacking[first - 1]:
            first -= 1
        if first < self._next:
            self._send(first, self._next - first)
            self._next = first

    def _send(self, first: int, count: int) -> None:
        self._member.push(first, count, self._iteration)

    def wait(self) -> None:
        self._member.wait(0, self._chunks, self._iteration, CHECK_S)
        self._end_iteration()

    def _end_iteration(self) -> None:
        self._iteration += 1
        self._lacking = list(self._needed)
        self._next = self._chunks

    def check(self) -> None:
        for at in range(self._chunks):
            _floats(self._member.gradient(at, self._iteration))[:] = self._rank + 1
        self.step()
        self._compare([_floats(self._member.result(at)) for at in range(self._chunks)])

    def _compare(self, results: Sequence[Floats]) -> None:
        expected = self._members * (self._members + 1) / 2
        if not all(bool((result == expected).all()) for result in results):
            raise ValueError("a sum is wrong")

    def close(self) -> None:
        self._member.close()


class Private(Registered):
    """Gradients and results lie elsewhere: one copy into the region, and one out of it."""

    def __init__(
        self, member: Member, chunks: Sequence[Sequence[Piece]], rank: int, members: int, counts: Sequence[int]
    ) -> None:
        super().__init__(member, chunks, rank, members)
        self._gradients = [np.full(count, rank + 1, np.float32) for count in counts]
        self._results = [np.zeros(count, np.float32) for count in counts]
        self._in: list[list[tuple[Floats, Floats]]] = []
        self._out: list[list[tuple[Floats, Floats]]] = []
        for at, pieces in enumerate(chunks):
            gradient, result = _floats(member.gradient(at, 1)), _floats(member.result(at))
            into: list[tuple[Floats, Floats]] = []
            out: list[tuple[Floats, Floats]] = []
            place = 0
            for tensor, offset, count in pieces:
                into.append((gradient[place : place + count], self._gradients[tensor][offset : offset + count]))
                out.append((self._results[tensor][offset : offset + count], result[place : place + count]))
                place += count
            self._in.append(into)
            self._out.append(out)

    def step(self) -> None:
        for end in range(self._chunks, 0, -RUN):
            self._send(max(0, end - RUN), min(RUN, end))
        self.wait()

    def _send(self, first: int, count: int) -> None:
        for at in range(first, first + count):
            for to, came_from in self._in[at]:
                np.copyto(to, came_from)
        self._member.push(first, count, self._iteration)

    def wait(self) -> None:
        for end in range(self._chunks, 0, -RUN):
            first, count = max(0, end - RUN), min(RUN, end)
            self._member.wait(first, count, self._iteration, CHECK_S)
            for at in range(first, first + count):
                for to, came_from in self._out[at]:
                    np.copyto(to, came_from)
        self._end_iteration()

    def check(self) -> None:
        self.step()
        self._compare(self._results)

    def close(self) -> None:
        # Their arrays are views of the region.
        self._in.clear()
        self._out.clear()
        super().close()


class Served(Registered):
    """With the server's optimizer: results are parameters, and the Aggregator keeps momentum."""

    def __init__(
        self, member: Member, chunks: Sequence[Sequence[Piece]], rank: int, members: int, *, is_resumed: bool
    ) -> None:
        super().__init__(member, chunks, rank, members)
        self._is_resumed = is_resumed

    def check(self) -> None:
        """Gradients of 1 from parameters and momentum of 0: the first step is the learning rate."""
        self._fill()
        if self._is_resumed:
            return
        self.step()
        for at in range(self._chunks):
            if not bool((_floats(self._member.result(at)) == np.float32(-RATE)).all()):
                raise ValueError("a parameter is wrong")
        # Of the other parity; the start has been lying there.
        self._fill()

    def _fill(self) -> None:
        for at in range(self._chunks):
            _floats(self._member.gradient(at, self._iteration))[:] = 1

    def save(self, path: str) -> None:
        """Parameters and momentum, as a checkpoint has them; on the disk when this returns."""
        with open(path, "wb") as file:
            for arrays in self._member.fetch(0, self._chunks, self._iteration - 1, CHECK_S):
                for array in arrays:
                    file.write(array)
            file.flush()
            os.fsync(file.fileno())


def _floats(buffer: Any) -> Floats:
    return np.frombuffer(buffer, np.float32)


def prepare(order: Mapping[str, Any], rank: int, members: int, doors: Sequence[tuple[str, int]]) -> Registered:
    """A member of the job that the order names, with its lanes. The first Aggregator has all chunks."""
    chunks, rule = order["pieces"], Rule[order["rule"]]
    job = Job(members, rule, tuple(Chunk(sum(piece[2] for piece in pieces)) for pieces in chunks))
    member = Member(job, rank)
    _start(member, job, rank, order.get("checkpoint"))
    member.own(0, len(chunks), AGGREGATOR, EPOCH)
    if rule is Rule.SGD:
        member.hyper(0, 1, Hyper(lr=RATE, momentum=0.9))
    is_shm = order["kind"] != "tcp"
    for number, (path, port) in enumerate(doors):
        lane = socket.socket(socket.AF_UNIX) if is_shm else socket.socket()
        lane.connect(path if is_shm else ("127.0.0.1", port))
        socket.send_fds(lane, [LANE_HEAD.pack(order["job"], rank)], [member.region] if is_shm else [])
        member.attach(number, lane.detach(), shm=is_shm, keys=b"" if is_shm else MEMBER_KEYS)
    member.wait(0, len(chunks), 0, CHECK_S)
    if order["kind"] == "private":
        return Private(member, chunks, rank, members, order["counts"])
    if rule is Rule.SGD:
        return Served(member, chunks, rank, members, is_resumed="checkpoint" in order)
    return Registered(member, chunks, rank, members)


def _start(member: Member, job: Job, rank: int, checkpoint: str | None) -> None:
    if not checkpoint or rank:
        member.start(0)
        return
    state = []
    with open(checkpoint, "rb") as file:
        for at, chunk in enumerate(job.chunks):
            parameters = file.read(chunk.size_bytes)
            member.result(at)[:] = parameters
            state.append((parameters, file.read(chunk.size_bytes)))
    member.start(0, state)


if __name__ == "__main__":
    _rank, _members = int(sys.argv[1]), int(sys.argv[2])
    _doors = [(path, int(port)) for path, port in zip(sys.argv[3::2], sys.argv[4::2], strict=True)]
    converse(lambda order: prepare(order, _rank, _members, _doors))
