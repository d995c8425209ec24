"""Medians, ratios and losses of what was measured: pure. What was not measured is None, never a figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.apps.result import BackEnd, Cell, Results, Upset, Window, Workload, cell_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Medians over the windows of one level; CPU seconds are their sum."""

    per_s: float
    p50_us: float
    p99_us: float
    page_ins_per_s: float
    donor_busy_s: float
    donor_program_s: float | None
    pages: int  # that went out or came in
    seconds: float


def summary(windows: Sequence[Window]) -> Summary | None:
    """Of these windows; None of none."""
    if not windows:
        return None
    programs = [w.donor_program_s for w in windows if w.donor_program_s is not None]
    return Summary(
        per_s=median(w.per_s for w in windows),
        p50_us=median(w.p50_us for w in windows),
        p99_us=median(w.p99_us for w in windows),
        page_ins_per_s=median(w.page_ins / w.seconds for w in windows),
        donor_busy_s=sum(w.donor_busy_s for w in windows),
        donor_program_s=sum(programs) if len(programs) == len(windows) else None,
        pages=sum(w.page_ins + w.page_outs for w in windows),
        seconds=sum(w.seconds for w in windows),
    )


def at(results: Results, workload: Workload, back_end: BackEnd, percent: int) -> Summary | None:
    """One level of one cell, None where it was not measured."""
    found = results.cells.get(cell_key(workload, back_end))
    level = found.level(percent) if found else None
    return summary(level.windows) if level else None


def above_idle(level: Summary, idle: Summary, of: Callable[[Summary], float | None]) -> float | None:
    """What ``of`` tells of a level above what it tells, for as long, of one where nothing pages; at least 0."""
    some, none = of(level), of(idle)
    return None if some is None or none is None else max(0.0, some - none / idle.seconds * level.seconds)


def slower(cell: Cell, percent: int) -> float | None:
    """How many times less the workload does at that level than where all of it fits."""
    full, level = cell.level(100), cell.level(percent)
    if full is None or level is None:
        return None
    all_of_it, some = summary(full.windows), summary(level.windows)
    return all_of_it.per_s / some.per_s if all_of_it and some else None


def throughput_gain(results: Results, workload: Workload, ours: BackEnd, theirs: BackEnd, percent: int) -> float | None:
    """Our throughput over theirs."""
    one, other = at(results, workload, ours, percent), at(results, workload, theirs, percent)
    return one.per_s / other.per_s if one and other else None


def p99_gain(results: Results, workload: Workload, ours: BackEnd, theirs: BackEnd, percent: int) -> float | None:
    """Their 99th percentile over ours: above 1 is better for us."""
    one, other = at(results, workload, ours, percent), at(results, workload, theirs, percent)
    return other.p99_us / one.p99_us if one and other else None


def loss_pct(upset: Upset) -> float:
    """Share of the throughput before that is missing over the windows after; negative where it rose."""
    before = sum(w.operations for w in upset.before) / sum(w.seconds for w in upset.before)
    after = sum(w.operations for w in upset.after) / sum(w.seconds for w in upset.after)
    return 100 * (1 - after / before)


def event_loss_pct(kind: str, upsets: Sequence[Upset]) -> float | None:
    """The kind's loss: the mean of its events; of evictions, each slab's."""
    if not upsets:
        return None
    if kind == "evictions":
        slabs = sum(upset.recalled_slabs for upset in upsets)
        return mean(loss_pct(upset) for upset in upsets) / slabs * len(upsets) if slabs else None
    return mean(loss_pct(upset) for upset in upsets)
