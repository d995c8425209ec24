"""Table 3.5: how long jobs wait, on the testbed."""

from collections.abc import Sequence

import numpy as np

from benchmarks.figure import Figure, Row, Table
from benchmarks.policy_runs import over
from benchmarks.tiresias_testbed import ALL, measured
from farside.scheduler.sim.result.figures import Results

PAPER = {
    "YARN-CS": ("8146", "7464", "15327"),
    "SRTF": ("593", "32", "3133"),
    "Tiresias-G": ("1005", "39", "7933"),
    "Tiresias-L": ("963", "13", "7755"),
}


def figure(*, seeds: Sequence[int]) -> Figure:
    """Average, median and 95th percentile of the queueing delay, of all jobs and of those with several GPUs."""
    found = measured(tuple(seeds))
    return Figure(
        key="queueing",
        title="Queueing delays on the testbed, seconds",
        source="tiresias Table 3.5, §3.5.2.3",
        tables=(_table("All jobs", found, 1), _table("Jobs of several GPUs", found, 2)),
        notes=(
            "The table's caption says DDL jobs, its text all jobs: both are here. Waiting again after a preemption"
            " counts. Medians of the draws, spans in brackets.",
            "In ours a job that finds free GPUs starts in the same instant: half of all do, hence medians of 0. On the"
            " paper's machines that took 13 to 39 s in the median, and it does not say what of it is waiting.",
        ),
    )


def _table(caption: str, found: Sequence[Sequence[Results]], least_gpus: int) -> Table:
    rows: list[Row] = []
    for play, results in zip(ALL, found, strict=True):
        waits_s = [one.queue_s[one.gpus >= least_gpus] for one in results]
        columns = (
            [float(np.mean(one)) for one in waits_s],
            [float(np.median(one)) for one in waits_s],
            [float(np.percentile(one, 95)) for one in waits_s],
        )
        cells = [cell for at, values in enumerate(columns) for cell in (over(values, ".0f"), PAPER[play.label][at])]
        rows.append((play.label, *cells))
    return Table(caption=caption, header=("", "average", "paper", "median", "paper", "95th", "paper"), rows=tuple(rows))
