"""docs/benchmarks-simulator.md from a run: pure, text in and out."""

import math
from collections.abc import Iterable, Sequence

from benchmarks.render import table
from benchmarks.sim_result import CycleResult, PeerResult, SimRun, TraceResult


def render(run: SimRun, *, source: str) -> str:
    """The whole document. ``source``: the JSON file's name, for the reader who wants all figures."""
    machine = run.machine
    parts = [
        "# The scheduler and its simulator: measurements",
        "Written by `python -m benchmarks.sim_speed` (`make bench-simulator`) from its own measurements; not edited by"
        f" hand.\nAll figures: `{source}`. How they come about: `benchmarks/README.md`.",
        f"* Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}\n"
        "* Seconds are CPU seconds of one process. Where the load before is far above the cores, they are too high, and"
        " only ratios and growth say something.",
        table(("part", "measured", "commit", "load before", "runs of each", "command"), _measured(run)),
    ]
    if run.traces:
        parts += ["## A long trace under each policy", _TRACES, _traces(run.traces)]
    if run.growth:
        parts += ["## How the cost grows with the trace", _GROWTH, _growth(run.growth), _fits(run.growth)]
    if run.shapes:
        parts += ["## Traces that have made schedulers quadratic", _SHAPES, _shapes(run.shapes)]
    if run.cycles:
        parts += ["## One scheduling cycle", _CYCLES, _cycles(run.cycles)]
    if run.peers:
        parts += ["## Beside a published simulator", _peers(run.peers)]
    return "\n\n".join(parts) + "\n"


_TRACES = "All jobs in one pool, placed by count. Reading or generating the trace is not counted."
_GROWTH = (
    "Generated jobs like Philly's, at an offered load of 0.8. A strict FIFO can't use as much when gangs block the"
    " queue, so that it grows there."
)
_SHAPES = (
    "All jobs are submitted in one second; run for no time at all; or each asks for an amount of memory of its own. A"
    " cost per job that stays where it is means that nothing is quadratic. Gittins is left out: where thousands come at"
    " once it takes the GPUs of whoever has had a moment of them."
)
_CYCLES = (
    "All GPUs are held (8 a machine, consolidated placement). `new` is the cycle in which all that wait have just come;"
    " the others follow the end of one running job each."
)


def _measured(run: SimRun) -> list[tuple[str, ...]]:
    return [
        (part, one.date, one.commit or "unknown", f"{one.load_before:g}", str(one.repeats), f"`{one.command}`")
        for part, one in run.measured.items()
    ]


def _traces(results: Sequence[TraceResult]) -> str:
    rows = [
        (
            one.case.path or "generated",
            f"{one.figures.jobs:,}",
            str(one.case.gpus),
            one.case.policy,
            f"{one.figures.cpu_s:.2f}",
            f"{one.figures.cpu_s / one.figures.jobs * 1e6:.0f}",
            f"{one.figures.peak_mib:.0f}",
            f"{one.figures.max_queue:,}",
            f"{one.figures.preemptions:,}",
        )
        for one in results
    ]
    return table(("trace", "jobs", "GPUs", "policy", "s", "us a job", "peak MiB", "longest queue", "preemptions"), rows)


def _growth(results: Iterable[TraceResult]) -> str:
    rows = [
        (
            one.case.policy,
            f"{one.figures.jobs:,}",
            f"{one.figures.cpu_s:.2f}",
            f"{one.figures.cpu_s / one.figures.jobs * 1e6:.0f}",
            f"{one.figures.peak_mib:.0f}",
            f"{one.figures.mean_queue:,.1f}",
            f"{one.figures.max_queue:,}",
        )
        for one in sorted(results, key=lambda one: (one.case.policy, one.case.jobs))
    ]
    return table(("policy", "jobs", "s", "us a job", "peak MiB", "mean queue", "longest queue"), rows)


def growth_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The power b in cost = a * (log n)**b, by least squares over logarithms: 0 is constant, 1 grows as log n does."""
    x = [math.log(math.log(size)) for size in sizes]
    y = [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - mean_x) ** 2 for one in x)
    return sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True)) / spread


def _fits(results: Sequence[TraceResult]) -> str:
    told = []
    for policy in dict.fromkeys(one.case.policy for one in results):
        own = sorted((one.figures.jobs, one.figures.cpu_s) for one in results if one.case.policy == policy)
        if len(own) > 1:
            exponent = growth_exponent([jobs for jobs, _ in own], [cpu_s / jobs for jobs, cpu_s in own])
            told.append(f"{policy} {exponent:.2f}")
    if not told:
        return "Too few sizes for a fit."
    return f"Cost a job over jobs n, fitted as a power of log n (1: as log n): {', '.join(told)}."


def _shapes(results: Iterable[TraceResult]) -> str:
    ordered = sorted(results, key=lambda one: (one.case.shape, one.case.policy, one.case.jobs))
    rows = [
        (
            one.case.shape,
            one.case.policy,
            f"{one.figures.jobs:,}",
            f"{one.figures.cpu_s:.2f}",
            f"{one.figures.cpu_s / one.figures.jobs * 1e6:.0f}",
            f"{one.figures.peak_mib:.0f}",
            f"{one.figures.max_queue:,}",
        )
        for one in ordered
    ]
    return table(("shape", "policy", "jobs", "s", "us a job", "peak MiB", "longest queue"), rows)


def _cycles(results: Iterable[CycleResult]) -> str:
    ordered = sorted(results, key=lambda one: (one.case.policy, one.case.nodes, one.case.queue))
    rows = [
        (
            one.case.policy,
            f"{one.case.nodes:,}",
            f"{one.case.queue:,}",
            f"{one.figures.running:,}",
            f"{one.figures.new_queue_ms:.1f}",
            f"{one.figures.median_ms:.2f}",
            f"{one.figures.most_ms:.1f}",
        )
        for one in ordered
    ]
    return table(("policy", "machines", "queue", "running", "new ms", "median ms", "longest ms"), rows)


def _peers(results: Sequence[PeerResult]) -> str:
    failed = [f"* {one.peer} {one.dispatcher}: {one.why_not}" for one in results if one.why_not]
    rows = [
        (
            f"{one.peer} {one.dispatcher}",
            f"{one.jobs:,}",
            f"{one.peer_s:.2f}",
            f"{one.ours_s:.2f}",
            f"{one.jobs / one.peer_s:,.0f}",
            f"{one.jobs / one.ours_s:,.0f}",
            f"{one.peer_s / one.ours_s:.1f}",
            f"{one.peer_avg_wait_s:,.2f}",
            f"{one.ours_avg_wait_s:,.2f}",
        )
        for one in results
        if not one.why_not
    ]
    header = ("peer", "jobs", "peer s", "ours s", "peer jobs/s", "ours jobs/s", "ratio", "peer wait s", "ours wait s")
    explained = (
        "The same generated workload in whole seconds, 64 GPUs on 8 machines, its dispatcher with first fit, ours with"
        " placement by count. Its time includes reading the workload as it goes, ours does not; its log of decisions is"
        " off. Equal average waits say that both did the same work."
    )
    return "\n\n".join([explained, *([table(header, rows)] if rows else []), *failed])
