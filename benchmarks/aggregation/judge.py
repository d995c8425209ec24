"""From samples to medians, ratios and verdicts. PURE."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.aggregation.plan import BUSY_SHARE, PS_LITE, REGISTERED, ROUND_TRIP_US, Bar
from benchmarks.figure import Table

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One system's exchanges of one workload in one round.

    ``step_s``, ``cpu_s``: of one exchange, the latter of all the system's processes. ``other_share``: of the machine's
    processors, what everything else had meanwhile.
    """

    round: int
    workload: str
    system: str
    size_bytes: int
    step_s: float
    cpu_s: float
    other_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def text(self, decimals: int = 2) -> str:
        return f"{self.median:.{decimals}f} ({self.low:.{decimals}f} to {self.high:.{decimals}f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A bar, and how ours did. ``speed``, ``cpu``: ratios within a round, ours to the peer's."""

    bar: Bar
    speed: Spread
    cpu: Spread
    other_share: float

    @property
    def is_busy(self) -> bool:
        """Whether CPU time decides, as other work had most of the machine."""
        return self.other_share > BUSY_SHARE

    @property
    def is_met(self) -> bool:
        """By speed on a quiet machine, where a bar of CPU time that the project has set must hold as well."""
        is_cheap = self.cpu.median <= self.bar.cpu
        if self.is_busy:
            return is_cheap
        return self.speed.median >= self.bar.speed and (self.bar.cpu_bar is None or is_cheap)


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(median=values[0], low=values[0], high=values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=middle, low=low, high=high)


def of(samples: Sequence[Sample], system: str, workload: str) -> dict[int, Sample]:
    """A system's samples of a workload by round."""
    return {one.round: one for one in samples if one.system == system and one.workload == workload}


def judged(samples: Sequence[Sample], bar: Bar) -> Verdict | None:
    """The verdict over the rounds that both have; None: there is none."""
    ours, theirs = of(samples, bar.ours, bar.workload), of(samples, bar.peer, bar.workload)
    pairs = [(ours[at], theirs[at]) for at in sorted(ours.keys() & theirs.keys())]
    if not pairs:
        return None
    return Verdict(
        bar=bar,
        speed=spread([their.step_s / our.step_s for our, their in pairs]),
        cpu=spread([our.cpu_s / their.cpu_s for our, their in pairs]),
        other_share=statistics.median([one.other_share for pair in pairs for one in pair]),
    )


def verdicts(samples: Sequence[Sample], bars: Sequence[Bar]) -> list[Verdict]:
    """Verdicts on all bars for which there are samples."""
    return [found for found in (judged(samples, bar) for bar in bars) if found]


def bars_table(samples: Sequence[Sample], bars: Sequence[Bar]) -> Table:
    """A row a bar."""
    rows = [_bar_row(one) for one in verdicts(samples, bars)]
    rows += list(_round_trip_rows(samples))
    return Table(
        caption="ours beside its peers: medians of ratios within a round, with quartiles",
        header=("ours", "peer", "exchanged", "speed", "at least", "CPU time", "at most", "other work", "judge", "met"),
        rows=tuple(rows),
    )


def _bar_row(one: Verdict) -> tuple[str, ...]:
    bar = one.bar
    judge = "CPU" if one.is_busy else "speed" if bar.cpu_bar is None else "both"
    return (
        bar.ours, bar.peer, bar.workload, one.speed.text(), f"{bar.speed:g}", one.cpu.text(), f"{bar.cpu:.2g}",
        f"{one.other_share:.0%}", judge, "yes" if one.is_met else "no",
    )  # fmt: skip


def _round_trip_rows(samples: Sequence[Sample]) -> Iterator[tuple[str, ...]]:
    found = list(of(samples, REGISTERED, "4 KB").values())
    if found:
        trip_us = spread([one.step_s * 1e6 for one in found])
        other = statistics.median([one.other_share for one in found])
        met = "yes" if trip_us.median < ROUND_TRIP_US else "no"
        yield (
            REGISTERED, "-", "4 KB", f"{trip_us.text(0)} us", f"below {ROUND_TRIP_US:.0f} us", "-", "-",
            f"{other:.0%}", "speed", met,
        )  # fmt: skip


def speed_table(samples: Sequence[Sample], systems: Sequence[str], names: Sequence[str]) -> Table:
    """GB/s pushed by each member; of the smallest exchange, microseconds."""
    return _table(samples, systems, names, "GB/s pushed by each member, median and quartiles", _speed_text)


def cpu_table(samples: Sequence[Sample], systems: Sequence[str], names: Sequence[str]) -> Table:
    """CPU seconds of all processes for each GB."""
    return _table(samples, systems, names, "CPU seconds of all processes a GB, median and quartiles", _cpu_text)


def _table(
    samples: Sequence[Sample],
    systems: Sequence[str],
    names: Sequence[str],
    caption: str,
    text: Callable[[Sequence[Sample]], str],
) -> Table:
    rows = []
    for system in systems:
        cells = [list(of(samples, system, name).values()) for name in names]
        if any(cells):
            rows.append((system, *(text(found) if found else "-" for found in cells)))
    return Table(caption=caption, header=("system", *names), rows=tuple(rows))


def _speed_text(found: Sequence[Sample]) -> str:
    speed = spread([one.size_bytes / one.step_s / GB for one in found])
    text = speed.text(2 if speed.median >= 0.1 else 3)
    if found[0].size_bytes < 1 << 20:
        text += f", {statistics.median([one.step_s for one in found]) * 1e6:.0f} us"
    return text


def _cpu_text(found: Sequence[Sample]) -> str:
    return spread([one.cpu_s / one.size_bytes * GB for one in found]).text()


def other_share(busy_s: float, ours_s: float, wall_s: float, cores: int) -> float:
    """What other work had of the machine: 0 to 1."""
    return min(1.0, max(0.0, (busy_s - ours_s) / (wall_s * cores)))


def busy_s(stat: str, ticks_per_s: int) -> float:
    """CPU seconds that have not been idle since the start, from the text of /proc/stat."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, interrupt, soft, steal = fields
    return (user + nice + system + interrupt + soft + steal) / ticks_per_s


def steps_table(found: Mapping[tuple[str, str], Sequence[float]], peer: str = PS_LITE) -> Table:
    """Table of timer jobs: iterations a second by (model, system), each a list by round."""
    rows = []
    for (model, system), rates in found.items():
        theirs = found.get((model, peer), ())
        ratio = spread([one / other for one, other in zip(rates, theirs, strict=False)]).text() if theirs else "-"
        rows.append((model, system, spread(rates).text(), ratio))
    return Table(
        caption="iterations a second of jobs that compute by a timer",
        header=("model", "system", "iterations a second", f"to {peer}'s"),
        rows=tuple(rows),
    )
