"""What is measured, in which order, and what of it is still to be done: pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.apps.result import BackEnd, Results, Workload, cell_key, retreat_key

LEVELS_PCT = (100, 75, 50)
WINDOWS = 3  # of which the median is taken
# In one window of a cell, at each level: three to ten seconds. Operations, not seconds: the programs' random choices
# are the same each time, so every back end pages for the same ones, on the same data. What pages faster would else go
# on to more data, order entry's most of all, and be slower for it.
OPERATIONS = {
    Workload.ETC: {100: 8_000, 75: 2_500, 50: 1_500},
    Workload.SYS: {100: 8_000, 75: 2_500, 50: 1_500},
    Workload.ORDERS: {100: 2_000, 75: 400, 50: 150},
    Workload.PAGERANK: {100: 320, 75: 40, 50: 40},
}
# Of failures, evictions and retreating donors:
WINDOW_S = 4.0
SETTLE_S = 2.0  # a window that is not kept, after each change of the limit
# First what is judged by: ours beside the disk and beside nbdX's way.
BACK_ENDS = (
    BackEnd.DISK,
    BackEnd.TCP,
    BackEnd.NBDKIT,
    BackEnd.AHEAD,
    BackEnd.RXE,
    BackEnd.NVME,
    BackEnd.SLOW,
    BackEnd.CLEAR,
)
SLOW_DISKS = (BackEnd.DISK, BackEnd.SLOW)  # under these the guest's disk is a hard disk
RETREATING = (Workload.ETC, Workload.SYS)
UPSETS = "upsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTask:
    """Cells of one back end, which share a pair of guests."""

    back_end: BackEnd
    workloads: tuple[Workload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsetTask:
    """Failures and evictions under one workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetreatTask:
    """One column of Table 2.1."""

    workload: Workload
    is_lending: bool


Task = CellTask | UpsetTask | RetreatTask


def tasks(done: Results, *, back_ends: Sequence[BackEnd], workloads: Sequence[Workload], events: bool) -> list[Task]:
    """What is not in ``done`` yet, in the order of measuring. What was tried in vain counts as done."""
    found: list[Task] = []
    for back_end in BACK_ENDS:
        missing = tuple(w for w in Workload if w in workloads and cell_key(w, back_end) not in done.cells)
        if back_end in back_ends and missing:
            found.append(CellTask(back_end=back_end, workloads=missing))
    if events:
        found += _events(done)
    return found


def _events(done: Results) -> Iterator[Task]:
    if done.upsets is None:
        yield UpsetTask()
    for workload in RETREATING:
        for is_lending in (False, True):
            if retreat_key(workload, is_lending=is_lending) not in done.retreats:
                yield RetreatTask(workload=workload, is_lending=is_lending)


def without_troubled(done: Results) -> Results:
    """The same without what was tried in vain, so that it is tried again."""
    return Results(
        commit=done.commit,
        machine=done.machine,
        accelerator=done.accelerator,
        cells={key: cell for key, cell in done.cells.items() if not cell.trouble},
        upsets=None if done.upsets is None or done.upsets.trouble else done.upsets,
        retreats={key: retreat for key, retreat in done.retreats.items() if not retreat.trouble},
    )
