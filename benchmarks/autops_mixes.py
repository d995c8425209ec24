"""Mixes of jobs on shared Aggregators: Pseudocode 3 as printed, corrected, and with longer cycles. Pure."""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.figure import Figure, Table
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement
from farside.scheduler.sharing.aggregation.printed import PrintedPlacement
from farside.scheduler.sim.aggregation.drawn import JOBS, drawn_mix

LOSS_LIMIT = 0.1
ROUNDING = 1e-9


def _limits(multiple: int) -> Limits:
    return Limits(loss_limit=LOSS_LIMIT, cycle_multiple=multiple, period_tolerance=0.0)


RULES: Mapping[str, Callable[[], Placement]] = {
    "printed": lambda: PrintedPlacement(_limits(1)),
    "corrected": lambda: Placement(_limits(1)),
    "cycles of 2": lambda: Placement(_limits(2)),
    "cycles of 4": lambda: Placement(_limits(4)),
    "cycles of 10": lambda: Placement(_limits(10)),
}


@dataclass(slots=True)
class Tally:
    """What came of the mixes under one rule."""

    aggregators: list[int]
    at_limit: list[int]
    overloaded: int = 0
    most_load: float = 0.0
    most_loss: float = 0.0
    exits: int = 0
    bad_exits: int = 0


def tally(make: Callable[[], Placement], mixes: int) -> Tally:
    """Places all mixes, and lets their jobs leave one by one."""
    found = Tally([], [])
    for seed in range(mixes):
        jobs, placement = drawn_mix(random.Random(seed)), make()
        for job in jobs:
            assert placement.add(job) is None
        losses, load = placement.losses(), max(placement.loads().values())
        found.aggregators.append(len(placement.aggregators))
        found.at_limit.append(sum(loss >= LOSS_LIMIT for loss in losses.values()))
        found.overloaded += load > 1 + ROUNDING
        found.most_load = max(found.most_load, load)
        found.most_loss = max(found.most_loss, *losses.values())
        for job in jobs:
            fine = {name for name, loss in placement.losses().items() if loss < LOSS_LIMIT}
            placement.remove(job.job)
            after = placement.losses()
            found.exits += 1
            found.bad_exits += any(after[name] >= LOSS_LIMIT for name in fine & after.keys())
            placement.recycle()
    return found


def figure(*, mixes: int) -> Figure:
    """Aggregators, overload and loss by rule."""
    rows = tuple(_row(name, tally(make, mixes), mixes) for name, make in RULES.items())
    return Figure(
        key="autops-mixes",
        title=f"{mixes} mixes of {JOBS} jobs on shared Aggregators",
        source="autops §4.3.3.2, Pseudocode 3",
        tables=(
            Table(
                caption="By rule",
                header=(
                    "rule", "Aggregators", "mixes overloaded", "most load", "jobs at the limit", "most loss",
                    "exits that break it",
                ),
                rows=rows,
            ),
        ),
        notes=(
            "Jobs are drawn: an iteration of 0.08 to 1.2 s, 10 to 60 % of one core, 16 to 160 tensors, the largest "
            "with most of the work. An Aggregator has one core. The limit is a loss of 10 % of speed.",
            "Exits that break it: shares of all exits after which a job loses the limit or more that did not before.",
            "The text has no figures of its rule by itself.",
        ),
    )  # fmt: skip


def _row(name: str, found: Tally, mixes: int) -> tuple[str, ...]:
    return (
        name,
        f"{statistics.mean(found.aggregators):.2f}",
        f"{100 * found.overloaded / mixes:.0f} %",
        f"{found.most_load:.2f}",
        f"{statistics.mean(found.at_limit):.1f} of {JOBS}",
        f"{100 * found.most_loss:.1f} %",
        f"{100 * found.bad_exits / found.exits:.1f} %",
    )
