"""Jobs whose members compute by a timer, as on a GPU, and exchange gradients as they become ready [autops Fig. 4.8]."""

import statistics
from collections.abc import Sequence

from benchmarks.aggregation.group import Group, ask_all
from benchmarks.aggregation.judge import steps_table
from benchmarks.aggregation.measure import Systems
from benchmarks.aggregation.plan import KINDS, Workload, in_turn, trained
from benchmarks.figure import Figure
from benchmarks.load import BenchmarkError

STEPS = 8
WARM = 2  # iterations that are not counted


def train(systems: Systems, rounds: int) -> Figure:
    """Iterations a second of each system, by rounds in which they take turns."""
    found: dict[tuple[str, str], list[float]] = {}
    for at in range(rounds):
        for model, (workload, compute_s) in trained().items():
            for name in in_turn(systems.names, at):
                if name not in systems.groups:
                    continue
                try:
                    rate = _rate(systems.groups[name], name, workload, compute_s)
                except BenchmarkError as error:
                    systems.fail(name, error)
                else:
                    found.setdefault((model, name), []).append(rate)
    return Figure(
        key="timers",
        title="One job alone: iterations a second",
        source="[autops Fig. 4.8]",
        tables=(steps_table(found),),
        notes=tuple(
            f"{model}: {compute_s:g} s of an iteration are computed" for model, (_, compute_s) in trained().items()
        ),
    )


def _rate(group: Group, name: str, workload: Workload, compute_s: float) -> float:
    group.prepare(workload, KINDS.get(name, ""))
    answers = ask_all(group.members, do="train", counts=workload.counts, compute_s=compute_s, steps=STEPS)
    group.release()
    return 1 / median_step_s([answer["steps_s"] for answer in answers])


def median_step_s(by_member: Sequence[Sequence[float]]) -> float:
    """The median iteration of the slowest member, without the first ones."""
    return max(statistics.median(steps[WARM:]) for steps in by_member)
