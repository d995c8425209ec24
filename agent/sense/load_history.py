"""How busy tasks' own GPUs were over time, so that a manager may see which are not used. PURE.

Of each task the load of its busiest GPU is kept as its last peaks: each sample drops those that it reaches. So the last
time at which it was as busy as any percentage is known for as long as the task was watched, in at most `LOAD_PCT_MAX`
numbers. A manager that comes anew, or another one, gets all of it with the next report.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from farside.agent import messages as m
from farside.agent.run.ledger import Key

GpuT = TypeVar("GpuT", bound=Hashable)

GAP_S = 10.0
"""Between two samples that lie further apart nobody knows the load: the task is watched anew from then on."""


@dataclass(slots=True)
class _Watch:
    since_s: float
    last_s: float
    peaks: list[tuple[int, float]] = field(default_factory=list)  # percent and when, each lower and later

    def note(self, pct: int, at_s: float) -> None:
        self.last_s = at_s
        while self.peaks and self.peaks[-1][0] <= pct:
            self.peaks.pop()
        if pct:
            self.peaks.append((pct, at_s))


class LoadHistory:
    """The load of all tasks of a node. Times are seconds of a clock that only grows."""

    def __init__(self) -> None:
        self._watches: dict[Key, _Watch] = {}

    def sample(self, held: Mapping[Key, Sequence[GpuT]], busy_pct: Mapping[GpuT, float], at_s: float) -> None:
        """Takes how busy GPUs are now, as far as that is known; ``held``: by task that runs, the GPUs that are its own.

        Tasks that are not in ``held`` are forgotten.
        """
        before, self._watches = self._watches, {}
        for key, gpus in held.items():
            watch = before.get(key)
            if watch is not None and at_s - watch.last_s > GAP_S:
                watch = None
            if gpus and all(gpu in busy_pct for gpu in gpus):
                watch = watch or _Watch(since_s=at_s, last_s=at_s)
                # Rounded down, as a load is compared with whole percents: 4.9 is below 5, and 5.0 is not.
                watch.note(min(m.LOAD_PCT_MAX, int(max(busy_pct[gpu] for gpu in gpus))), at_s)
            if watch is not None:
                self._watches[key] = watch

    def loads(self, at_s: float) -> tuple[m.TaskLoad, ...]:
        """What is known now; nothing of a task whose newest sample is older than `GAP_S`."""
        found = (
            m.TaskLoad(
                task_id=task_id,
                start=start,
                age_s=max(0.0, at_s - watch.last_s),
                watched_s=watch.last_s - watch.since_s,
                peaks=tuple((pct, watch.last_s - peak_s) for pct, peak_s in watch.peaks),
            )
            for (task_id, start), watch in self._watches.items()
            if at_s - watch.last_s <= GAP_S
        )
        return tuple(found)[: m.GPUS_MAX]
