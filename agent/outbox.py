"""Outbox: reports to the manager, numbered, kept until acknowledged, and sent again in order. PURE.

States wait here until a report takes them; of one task only the newest waits. What a service says about a start of a
job is a state, too. At most `IN_FLIGHT_MAX` reports are without acknowledgement: behind a manager that does not answer,
states gather here, one a task, and nothing grows.
"""

from farside.agent import messages as m
from farside.agent.run.ledger import Key, key_of

TOLD_WAITING_MAX = 1024
"""What services may have waiting here: twice as much as there are tasks on a node."""
IN_FLIGHT_MAX = 16
"""Reports without an acknowledgement; at one in 5 s that is more than a minute of a manager that hangs."""


class Outbox:
    """Reports of one incarnation of the agent.

    Attributes:
        unacked: Reports that the manager has not acknowledged, oldest first.
    """

    def __init__(self) -> None:
        self.unacked: tuple[m.Report, ...] = ()
        self._waiting: dict[tuple[Key, float | None], m.TaskState] = {}  # two jobs' tasks may have one name
        self._told: dict[tuple[str, str, int], m.Told] = {}
        self._last_seq = 0

    @property
    def has_news(self) -> bool:
        """True while the state of a task, or what a service says about a job, waits for a report."""
        return bool(self._waiting or self._told)

    def note(self, state: m.TaskState) -> None:
        """Take a state that the manager should get."""
        key = key_of(state), state.submitted_s
        self._waiting.pop(key, None)  # to the end: the order of events, as far as one report can show it
        self._waiting[key] = state

    def note_told(self, told: m.Told) -> bool:
        """Takes what a service says about a job; False: it is too long, or too much waits already."""
        key = told.service, told.job, told.start
        if not m.is_carried(told.raw) or (key not in self._told and len(self._told) >= TOLD_WAITING_MAX):
            return False
        self._told.pop(key, None)
        self._told[key] = told
        return True

    def compose(self, reading: m.Reading) -> m.Report | None:
        """The next report with all that waits, or None while too many are under way."""
        if len(self.unacked) >= IN_FLIGHT_MAX:
            return None
        keys = list(self._waiting)[: m.TASKS_MAX]
        self._last_seq += 1
        states = tuple(self._waiting.pop(key) for key in keys)
        told = self._next_told()
        report = m.Report(seq=self._last_seq, tasks=states, told=told, **m.fields_of(m.Reading, reading))
        self.unacked = (*self.unacked, report)
        return report

    def _next_told(self) -> tuple[m.Told, ...]:
        """The oldest of what services say about jobs, as much as fits into one report."""
        keys: list[tuple[str, str, int]] = []
        room_bytes = m.TOLD_BYTES_MAX
        for key, told in self._told.items():
            room_bytes -= memoryview(told.raw).nbytes
            if room_bytes < 0 or len(keys) == m.TOLD_MAX:
                break
            keys.append(key)
        return tuple(self._told.pop(key) for key in keys)

    def acknowledge(self, seq: int) -> None:
        """Drop every report up to this one: the manager has them."""
        self.unacked = tuple(report for report in self.unacked if report.seq > seq)
