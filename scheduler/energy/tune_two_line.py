"""The two-line rule, tuned on the past to a risk: the baseline for CES. PURE."""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.ces import MEMORY_S
from farside.scheduler.energy.policy import Seen
from farside.scheduler.energy.shadow_rules import Bank, Risk
from farside.scheduler.energy.signal import RecentMax


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The rule under which the most nodes slept, of those that kept within a risk."""

    buffer_nodes: int
    keep_s: float
    wakeups_per_day: float
    short_nodes_per_day: float
    sleeping_nodes: float


def tuned_rule(series: NodeSeries, end: int, risk: Risk) -> Tuned:
    """Tries all memories and buffers on the intervals before ``end``.

    Raises:
        ValueError: There is not a day of them.
    """
    recent = RecentMax(steps=tuple(max(1, round(memory_s / series.step_s)) for memory_s in MEMORY_S))
    bank = Bank(signals=len(MEMORY_S), total=float(series.total[0]), step_s=series.step_s, half_life_s=np.inf)
    for step in range(end):
        active = float(series.active[step])
        recent.watch(active)
        bank.watch(Seen(step=step, active=active, total=float(series.total[step])), recent.values)
    if bank.days.max() < 1:
        raise ValueError("a rule is tuned on at least a day and a half before --from")
    # The two-line rule has no margin.
    within = (bank.margin == 0) & (bank.wakeups_per_day <= risk.wakeups_per_day)
    within &= bank.short_nodes_per_day <= risk.short_nodes_per_day
    best = int(np.argmax(np.where(within, bank.asleep, -1.0)))
    if not within[best]:
        best = int(bank.most_careful()[0])
    return Tuned(
        buffer_nodes=int(bank.buffer[best]),
        keep_s=MEMORY_S[bank.signal[best]],
        wakeups_per_day=float(bank.wakeups_per_day[best]),
        short_nodes_per_day=float(bank.short_nodes_per_day[best]),
        sleeping_nodes=float(bank.asleep[best]),
    )
