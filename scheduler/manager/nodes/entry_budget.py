"""How much a node may write into the log: bytes, and changes of its facts. PURE.

A node whose facts flap has the first changes written at once, and then one in `CHANGE_PERIOD_S`: what is left out
comes with a later report, as each report is a whole state. One by which memory has come back that a job waits for is
written whatever came before: donors that lend and take back change often, and each recall has one such. All else that
it causes is written, and paid for: who is in debt waits for a moment after each report that was written, and is heard
meanwhile, so that it is not called lost and no fence ends its tasks. Who owes more than `OVERDRAFT_BYTES`, which no
honest node does, is not read from until it owes less. So no node fills the store. Reports of which nothing is written
cost time alone: those that come faster than a node has a reason for are read a moment later. [M5]
"""

from collections.abc import Iterable

from farside.scheduler.manager.model.event import Event, NodeChanged
from farside.scheduler.manager.model.lending import brings_back
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.token_bucket import TokenBucket

BURST_BYTES = 1 << 19
"""A node of 512 tasks that all end at once causes two fifths of it."""
BYTES_PER_S = 16384.0
"""A gigabyte and a half a day, where a node does nothing else; an honest one causes some hundred bytes a minute."""
OVERDRAFT_BYTES = 1 << 20
"""The most that a node owes and is still heard; it is paid off in a minute. With the burst and what a minute gives that
is half of the 5 MB that a node and a user may write within one."""
PAUSE_S = 0.1
"""Between two reports of a node in debt. All that it may have under way, 16, wait for less than the shortest fence of a
node that reports once a second."""
CHANGES_BURST = 30
CHANGE_PERIOD_S = 10.0
IDLE_BURST = 120
IDLE_PER_S = 10.0
"""Reports of which nothing is written; an agent sends one in five seconds, by its settings ten a second at most."""
IDLE_BYTES = 1 << 18
"""A longer one counts as several, as it takes longer to read. That of a node of eight GPUs has two thousand, one of
`GPUS_MAX` GPUs in `PARTS_MAX` parts each, with all that its services may say, has 200 thousand; and an agent reports
four times a second while a job waits for memory there."""


class EntryBudget:
    """That of one node, whatever its connections."""

    def __init__(self, now_s: float) -> None:
        self._bytes = TokenBucket(BURST_BYTES, BYTES_PER_S, now_s)
        self._changes = TokenBucket(CHANGES_BURST, 1.0 / CHANGE_PERIOD_S, now_s)
        self._idle = TokenBucket(IDLE_BURST, IDLE_PER_S, now_s)

    def takes_change(self, now_s: float) -> bool:
        """Whether one more change of the node's facts is written now; then it counts."""
        if self._changes.left(now_s) < 1.0:
            return False
        self._changes.take(1.0, now_s)
        return True

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Counts what the node had written into the log."""
        self._bytes.take(size_bytes, now_s)

    def debt_s(self, now_s: float) -> float:
        """Until its debt is over; 0: it has none."""
        return self._bytes.wait_s(0, now_s)

    def excess_s(self, now_s: float) -> float:
        """Until it owes no more than a node may that is heard; 0: it does not."""
        return max(0.0, self.debt_s(now_s) - OVERDRAFT_BYTES / BYTES_PER_S)

    def rest_s(self, now_s: float) -> float:
        """How long not to read from it after what was just written; 0: it has no debt."""
        return min(self.debt_s(now_s), max(PAUSE_S, self.excess_s(now_s)))

    def idle_rest_s(self, size_bytes: int, now_s: float) -> float:
        """How long not to read from it after one more report, of this size, of which nothing was written."""
        self._idle.take(max(1.0, size_bytes / IDLE_BYTES), now_s)
        return self._idle.wait_s(0, now_s)


def damped(events: Iterable[Event], state: LiveState, budget: EntryBudget, now_s: float) -> list[Event]:
    """What of a node's events is written now: without changes of facts that come too often."""
    return [
        event
        for event in events
        if not isinstance(event, NodeChanged) or brings_back(state, event) or budget.takes_change(now_s)
    ]
