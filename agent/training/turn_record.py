"""What a node's turns took: moving averages of a job's steps, and a trace of all subtasks. PURE."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farside.agent.messages import ProcessorUse, SpilledInput
from farside.agent.training.alpha import Use
from farside.agent.training.subtask import Phase, phase_of

NEWEST_WEIGHT = 0.2
DROPPED_ITERATIONS = 3
"""Caches are cold in the first iterations of each start."""
TRACE_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What processors have done until a moment.

    Attributes:
        spent_ns: By job, the processor time of its worker's process here; of those that are gone nothing.
        processors: How many the job of the moment may run on; 0: not known.
    """

    spent_ns: Mapping[str, int] = field(default_factory=dict)
    processors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProcessor:
    """Processor time of a turn, in nanoseconds.

    Attributes:
        own_ns: Of its job's process, from its beginning to its end.
        before_ns: The same from the end of the job's turn before to its beginning.
        others_ns: Of other jobs' processes here, in the turn.
        processors: How many its job may run on.
    """

    own_ns: int
    before_ns: int
    others_ns: int
    processors: int


@dataclass(slots=True, kw_only=True)
class Turn:
    """One subtask of one job; times are nanoseconds of this node's CLOCK_MONOTONIC, 0 where there is none.

    Attributes:
        job: Whose.
        position: Which subtask.
        asked_ns, granted_ns, done_ns: When it was asked for, when it began, when it was over.
        has_lease: Whether somebody kept the order; otherwise it was let through.
        processor: Processor time; None: not known.
    """

    job: str
    position: int
    asked_ns: int
    granted_ns: int = 0
    done_ns: int = 0
    has_lease: bool = False
    processor: TurnProcessor | None = None


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """Counts of one job's turns, and how long its steps take by now [harmony §IV-B1].

    Attributes:
        with_lease, let_through, overdue: Turns by how they were had, and those that their deadline ended.
        step_s: By phase; a moving average without the first iterations.
        iteration_s: From PUSH to PUSH, likewise, with all waiting; 0: not known yet.
        pushed_ns: When the last PUSH was over.
        spill: Its input that need not be in memory; None: it has said nothing of that.
        processor: Processor time of an iteration, likewise; None: not known yet.
        phases: Turns of the iteration that is under way, with their processor time.
    """

    with_lease: int = 0
    let_through: int = 0
    overdue: int = 0
    step_s: dict[Phase, float] = field(default_factory=dict)
    iteration_s: float = 0.0
    pushed_ns: int = 0
    spill: SpilledInput | None = None
    processor: ProcessorUse | None = None
    phases: dict[Phase, TurnProcessor] = field(default_factory=dict)

    @property
    def status(self) -> dict[str, Any]:
        """What its executor says of it."""
        return {
            "turns": self.with_lease,
            "let_through": self.let_through,
            "overdue": self.overdue,
            "step_s": dict(self.step_s),
            "iteration_s": self.iteration_s,
            "spill": self.spill,
            "processor": self.processor,
        }

    def step(self, phase: Phase, took_s: float, now_ns: int, processor: TurnProcessor | None = None) -> None:
        """A step after the first iterations is over."""
        self.step_s[phase] = _then(self.step_s.get(phase, 0.0), took_s)
        if processor is not None:
            self.phases[phase] = processor
        if phase == "PUSH":
            # One that has begun before this executor is not known whole.
            if len(self.phases) == len(_STEPS):
                self.processor = _averaged(self.processor, _used(self.phases))
            self.phases = {}
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


def _used(phases: Mapping[Phase, TurnProcessor]) -> ProcessorUse:
    """Processor time of one iteration, by its turns."""
    comp = phases["COMP"]
    rest_ns = sum(one.before_ns + one.own_ns for one in phases.values()) - comp.own_ns
    return ProcessorUse(
        comp_s=comp.own_ns / 1e9, rest_s=rest_ns / 1e9, others_s=comp.others_ns / 1e9, processors=comp.processors
    )  # fmt: skip


def _averaged(average: ProcessorUse | None, newest: ProcessorUse) -> ProcessorUse:
    """As steps are averaged, since others' processor time is in those of computing."""
    if average is None:
        return newest
    return ProcessorUse(
        comp_s=average.comp_s + NEWEST_WEIGHT * (newest.comp_s - average.comp_s),
        rest_s=average.rest_s + NEWEST_WEIGHT * (newest.rest_s - average.rest_s),
        others_s=average.others_s + NEWEST_WEIGHT * (newest.others_s - average.others_s),
        processors=newest.processors,
    )


