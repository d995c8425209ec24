"""Days of a generated log in a real manager with jobs that sleep, beside the same days in the simulator.

What the papers evaluated in a simulator runs live here: QSSF beside FIFO, and virtual clusters that lend. Each day is
played once; ``python -m benchmarks.live_policies`` judges several days, five times each.
"""

from pathlib import Path

from benchmarks.figure import Figure, Table
from benchmarks.live_policies import PARTS, measured

DAYS = {
    "repeating": "A day whose users and names recur, with a kill -9 of the scheduler process",
    "lending": "A day on which virtual clusters lend, with a kill -9 of the scheduler process",
}
NO_LOG = Path("/nonexistent")
"""In place of a real log: a generated one is played."""


def figure(*, is_quick: bool) -> Figure:
    """Both days; ``is_quick``: none, as each takes minutes."""
    tables, notes = [], []
    for name, caption in () if is_quick else DAYS.items():
        record, bars, faults = measured(PARTS[name](NO_LOG), 1, 2)
        header, rows = record["table"]["header"], record["table"]["rows"]
        tables.append(Table(caption=caption, header=tuple(header), rows=tuple(tuple(row) for row in rows)))
        notes += [f"{name}: {bar.name}: {bar.said} ({bar.bar:g})" for bar in bars if not bar.is_met]
        notes += [f"{name}: {fault}" for fault in faults]
    return Figure(
        key="live-days",
        title="QSSF and lending live, beside their simulation",
        source="helios §3.1.3, §4.2 (in a simulator)",
        tables=tuple(tables),
        notes=(
            *(f"Not met: {note}." for note in notes),
            *(("A day takes minutes, and is left out of --quick.",) if is_quick else ()),
        ),
    )
