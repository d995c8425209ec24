"""Mixes as the batch door has them, and a checker that shares no code with what it checks."""

from collections.abc import Mapping, Sequence
from typing import Any

from farside.scheduler.sharing.aggregation.placement import Placement, Profile


def as_events(jobs: Sequence[Profile], *, and_leave: bool = True) -> list[dict[str, Any]]:
    """A mix of the batch door."""
    arrivals = [
        {"at_s": at_s, "arrive": {"job": one.job, "iteration_s": one.iteration_s, "tasks_s": list(one.tasks_s),
                                  "servers": one.servers}}
        for at_s, one in enumerate(jobs)
    ]  # fmt: skip
    exits = [{"at_s": 1000 + at_s, "exit": one.job} for at_s, one in enumerate(jobs)]
    return [*arrivals, *(exits if and_leave else ())]


def check(
    jobs: Mapping[str, Profile], aggregators: Sequence[Mapping[str, Any]], *, capacity: float = 1.0
) -> tuple[float, dict[str, float]]:
    """The greatest W / C of any Aggregator, and what each job loses, by the definitions of [autops §4.3.3.2].

    Every task must be at one Aggregator, and none at two.
    """
    placed = sorted((job, task) for one in aggregators for job, task in one["tasks"])
    assert placed == sorted((name, task) for name, job in jobs.items() for task in range(len(job.tasks_s)))
    shared_s = {name: job.iteration_s for name, job in jobs.items()}
    for one in aggregators:
        for name in {job for job, _ in one["tasks"]}:
            times = int(one["cycle_s"] / jobs[name].iteration_s + 1e-9)
            assert times >= 1, "a cycle is shorter than an iteration"
            shared_s[name] = max(shared_s[name], one["cycle_s"] / times)
    load = 0.0
    for one in aggregators:
        work_s = sum(int(one["cycle_s"] / shared_s[job] + 1e-9) * jobs[job].tasks_s[task] for job, task in one["tasks"])
        load = max(load, work_s / one["cycle_s"] / capacity)
    return load, {name: 1 - job.iteration_s / shared_s[name] for name, job in jobs.items()}


def held(placement: Placement) -> list[dict[str, Any]]:
    """A placement as the batch door writes it."""
    return [
        {"cycle_s": one.cycle_s, "tasks": [(job, task) for job, tasks in one.tasks.items() for task in tasks]}
        for one in placement.aggregators.values()
    ]
