"""Tables of `farside sim trace describe`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from rich.table import Table

from farside.cli.figure_table import figure_table
from farside.scheduler.sim.trace.describe import PERCENTILES, Description, Load, Share, Spread

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_BAR = 40  # characters of the longest
_VCS_SHOWN = 20


def tables(found: Description) -> Iterator[Table]:
    """All that is known of a trace, the most important first."""
    yield _overview(found)
    yield _spreads(found)
    yield _shares("by GPUs", "GPUs", found.by_gpus, found)
    if any(share.name for share in found.by_vc):
        more = len(found.by_vc) - _VCS_SHOWN
        title = "by virtual cluster" + (f" (and {more} more)" if more > 0 else "")
        yield _shares(title, "vc", found.by_vc[:_VCS_SHOWN], found)
    # Both cuts of the paper in one table (bins.py).
    bins = [replace(share, name=f"{cut} {share.name}") for cut, shares in found.by_bin for share in shares]
    yield _shares("by bin", "cuts, bin", bins, found)
    yield _hours(found)
    if found.by_day:
        yield _bars("submissions by day", _DAYS, found.by_day)


def _overview(found: Description) -> Table:
    table = Table(show_header=False)
    table.add_row("file", found.path)
    table.add_row("format", found.fmt)
    table.add_row("jobs", f"{found.jobs:,}")
    for count, note in found.notes:
        table.add_row("rows", f"{count:,} {note}")
    if found.skipped:
        table.add_row("rows", f"{found.skipped:,} bad, skipped")
    table.add_row("users", f"{found.users:,}" if found.users else "not known")
    table.add_row("names of jobs", f"{found.names:,}" if found.names else "not known")
    table.add_row("first submission", _time(found, found.first_s))
    table.add_row("last submission", _time(found, found.last_s))
    table.add_row("time between them", _long(found.last_s - found.first_s))
    table.add_row("GPU hours", f"{found.gpu_s / HOUR_S:,.1f}")
    if found.load:
        table.add_row(f"load on {found.load.gpus:,} GPUs", _load(found.load))
    return table


def _load(load: Load) -> str:
    text = "all jobs come at once" if load.offered is None else f"{load.offered:.3f}"
    return text + (f"; {load.too_large:,} jobs are larger than the cluster" if load.too_large else "")


def _time(found: Description, at_s: float) -> str:
    if not found.has_calendar:
        return f"{at_s:,.0f} s"
    return datetime.fromtimestamp(at_s, UTC).strftime("%a %Y-%m-%d %H:%M:%S")


def _spreads(found: Description) -> Table:
    spreads = [("duration", found.duration_s), *([("between submissions", found.gap_s)] if found.gap_s else [])]
    table = figure_table("seconds", *(name for name, _ in spreads))
    names = ("mean", "least", *(f"{percentile} %" for percentile in PERCENTILES), "most")
    for name, *values in zip(names, *(_spread(spread) for _, spread in spreads), strict=True):
        table.add_row(name, *values)
    return table


def _spread(spread: Spread) -> list[str]:
    return [_short(value) for value in (spread.mean, spread.lowest, *spread.percentiles, spread.highest)]


def _shares(title: str, what: str, shares: Iterable[Share], found: Description) -> Table:
    table = figure_table(what, "jobs", "of jobs", "GPU hours", "of GPU time", title=title)
    for share in shares:
        table.add_row(
            share.name or "(none)",
            f"{share.jobs:,}",
            f"{share.jobs / found.jobs:.1%}",
            f"{share.gpu_s / HOUR_S:,.1f}",
            f"{share.gpu_s / found.gpu_s:.1%}" if found.gpu_s else "-",
        )
    return table


def _bars(title: str, names: Iterable[str], counts: tuple[int, ...]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    most = max(counts)
    for name, count in zip(names, counts, strict=True):
        table.add_row(name, f"{count:,}", "#" * round(_BAR * count / most) if most else "")
    return table


def _hours(found: Description) -> Table:
    names = [f"{hour:02}" for hour in range(24)]
    if found.has_calendar:
        return _bars("submissions by hour", names, found.by_hour)
    # Hours that a short trace does not have are no news.
    last = 1 + max(hour for hour, count in enumerate(found.by_hour) if count)
    return _bars("submissions by hour since the trace's 0", names[:last], found.by_hour[:last])


def _long(seconds: float) -> str:
    return f"{seconds / DAY_S:,.1f} days" if seconds >= 2 * DAY_S else f"{seconds / HOUR_S:,.2f} h"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
