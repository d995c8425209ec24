"""CES, the energy policy that keeps a risk set by the operator. PURE.

How it works
  The operator says how many wake-ups, or missing node-intervals, a day are all right. A bank of rules (shadow_rules.py)
  knows what each rule would have risked lately. Every hour, and after every wake-up, the three rules that let the most
  nodes sleep within the risk are taken, and the average of what they would keep is kept: the best of many by chance is
  not the best tomorrow, and three of different kinds err less than one.

  The risk that a rule may have is the one asked for, times a factor that spends what is left of it: a rule chosen on
  the past is wrong about the future by a factor of two or a half. A policy that has spent less than its budget may risk
  more, and one that has spent more risks less, gently: rules of very little risk cost many nodes.

Where it differs from the paper
  The paper sleeps and wakes by the mean of a forecast [helios §4.3.2, Algorithm 2]; its risk is what comes of it. Here
  forecasts of the *maximum* are signals in the bank beside others, and serve when they have served better.
  docs/energy.md shows why they are off unless asked for, and what it brings to wake nodes by them before they lack.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from farside.scheduler.energy.busy_series import DAY_S, Places
from farside.scheduler.energy.job_arrival import nodes_lacking
from farside.scheduler.energy.policy import Seen, Target
from farside.scheduler.energy.shadow_rules import Bank, Risk
from farside.scheduler.energy.signal import FadingMax, RecentMax
from farside.scheduler.table import Floats

MEMORY_S = tuple(hours * 3600.0 for hours in (1 / 6, 0.5, 1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48))
FADING_S = tuple(hours * 3600.0 for hours in (0, 1, 2, 3, 6, 12, 24, 48))
REVIEW_S = 3600.0
# Until a node that falls asleep now has earned its wake-up.
FORECAST_S = 6 * 3600.0
# Without a day of records no risk is known.
FIRST_DAYS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CesSettings:
    """Settings of CES: the operator's risk, and how to keep it.

    Attributes:
        wakeups_per_day: Wake-ups that are all right; 0.5 where neither this nor the next is given.
        short_nodes_per_day: Node-intervals that jobs may lack. With both given, both are kept.
        half_life_s: Records fade to a half in this time.
        committee: Rules whose average is kept.
        aim: What is aimed at, by what is asked for. Above 1: half an event that was not seen is added to each
            record, so that aiming at 1 reaches less.
        pace_events: Over so many events a surplus or a debt is evened out.
        least, most: Bounds of the factor between the risk a rule may have and the risk asked for.
        forecast: Quantiles of the maximum ahead are signals too.
        forecast_s: How far ahead.
        wake_ahead: Nodes are woken before jobs lack them, when more likely than not they would within ``forecast_s``,
            as long as forecasts have lately been better than persistence.
    """

    wakeups_per_day: float = math.inf
    short_nodes_per_day: float = math.inf
    half_life_s: float = 14 * DAY_S
    committee: int = 3
    aim: float = 1.2
    pace_events: float = 4.0
    least: float = 0.2
    most: float = 1.6
    forecast: bool = False
    forecast_s: float = FORECAST_S
    wake_ahead: bool = False

    def __post_init__(self) -> None:
        if self.wake_ahead and not self.forecast:
            raise ValueError("wake_ahead needs a forecast: set forecast=true as well")
        if not 600 <= self.forecast_s <= 2 * DAY_S:
            raise ValueError("forecast_s must be from 10 min to two days")
        if self.half_life_s < 3600:
            raise ValueError("half_life_s must be at least an hour")
        if self.committee < 1:
            raise ValueError("committee must be at least 1")
        if not 0 < self.pace_events < math.inf:
            raise ValueError("pace_events must be above 0, and finite")
        if not 0 < self.least <= self.most:
            raise ValueError("least must be above 0 and at most most")

    @property
    def risk(self) -> Risk:
        """Risk that the operator set."""
        if math.isinf(self.wakeups_per_day) and math.isinf(self.short_nodes_per_day):
            return Risk(wakeups_per_day=0.5)
        return Risk(wakeups_per_day=self.wakeups_per_day, short_nodes_per_day=self.short_nodes_per_day)


class Forecast(Protocol):
    """Forecasts of what will be busy at most, a row for each interval, known when the interval is over."""

    @property
    def kinds(self) -> int:
        """How many there are, the lowest first: the middle one of what may come."""
        ...

    def row(self, step: int) -> Floats:
        """Nodes, one of each kind; infinite where there is none yet."""
        ...

    def is_proven(self, step: int) -> bool:
        """Whether it has been better than persistence lately, as far as can be known then."""
        ...


@dataclass(slots=True)
class Ces:
    """CES policy. Its budget starts with the first `target`."""

    settings: CesSettings
    step_s: float
    total: float
    forecast: Forecast | None = None
    _bank: Bank = field(init=False)
    _recent: RecentMax = field(init=False)
    _fading: FadingMax = field(init=False)
    _signals: Floats = field(init=False)
    _members: Places = field(init=False)
    _seen: Seen = field(init=False)
    _in_charge: int = 0
    _wakeups: float = 0.0
    _short_nodes: float = 0.0

    def __post_init__(self) -> None:
        self._recent = RecentMax(steps=tuple(max(1, round(memory_s / self.step_s)) for memory_s in MEMORY_S))
        self._fading = FadingMax(half_lives=tuple(life_s / self.step_s for life_s in FADING_S))
        kinds = 0 if self.forecast is None else self.forecast.kinds
        signals = len(MEMORY_S) + len(FADING_S) + kinds
        self._bank = Bank(signals=signals, total=self.total, step_s=self.step_s, half_life_s=self.settings.half_life_s)
        self._members = np.zeros(0, dtype=np.intp)
        self._signals = np.zeros(signals)
        self._seen = Seen(step=-1, active=0, total=self.total)

    @property
    def signals(self) -> int:
        """How many there are, forecasts among them."""
        return self._bank.signals

    def watch(self, seen: Seen) -> None:
        """Plays all rules on."""
        self._recent.watch(seen.active)
        self._fading.watch(seen.active)
        parts = [self._recent.values, self._fading.values]
        if self.forecast is not None:
            parts.append(self.forecast.row(seen.step))
        self._signals = np.concatenate(parts)
        self._bank.watch(seen, self._signals)
        self._seen = seen

    def target(self, powered: float) -> Target:
        """Number of nodes that the committee would keep on; at least the busy ones."""
        seen = self._seen
        short = nodes_lacking(seen.active, powered)
        if short:
            self._wakeups += 1
            self._short_nodes += short
        if short or self._in_charge % max(1, round(REVIEW_S / self.step_s)) == 0:
            self._review()
        self._in_charge += 1
        if not len(self._members):
            return Target(nodes=seen.total, reason="too little is known yet to promise anything")
        # An average of whole numbers may be a rounding error above one, which would cost a node.
        kept = math.ceil(float(self._bank.levels(self._signals, self._members).mean()) - 1e-9)
        level = min(seen.total, max(seen.active, kept))
        if short:
            margin = math.ceil(float(self._bank.margin[self._members].mean()) - 1e-9)
            return Target(nodes=min(seen.total, max(level, seen.active + margin)), reason=f"{short:.0f} nodes short")
        if self.settings.wake_ahead:
            return self._ahead(powered, level)
        return Target(nodes=min(powered, level), reason=f"kept by {len(self._members)} rules within the risk")

    def _ahead(self, powered: float, level: float) -> Target:
        """Wakes what jobs will lack more likely than not, and lets sleep only what they will hardly need.

        Between the two, the lowest quantile and the highest, is a gap; otherwise nodes would go off and on by turns.
        """
        assert self.forecast is not None
        step = self._seen.step
        row = np.floor(self.forecast.row(step) + 0.5)  # trees say 1.04 where it is 1: in a small cluster no other node
        if not (np.isfinite(row).all() and self.forecast.is_proven(step)):
            return Target(nodes=min(powered, level), reason="no forecast is better than none; kept by rules")
        likely, most = float(row[0]), min(self._seen.total, float(row[-1]))
        hours = self.settings.forecast_s / 3600
        if likely > powered:
            self._wakeups += 1
            # Counted against the operator's budget like a wake-up for jobs that lack nodes.
            return Target(nodes=most, reason=f"{likely:.0f} nodes expected within {hours:.3g} h", is_forecast=True)
        reason = f"at most {most:.0f} expected within {hours:.3g} h"
        if level >= most:
            reason = f"kept by {len(self._members)} rules within the risk; {reason}"
        return Target(nodes=min(powered, max(level, most)), reason=reason, is_forecast=most > level)

    def _review(self) -> None:
        """Choose the rules of the committee again."""
        asked = self.settings.risk
        # A risk of 0 is none that a rule which sleeps could keep: without members all nodes stay on.
        if self._bank.days.max() < FIRST_DAYS or not min(asked.wakeups_per_day, asked.short_nodes_per_day):
            self._members = np.zeros(0, dtype=np.intp)
            return
        days = self._in_charge * self.step_s / DAY_S
        usual = max(1.0, self._bank.usual_short_nodes())
        allowed = asked.scaled(
            self._pace(asked.wakeups_per_day * days, self._wakeups, 1.0),
            self._pace(asked.short_nodes_per_day * days, self._short_nodes, usual),
        )
        members = self._bank.best(allowed, self.settings.committee)
        self._members = members if len(members) else self._bank.most_careful()

    def _pace(self, due: float, spent: float, event: float) -> float:
        """The factor on a risk, from what should have been spent of it by now and what was."""
        if math.isinf(due):
            return 1.0
        ahead = self.settings.pace_events * event
        factor = (self.settings.aim * (due + ahead) - spent) / ahead
        return min(self.settings.most, max(self.settings.least, factor))
