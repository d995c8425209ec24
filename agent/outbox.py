"""Outbox: reports to the manager, numbered, kept until acknowledged, and sent again in order. PURE.

States wait here until a report takes them; of one task only the newest waits. Not more than `IN_FLIGHT_MAX` reports are
without acknowledgement: behind a manager that does not answer, states gather here, one a task, and nothing grows.
"""

from farside.agent import messages as m
from farside.agent.run.ledger import Key, key_of

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
        self._last_seq = 0

    @property
    def has_news(self) -> bool:
        """True while the state of a task waits for a report."""
        return bool(self._waiting)

    def note(self, state: m.TaskState) -> None:
        """Take a state that the manager should get."""
        key = key_of(state), state.submitted_s
        self._waiting.pop(key, None)  # to the end: the order of events, as far as one report can show it
        self._waiting[key] = state

    def compose(self, reading: m.Reading) -> m.Report | None:
        """The next report with all that waits, or None while too many are under way."""
        if len(self.unacked) >= IN_FLIGHT_MAX:
            return None
        keys = list(self._waiting)[: m.TASKS_MAX]
        self._last_seq += 1
        told = tuple(self._waiting.pop(key) for key in keys)
        report = m.Report(seq=self._last_seq, tasks=told, **m.fields_of(m.Reading, reading))
        self.unacked = (*self.unacked, report)
        return report

    def acknowledge(self, seq: int) -> None:
        """Drop every report up to this one: the manager has them."""
        self.unacked = tuple(report for report in self.unacked if report.seq > seq)
