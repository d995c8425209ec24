"""What a node's turns took: moving averages of a job's steps, and a trace of all subtasks. PURE."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from farside.agent.messages import SpilledInput
from farside.agent.training.alpha import Use
from farside.agent.training.subtask import Phase, phase_of

NEWEST_WEIGHT = 0.2
DROPPED_ITERATIONS = 3
"""Caches are cold in the first iterations of each start."""
TRACE_MAX = 65_536


@dataclass(slots=True, kw_only=True)
class Turn:
    """One subtask of one job; times are nanoseconds of this node's CLOCK_MONOTONIC, 0 where there is none.

    Attributes:
        job: Whose.
        position: Which subtask.
        asked_ns, granted_ns, done_ns: When it was asked for, when it began, when it was over.
        has_lease: Whether somebody kept the order; otherwise it was let through.
    """

    job: str
    position: int
    asked_ns: int
    granted_ns: int = 0
    done_ns: int = 0
    has_lease: bool = False


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """Counts of one job's turns, and how long its steps take by now [harmony §IV-B1].

    Attributes:
        with_lease, let_through, overdue: Turns by how they were had, and those that their deadline ended.
        step_s: By phase; a moving average without the first iterations.
        iteration_s: From PUSH to PUSH, likewise, with all waiting; 0: not known yet.
        pushed_ns: When the last PUSH was over.
        spill: Its input that need not be in memory; None: it has said nothing of that.
    """

    with_lease: int = 0
    let_through: int = 0
    overdue: int = 0
    step_s: dict[Phase, float] = field(default_factory=dict)
    iteration_s: float = 0.0
    pushed_ns: int = 0
    spill: SpilledInput | None = None

    def step(self, phase: Phase, took_s: float, now_ns: int) -> None:
        """A step after the first iterations is over."""
        self.step_s[phase] = _then(self.step_s.get(phase, 0.0), took_s)
        if phase == "PUSH":
            if self.pushed_ns:
                self.iteration_s = _then(self.iteration_s, (now_ns - self.pushed_ns) / 1e9)
            self.pushed_ns = now_ns

    def used(self, use: Use) -> None:
        """Its worker has said what an iteration took of memory."""
        before = self.spill
        disk_bytes = use.disk_bytes - (before.disk_bytes if before is not None else 0)
        peer_bytes = use.peer_bytes - (before.peer_bytes if before is not None else 0)
        is_read = min(disk_bytes, peer_bytes) >= 0 < disk_bytes + peer_bytes
        # Averaged as steps are, since it is in those of computing.
        known_s = before.wait_s if before is not None and self.pushed_ns else use.wait_s
        self.spill = SpilledInput(
            spilled=use.spilled,
            by_peer=peer_bytes / (disk_bytes + peer_bytes) if is_read else 0.0,
            input_bytes=use.input_bytes,
            disk_bytes=use.disk_bytes,
            peer_bytes=use.peer_bytes,
            waited_s=use.waited_s,
            wait_s=known_s + NEWEST_WEIGHT * (use.wait_s - known_s),
            disk_bytes_s=use.disk.bytes_s if use.disk is not None else 0.0,
            disk_cpu_s_byte=use.disk.cpu_s_byte if use.disk is not None else 0.0,
            peer_bytes_s=use.peer.bytes_s if use.peer is not None else 0.0,
            peer_cpu_s_byte=use.peer.cpu_s_byte if use.peer is not None else 0.0,
        )


def _then(average: float, value: float) -> float:
    return average + NEWEST_WEIGHT * (value - average) if average else value


class TurnRecord:
    """All turns of a node, the last `TRACE_MAX` of them one by one."""

    def __init__(self) -> None:
        self._trace: deque[Turn] = deque(maxlen=TRACE_MAX)
        self._open: dict[str, Turn] = {}
        self._jobs: dict[str, JobRecord] = {}
        self._first = 0

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """By name; those that are on the node."""
        return self._jobs

    def asked(self, job: str, position: int, now_ns: int) -> None:
        """A worker asks for a subtask, and so has done the one before."""
        self.done(job, position - 1, now_ns)
        self._jobs.setdefault(job, JobRecord())
        self._open[job] = Turn(job=job, position=position, asked_ns=now_ns)

    def granted(self, job: str, position: int, now_ns: int, *, has_lease: bool) -> None:
        """A subtask begins, or goes on after it has given way."""
        turn, counts = self._open.get(job), self._jobs.get(job)
        if turn is None or counts is None or turn.position != position:
            return
        if not turn.granted_ns:
            turn.granted_ns, turn.has_lease = now_ns, has_lease
            counts.with_lease += has_lease
            counts.let_through += not has_lease

    def done(self, job: str, position: int, now_ns: int) -> None:
        """A subtask is over."""
        turn = self._open.get(job)
        if turn is None or turn.position != position or not turn.granted_ns:
            return
        del self._open[job]
        turn.done_ns = now_ns
        if len(self._trace) == TRACE_MAX:
            self._first += 1
        self._trace.append(turn)
        if position >= len(_STEPS) * DROPPED_ITERATIONS:
            self._jobs[job].step(phase_of(position), (now_ns - turn.granted_ns) / 1e9, now_ns)

    def overdue(self, job: str) -> None:
        """A turn has ended by its deadline."""
        if job in self._jobs:
            self._jobs[job].overdue += 1

    def used(self, job: str, use: Use) -> None:
        """A worker has said what an iteration took of memory."""
        if job in self._jobs:
            self._jobs[job].used(use)

    def left(self, job: str) -> None:
        """The job is not on this node any more."""
        self._open.pop(job, None)
        self._jobs.pop(job, None)

    def trace(self, first: int, most: int) -> tuple[int, list[Turn]]:
        """Up to so many turns that are over, from a number on; with the number of the first."""
        first = max(first, self._first)
        rows = [self._trace[at] for at in range(first - self._first, min(len(self._trace), first - self._first + most))]
        return first, rows


_STEPS = ("PULL", "COMP", "PUSH")
