"""QSSF where users repeat themselves, and where they don't: against FIFO, SJF and SRTF, by what it goes by."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from benchmarks.figure import Figure, Row, Table
from benchmarks.qssf_floor import RecipeEstimator, load_of
from benchmarks.qssf_runs import GPUS_PER_NODE, NODES, Lesson, Take, average_with, lesson, outcomes
from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.workload.catalog import WORKLOADS

FIFO, SJF, SRTF = Take(label="FIFO", policy="fifo"), Take(label="SJF", policy="sjf"), Take(label="SRTF", policy="srtf")


def qssf(estimator: str, label: str, *more: tuple[str, str]) -> Take:
    """QSSF by an estimator."""
    return Take(label=label, policy="qssf", settings=(("estimator", estimator), *more))


MODEL = qssf("model", "QSSF, best of all")
UNGUARDED = qssf("model", "the same, no guard", ("patience_s", "inf"))
ROLLING = qssf("rolling", "QSSF, rolling")
GPUS = qssf("gpus", "QSSF, GPUs alone")
TAKES = (FIFO, SJF, SRTF, MODEL, UNGUARDED, ROLLING, GPUS)


def figure(*, jobs: int, seeds: Sequence[int]) -> Figure:
    """Two tables: names recur, and no name comes twice."""
    repeating = [lesson(jobs, seed) for seed in seeds]
    single = [lesson(jobs, seed, repeats=0.0) for seed in seeds]
    return Figure(
        key="qssf-repeating",
        title="QSSF on made traces, the newer half of the jobs run after the older one was learned from",
        source="helios §4.2.3; the traces are ours (farside sim trace generate repeating)",
        tables=(
            _with_floor(repeating, "Users repeat themselves: 60 % of jobs have a name that recurs"),
            _table("They don't: every name comes once", single, (FIFO, SJF, MODEL, GPUS), GPUS)[0],
        ),
        notes=(
            f"{jobs:,} jobs of 200 users on 128 GPUs, load 0.9, seeds {', '.join(map(str, seeds))}; ratios are"
            " means, with their span, the rest medians. All runs go on until the last job has ended.",
            "The recipe: QSSF by one who knows how the trace was made and learns each name's mean as jobs end; a"
            " yardstick, no bound. 40 % of all jobs have a name that comes once.",
            "Load of the halves that are run: "
            + ", ".join(f"{load_of(one, NODES * GPUS_PER_NODE):.2f}" for one in repeating)
            + ".",
            "To reach: QSSF within 10 % of SJF where users repeat themselves; where not, at most 3 % worse than by the"
            " number of GPUs alone.",
            "Worth: of the queueing that the true order would save over chance, the share that this order does.",
        ),
    )


def draws(pairs: Sequence[tuple[int, int]]) -> Figure:
    """A row a draw, of so many jobs by such a seed: average JCT over SJF's."""
    rows: list[Row] = []
    for jobs, seed in pairs:
        one = lesson(jobs, seed)
        found = outcomes((FIFO, SJF, GPUS, MODEL, UNGUARDED), one.scene, one.past)
        base = found[SJF.label].results.all.avg_jct_s
        recipe, _ = average_with(RecipeEstimator(one, WORKLOADS["repeating"].recurrence), UNGUARDED, one.scene)
        ratios = [found[take.label].results.all.avg_jct_s / base for take in (FIFO, GPUS, MODEL, UNGUARDED)]
        load = load_of(one, NODES * GPUS_PER_NODE)
        rows.append((f"{jobs:,}, {seed}", f"{load:.2f}", *(f"{ratio:.2f}" for ratio in (*ratios, recipe / base))))
    header = ("jobs, seed", "load", FIFO.label, GPUS.label, MODEL.label, UNGUARDED.label, "QSSF, the recipe")
    return Figure(
        key="qssf-draws",
        title="QSSF where users repeat themselves, draw by draw",
        source="helios §4.2.3; the traces are ours (farside sim trace generate repeating)",
        tables=(Table(caption="Average JCT over SJF's; the older half is history", header=header, rows=tuple(rows)),),
        notes=("The recipe is a yardstick, no bound.",),
    )


def _with_floor(lessons: Sequence[Lesson], caption: str) -> Table:
    """The table, and below it what one reaches who knows the recipe."""
    table, base = _table(caption, lessons, TAKES, SJF)
    recurrence = WORKLOADS["repeating"].recurrence
    reached = [average_with(RecipeEstimator(one, recurrence), UNGUARDED, one.scene) for one in lessons]
    ratios = [jct_s / sjf_s for (jct_s, _), sjf_s in zip(reached, base, strict=True)]
    averages = f"{median(jct_s for jct_s, _ in reached):.0f}", over(ratios), "-"
    row = ("QSSF, the recipe", *averages, f"{median(queue_s for _, queue_s in reached):.0f}", "-", "-", "-")
    return replace(table, rows=(*table.rows, row))


def _table(caption: str, lessons: Sequence[Lesson], takes: Sequence[Take], base: Take) -> tuple[Table, list[float]]:
    """The table, and the average JCT under ``base`` of each draw."""
    found = [outcomes(takes, one.scene, one.past) for one in lessons]
    rows: list[Row] = []
    for take in takes:
        own = [one[take.label] for one in found]
        ratios = [one[take.label].results.all.avg_jct_s / one[base.label].results.all.avg_jct_s for one in found]
        rows.append(
            (
                take.label,
                f"{median(one.results.all.avg_jct_s for one in own):.0f}",
                over(ratios),
                f"{median(one.results.all.p95_jct_s for one in own):.0f}",
                f"{median(one.results.all.avg_queue_s for one in own):.0f}",
                *_estimated(own),
            )
        )  # fmt: skip
    header = ("", "average JCT s", f"over {base.label}", "95th s", "average queue s", "worth", "ranks", "went by")
    averages = [one[base.label].results.all.avg_jct_s for one in found]
    return Table(caption=caption, header=header, rows=tuple(rows)), averages


def _estimated(found: Sequence[Outcome]) -> tuple[str, str, str]:
    estimations = [one.estimation for one in found if one.estimation is not None]
    if not estimations:
        return "-", "-", "-"
    shares: dict[str, float] = {}
    for one in estimations:
        for name, count in one.sources.items():
            shares[name] = shares.get(name, 0.0) + count / sum(one.sources.values()) / len(estimations)
    return (
        f"{median(one.quality.saving for one in estimations):.2f}",
        f"{median(one.quality.spearman for one in estimations):.2f}",
        ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1])),
    )


def over(values: Sequence[float]) -> str:
    """The mean of draws, and their span."""
    return f"{fmean(values):.2f} ({min(values):.2f}-{max(values):.2f})"
