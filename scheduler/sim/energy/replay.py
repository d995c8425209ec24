"""Replay of an energy policy on a series of busy nodes, and its results. PURE.

The series is what jobs needed. Nodes that are missing are woken in the same interval and serve after their boot time,
from the next interval on at the earliest; until then the jobs there wait, and the interval is short. Nodes fall asleep
at the end of an interval, only idle ones that are not booting. A wake-up is an interval in which any node is woken.
Nodes that join the cluster come awake.
"""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.policy import EnergyPolicy, Seen
from farside.scheduler.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Played intervals: nodes on or booting, nodes that jobs lacked, nodes woken."""

    step_s: float
    active: Floats
    total: Floats
    powered: Floats
    short: Floats
    woken: Floats
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Averages over a replay, in the terms of [helios Table 5].

    Attributes:
        days: How long it was.
        sleeping_nodes: Nodes asleep, on average.
        wakeups_per_day: How often nodes were woken.
        nodes_per_wakeup: How many at a time.
        utilisation_before: Busy nodes by all nodes.
        utilisation_after: Busy nodes by nodes that are on.
        short_intervals: Intervals in which jobs lacked nodes.
        short_nodes: Node-intervals that jobs lacked.
        delayed_node_s: Time that wanted nodes were not there, node-seconds; until a boot is over.
    """

    days: float
    sleeping_nodes: float
    wakeups_per_day: float
    nodes_per_wakeup: float
    utilisation_before: float
    utilisation_after: float
    short_intervals: int
    short_nodes: float
    delayed_node_s: float


def play(policy: EnergyPolicy, series: NodeSeries, begin: int, end: int, *, boot_s: float = 300.0) -> Played:
    """Run a policy from interval ``begin`` to before ``end``; it has watched the whole series before."""
    boot_steps = max(1, int(np.ceil(boot_s / series.step_s)))
    count = max(0, end - begin)
    powered_at, short_at, woken_at = np.zeros(count), np.zeros(count), np.zeros(count)
    reasons: list[str] = []
    asleep = 0.0
    booting: list[tuple[int, float]] = []  # (first interval in which they serve, nodes)
    active, total = series.active.tolist(), series.total.tolist()
    for step in range(end):
        policy.watch(Seen(step=step, active=active[step], total=total[step]))
        if step < begin:
            continue
        asleep = min(asleep, total[step])
        booting = [one for one in booting if one[0] > step]
        powered = total[step] - asleep
        boots = min(powered, sum(nodes for _, nodes in booting))
        short = max(0.0, active[step] - (powered - boots))
        target = policy.target(powered)
        # Neither nodes that boot nor those in use can be put to sleep.
        least = max(active[step], boots + active[step] - short)
        after = min(total[step], max(least, target.nodes))
        at = step - begin
        if after > powered:
            woken_at[at] = after - powered
            booting.append((step + boot_steps, after - powered))
        powered_at[at], short_at[at] = max(powered, after), short
        asleep = total[step] - after
        reasons.append(target.reason)
    window = slice(begin, max(begin, end))
    return Played(
        step_s=series.step_s,
        active=series.active[window],
        total=series.total[window],
        powered=powered_at,
        short=short_at,
        woken=woken_at,
        reasons=tuple(reasons),
    )


def figures(played: Played, *, boot_s: float = 300.0) -> Figures:
    """Figures of a replay.

    Raises:
        ValueError: It has no interval.
    """
    count = len(played.active)
    if not count:
        raise ValueError("there is nothing between the two times")
    days = count * played.step_s / 86400.0
    wakeups = int((played.woken > 0).sum())
    return Figures(
        days=days,
        sleeping_nodes=float((played.total - played.powered).mean()),
        wakeups_per_day=wakeups / days,
        nodes_per_wakeup=float(played.woken.sum() / wakeups) if wakeups else 0.0,
        utilisation_before=float(played.active.sum() / played.total.sum()),
        utilisation_after=float(played.active.sum() / played.powered.sum()),
        short_intervals=int((played.short > 0).sum()),
        short_nodes=float(played.short.sum()),
        delayed_node_s=float(played.short.sum() * min(boot_s, played.step_s)),
    )
