"""Simple sleep rules that run in the shadow, so that the risk of each is known. PURE.

How it works
  A member keeps a signal's value and a buffer, and wakes to at least a margin above what is busy. Members differ in the
  signal, the buffer and the margin. Every interval each of them is played on: whether it would have had to wake nodes,
  how many would have been missing, how many would have slept. The sums fade with a half-life, so they say what each
  member has cost *lately*. Nothing is fitted, and nothing of the future is seen.

  A member's risk a day is an estimate from few events. Half an event is added to what was seen: a member that never
  lacked nodes in a short past has not shown that it never will.
"""

from dataclasses import dataclass, field

import numpy as np

from farside.scheduler.energy.busy_series import Places
from farside.scheduler.energy.policy import Seen
from farside.scheduler.table import Floats

# Buffers are tried as shares of all nodes; close together where they are small. 0.24 is 100 of Philly's 420 nodes.
BUFFER_SHARES = (
    0, .0024, .0048, .0071, .0095, .012, .0143, .019, .0238, .0286, .0333, .0381, .0429, .0476, .0524, .0595,
    .0667, .0738, .081, .0905, .1, .1095, .119, .131, .1429, .1571, .1714, .1905, .2143, .2381,
)  # fmt: skip
# Above what is busy when nodes have to be woken anyway: none, or a tenth of the cluster against the next wake-up.
MARGIN_SHARES = (0.0, 0.1)
UNSEEN_EVENTS = 0.5
# So long after the start the sums begin: a signal's memory must fill first.
SETTLING_S = 12 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Risk in a day; infinite: no limit."""

    wakeups_per_day: float = np.inf
    short_nodes_per_day: float = np.inf

    def scaled(self, wakeups: float, short_nodes: float) -> "Risk":
        """This risk, each part multiplied by a factor."""
        return Risk(
            wakeups_per_day=self.wakeups_per_day * wakeups, short_nodes_per_day=self.short_nodes_per_day * short_nodes
        )


@dataclass(slots=True)
class Bank:
    """The members and their records. ``signals``: how many signals there are; ``total``: nodes at the start."""

    signals: int
    total: float
    step_s: float
    half_life_s: float
    buffer: Floats = field(init=False)
    margin: Floats = field(init=False)
    signal: Places = field(init=False)
    _asleep: Floats = field(init=False)
    _sums: Floats = field(init=False)
    _seen: int = 0
    _share: float = field(init=False)

    def __post_init__(self) -> None:
        buffers = np.unique(np.round(np.array(BUFFER_SHARES) * self.total))
        # The buffer varies fastest, then the signal, then the margin: `best` cuts the members into groups of one signal
        # and margin by this order.
        self.buffer = np.tile(buffers, self.signals * len(MARGIN_SHARES))
        self.margin = np.repeat(np.round(np.array(MARGIN_SHARES) * self.total), self.signals * len(buffers))
        self.signal = np.tile(np.repeat(np.arange(self.signals), len(buffers)), len(MARGIN_SHARES))
        self._asleep = np.zeros(len(self.buffer))
        # Rows: nodes asleep, wake-ups, nodes short, and the weight of the intervals that count.
        self._sums = np.zeros((4, len(self.buffer)))
        self._share = 0.5 ** (self.step_s / self.half_life_s)

    @property
    def groups(self) -> int:
        """Groups of members with equal signal and margin, one member for each buffer."""
        return self.signals * len(MARGIN_SHARES)

    @property
    def days(self) -> Floats:
        """Length of each record in days, faded days counted by their remaining weight; above 0."""
        return np.asarray(np.maximum(self._sums[3], 1e-9) * self.step_s / 86400.0)

    @property
    def asleep(self) -> Floats:
        """Nodes that slept on average, by member."""
        return np.asarray(self._sums[0] / np.maximum(self._sums[3], 1e-9))

    @property
    def wakeups_per_day(self) -> Floats:
        """What members would have needed, as seen."""
        return np.asarray(self._sums[1] / self.days)

    @property
    def short_nodes_per_day(self) -> Floats:
        """Node-intervals that would have lacked under members, as seen."""
        return np.asarray(self._sums[2] / self.days)

    def levels(self, signals: Floats, members: Places) -> Floats:
        """What these members would keep, given the signals' values."""
        kept: Floats = signals[self.signal[members]] + self.buffer[members]
        return kept

    def watch(self, seen: Seen, signals: Floats) -> None:
        """Plays every member through one more interval."""
        powered = seen.total - self._asleep
        level = np.minimum(seen.total, np.maximum(signals[self.signal] + self.buffer, seen.active))
        is_short = seen.active > powered
        woken = np.minimum(seen.total, np.maximum(level, seen.active + self.margin))
        after = np.where(is_short, woken, np.minimum(powered, level))
        self._seen += 1
        if self._seen * self.step_s > SETTLING_S:
            self._sums *= self._share
            self._sums[0] += seen.total - np.maximum(powered, after)
            self._sums[1] += is_short
            self._sums[2] += np.where(is_short, seen.active - powered, 0.0)
            self._sums[3] += np.isfinite(signals[self.signal])  # a forecast may come later than the others
        self._asleep = seen.total - after

    def best(self, risk: Risk, count: int) -> Places:
        """The members under which most nodes slept, one a group, of those that kept within a risk; empty: none did."""
        wakeups = self.wakeups_per_day + UNSEEN_EVENTS / self.days
        short_nodes = self.short_nodes_per_day + UNSEEN_EVENTS * self.usual_short_nodes() / self.days
        within = (wakeups <= risk.wakeups_per_day) & (short_nodes <= risk.short_nodes_per_day)
        asleep = np.where(within, self.asleep, -1.0).reshape(self.groups, -1)
        best = asleep.argmax(axis=1)
        found = asleep[np.arange(self.groups), best]
        # Stable, so that of equal members the same ones are taken on every machine.
        order = np.argsort(-found, kind="stable")[:count]
        order = order[found[order] >= 0]
        return np.asarray(order * asleep.shape[1] + best[order])

    def most_careful(self) -> Places:
        """The member that kept most nodes on, among those with the fewest wake-ups."""
        known = self.days >= self.days.max() / 2
        caught = np.where(known, self.wakeups_per_day, np.inf)
        rarest = np.flatnonzero(caught <= caught.min() + 1e-9)
        return np.asarray(rarest[[np.argmin(self.asleep[rarest])]])

    def usual_short_nodes(self) -> float:
        """Nodes that lack when any do, over all members."""
        return float(self._sums[2].sum() / max(self._sums[1].sum(), 1.0))