class TurnRecord:
    """All turns of a node, the last `TRACE_MAX` of them one by one."""

    def __init__(self) -> None:
        self._trace: deque[Turn] = deque(maxlen=TRACE_MAX)
        self._open: dict[str, Turn] = {}
        self._jobs: dict[str, JobRecord] = {}
        self._begun: dict[str, Clocks] = {}  # by job, the clocks at the beginning of its turn
        self._ended_ns: dict[str, int] = {}  # its own at the end of the turn before
        self._first = 0

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """By name; those that are on the node."""
        return self._jobs

    def asked(self, job: str, position: int, now_ns: int, clocks: Clocks | None = None) -> None:
        """A worker asks for a subtask, and so has done the one before."""
        self.done(job, position - 1, now_ns, clocks)
        self._jobs.setdefault(job, JobRecord())
        self._open[job] = Turn(job=job, position=position, asked_ns=now_ns)

    def granted(
        self, job: str, position: int, now_ns: int, clocks: Clocks | None = None, *, has_lease: bool
    ) -> None:  # fmt: skip
        """A subtask begins, or goes on after it has given way."""
        turn, counts = self._open.get(job), self._jobs.get(job)
        if turn is None or counts is None or turn.position != position:
            return
        if not turn.granted_ns:
            turn.granted_ns, turn.has_lease = now_ns, has_lease
            self._begun[job] = clocks or Clocks()
            counts.with_lease += has_lease
            counts.let_through += not has_lease

    def done(self, job: str, position: int, now_ns: int, clocks: Clocks | None = None) -> None:
        """A subtask is over."""
        turn = self._open.get(job)
        if turn is None or turn.position != position or not turn.granted_ns:
            return
        del self._open[job]
        turn.done_ns, turn.processor = now_ns, self._processor_of(job, clocks or Clocks())
        if len(self._trace) == TRACE_MAX:
            self._first += 1
        self._trace.append(turn)
        if position >= len(_STEPS) * DROPPED_ITERATIONS:
            self._jobs[job].step(phase_of(position), (now_ns - turn.granted_ns) / 1e9, now_ns, turn.processor)

    def _processor_of(self, job: str, clocks: Clocks) -> TurnProcessor | None:
        """Processor time of a turn that ends now."""
        begun, last_ns, now_ns = self._begun.pop(job), self._ended_ns.pop(job, None), clocks.spent_ns.get(job)
        if now_ns is None:
            return None
        self._ended_ns[job], began_ns = now_ns, begun.spent_ns.get(job)
        if began_ns is None or last_ns is None or not last_ns <= began_ns <= now_ns or not clocks.processors:
            return None  # another process than before, or it was not seen
        others = clocks.spent_ns.keys() & begun.spent_ns.keys() - {job}
        return TurnProcessor(
            own_ns=now_ns - began_ns,
            before_ns=began_ns - last_ns,
            others_ns=sum(max(0, clocks.spent_ns[name] - begun.spent_ns[name]) for name in others),
            processors=clocks.processors,
        )

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
        for known in (self._open, self._jobs, self._begun, self._ended_ns):
            known.pop(job, None)

    def trace(self, first: int, most: int) -> tuple[int, list[Turn]]:
        """Up to so many turns that are over, from a number on; with the number of the first."""
        first = max(first, self._first)
        rows = [self._trace[at] for at in range(first - self._first, min(len(self._trace), first - self._first + most))]
        return first, rows


def row_of(turn: Turn) -> list[Any]:
    """Make a row of the trace: job, position, step, when asked, granted and done, lease, processor time."""
    spent, told = turn.processor, None
    if spent is not None:
        told = [spent.own_ns, spent.before_ns, spent.others_ns, spent.processors]
    times = [turn.asked_ns, turn.granted_ns, turn.done_ns]
    return [turn.job, turn.position, phase_of(turn.position), *times, turn.has_lease, told]


def job_record(rows: Iterable[Sequence[Any]]) -> JobRecord:
    """What its executor knows of a job when it has done these turns, rows of `row_of` in their order."""
    found = JobRecord()
    for _job, position, phase, _asked, granted_ns, done_ns, has_lease, told in rows:
        found.with_lease += has_lease
        found.let_through += not has_lease
        if position >= len(_STEPS) * DROPPED_ITERATIONS:
            own_ns, before_ns, others_ns, processors = told or (0, 0, 0, 0)
            spent = TurnProcessor(own_ns=own_ns, before_ns=before_ns, others_ns=others_ns, processors=processors)
            found.step(phase, (done_ns - granted_ns) / 1e9, done_ns, spent if told else None)
    return found


_STEPS = ("PULL", "COMP", "PUSH")
