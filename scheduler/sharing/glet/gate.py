"""The gate before a model's queue: under overload, requests that would be given up are refused as they come. PURE.

A request that is given up in its queue costs the front nearly as much as one that is served, and on a machine that
serves on its own cores the models lose that time. The gate compares with what was served just before, not with the
queue's length: a queue that is full of requests of one age loses all of them at once when its turn comes late.
"""

import math
from dataclasses import dataclass, field

# Over so long is counted what is served, and so long after the last request that was given up all are let in again.
_WINDOW_S, _WINDOW_SLOS = 1.0, 4.0
# Of what is served, and rows in each SLO besides: the queue never lacks requests, also where few make up an SLO, and it
# is noticed where more can be served.
_LET_IN, _LET_IN_ROWS = 1.1, 3.0
_BURST_SLOS = 4.0
# Of a request's time, for its way and the answer's, which nobody here sees.
_WAY = 0.05
# It is left where so many are refused, of those that are served.
_REFUSED = 0.05


@dataclass(slots=True, kw_only=True)
class Gate:
    """Which requests of a model are let into its queue; rows of a request count as in its queue.

    It is open while no request is given up for want of time. While requests are given up, it lets in a tenth more rows
    a second than were served lately and three more in each SLO, and never less than the plan promises. So the queue
    stays full, as many are served as without a gate, and no model loses its share to another.

    Attributes:
        slo_s: The model's SLO.
        planned: Rows a second that the plan promises.
        rate: Rows a second that are let in; infinity: all.
    """

    slo_s: float
    planned: float = 0.0
    rate: float = math.inf
    _window_s: float = field(init=False)
    _room: float = 0.0
    _reckoned_s: float = -math.inf
    _since_s: float = -math.inf
    _gave_up_s: float = -math.inf
    _taken: int = 0
    _turned_away: float = 0.0
    _refuses: bool = False
    _way: float = _WAY

    def __post_init__(self) -> None:
        self._window_s = max(_WINDOW_S, _WINDOW_SLOS * self.slo_s)

    def plan(self, planned: float) -> None:
        """Open for another plan, which promises ``planned`` rows a second; if as many as before, nothing changes."""
        if planned == self.planned:
            return
        self.planned, self._gave_up_s = planned, -math.inf
        self._open()

    def is_open(self, now_s: float, rows: float = 1.0) -> bool:
        """Whether a request that comes now is let in; `enter` counts it then. ``rows``: those that it has, about."""
        if self.rate == math.inf:
            return True
        if now_s - self._gave_up_s > self._window_s:
            self._open()
            return True
        gained = self.rate * (now_s - self._reckoned_s)
        self._room, self._reckoned_s = min(self.rate * self._window_s, self._room + gained), now_s
        if self._room <= 0:
            self.refused(rows)
            return False
        return True

    def refused(self, rows: float = 1.0) -> None:
        """Counts a request that was not let in, by the gate or because its queue is full, and so was not read.

        ``rows``: those that it has, about.
        """
        self._turned_away += rows

    def enter(self, rows: int) -> None:
        """Counts rows that were let in."""
        if self.rate != math.inf:
            self._room = max(-self._burst, self._room - rows)

    def way_s(self, limit_s: float) -> float:
        """How much sooner than its deadline a request is to be answered that may take ``limit_s`` in all.

        Where more is asked than can be served, each batch ends as late as its oldest request allows, and clients had
        answers a few milliseconds after the SLO. Another request takes the place of one that is given up, so no less is
        served, if in the last window a twentieth as many were refused as were served. 0 otherwise, and where nothing
        was served because of it.
        """
        return self._way * limit_s if self._refuses else 0.0

    def took(self, rows: int) -> None:
        """Counts rows that are served, or whose clients want no answer any more; fewer than 0: they wait again."""
        self._taken = max(0, self._taken + rows)

    def gave_up(self, now_s: float) -> None:
        """Learns from a request that its queue could not answer within the SLO."""
        if now_s - self._gave_up_s > self._window_s:
            self._open()
            self._begin(now_s)
        elif now_s - self._since_s >= self._window_s:
            if self.rate == math.inf:
                self._room, self._reckoned_s = 0.0, now_s
            if self._refuses and not self._taken:
                self._way = 0.0
            self._refuses = self._turned_away >= _REFUSED * max(1, self._taken)
            served = self._taken / (now_s - self._since_s)
            self.rate = max(self.planned, _LET_IN * served + _LET_IN_ROWS / self.slo_s)
            self._begin(now_s)
        self._gave_up_s = now_s

    def _open(self) -> None:
        self.rate, self._refuses, self._way = math.inf, False, _WAY

    def _begin(self, now_s: float) -> None:
        """Counts anew from now on."""
        self._since_s, self._taken, self._turned_away = now_s, 0, 0.0

    @property
    def _burst(self) -> float:
        return max(1.0, _BURST_SLOS * self.rate * self.slo_s)
