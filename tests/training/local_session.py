"""A job's members in one process, with an Aggregator of the engine's between them and nothing else."""

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from farside.agent.aggregator.layout import Tensor, make_layout
from farside.kmod_shim.engine.aggregation import Aggregator, Chunk, DType, Job, Member, Rule

JOB = 3
DEADLINE_S = 60.0


class LocalJob:
    """An Aggregator, and the sessions of the members that have come."""

    def __init__(self, members: int) -> None:
        self.members = members
        self._aggregator = Aggregator(1 << 30)
        self._lock = threading.Lock()
        self._has_job = False
        self._came = [0] * members
        self._sessions: list[LocalSession] = []

    def session(self, rank: int, rule: str, tensors: Sequence[Tensor]) -> "LocalSession":
        """A member of this rank, which is not connected yet."""
        made = LocalSession(self, rank, rule, tensors)
        with self._lock:
            self._sessions.append(made)
            if not self._has_job:
                self._aggregator.add_job(JOB, made.job)
                self._aggregator.own(JOB, 0, len(made.job.chunks), 1)
                self._has_job = True
        return made

    def attach(self, rank: int, member: Member) -> None:
        """A lane over shared memory."""
        theirs, ours = socket.socketpair()
        self._aggregator.attach(JOB, rank, theirs.detach(), os.dup(member.region))
        member.attach(0, ours.detach(), shm=True)

    def has_begun(self, rank: int) -> bool:
        """Whether a member of this rank has been here before."""
        with self._lock:
            self._came[rank] += 1
            return self._came[rank] > 1

    def updates(self) -> int:
        """Chunks that have been updated."""
        return self._aggregator.stats(JOB).updates

    def end(self) -> None:
        """One member has failed: the others, which wait for it, come back with an error."""
        with self._lock:
            for session in self._sessions:
                session.close()

    def close(self) -> None:
        """Ends everything."""
        self.end()
        self._aggregator.close()


class LocalSession:
    """What a `MemberSession` is to the doors."""

    problem = None

    def __init__(self, job: LocalJob, rank: int, rule: str, tensors: Sequence[Tensor]) -> None:
        self._local, self.rank = job, rank
        self.layout = make_layout(tensors)
        chunks = zip(self.layout.counts, self.layout.dtypes, self.layout.groups, strict=True)
        self.job = Job(
            job.members, Rule[rule.upper()], tuple(Chunk(count, DType[kind.upper()], at) for count, kind, at in chunks)
        )
        self.member = Member(self.job, rank)
        self._first_version: int | None = None

    @property
    def first_version(self) -> int:
        """The version that the job goes on from."""
        if self._first_version is None:
            self.wait(0, len(self.job.chunks), 0)
            self._first_version = self.member.version(0, len(self.job.chunks)) or 0
        return self._first_version

    def connect(self, parameters: Callable[[], Any] | None = None) -> None:
        """Everybody has rank 0's parameters, or those that the job is at."""
        if not self._local.has_begun(self.rank):
            self._begin(parameters)
        self.member.own(0, len(self.job.chunks), 0, 1)
        self._local.attach(self.rank, self.member)

    def _begin(self, parameters: Callable[[], Any] | None) -> None:
        contents = parameters() if self.rank == 0 and parameters is not None else None
        if self.job.rule in (Rule.SUM, Rule.MEAN):
            self._first_version = 0 if parameters is None else 1
            self.member.start(self._first_version if self.rank == 0 else 0)
        else:
            first, state = contents or (0, None)
            self.member.start(first, state)

    def fetch(self, version: int) -> Any:
        """Parameters and state of all chunks."""
        return self.member.fetch(0, len(self.job.chunks), version, DEADLINE_S)

    def push(self, first: int, count: int, iteration: int, *, absent: bool = False) -> None:
        """As the member's."""
        self.member.push(first, count, iteration, absent=absent)

    def wait(self, first: int, count: int, version: int, timeout_s: float = DEADLINE_S) -> None:
        """As the member's, with a deadline."""
        self.member.wait(first, count, version, timeout_s)

    def measured(self, iteration: int, iteration_s: float) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """Ends the member."""
        self.member.close()
