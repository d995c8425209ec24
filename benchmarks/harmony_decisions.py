"""Harmony's decisions: how far from the best of all groupings, and how long they take."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median

from benchmarks.figure import Figure, Table
from farside.group_time import ReadCost, Reloading, WorkProfile, group_time, iteration_in_turns_s
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.forecast import without
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules, decide
from farside.scheduler.sharing.colocation.printed import decide_printed
from farside.scheduler.sharing.colocation.regroup import Decide, Regrouping
from farside.scheduler.sim.colocation.exhaustive import exhaustive
from farside.scheduler.sim.colocation.subtasks import played_iterations_s

JOBS, MACHINES, WEIGHT = 7, 16, 0.7
# Jobs, machines, the spread of communicating, the paper's time, and the seconds that a decision may take.
SIZES = ((80, 100, 0.8, "1.2 s", 0.1), (800, 1000, 1.2, "-", 0.2), (8000, 10_000, 1.2, "under 5 s", 1.0))
_REPEATS = 3
# So many jobs end, one at a time, each beside all the others.
_ENDS, _GONE = 10, 10
_DISK = Reloading(disk=ReadCost(bytes_s=200e6, cpu_s_byte=0.2e-9))
_KEPT_ON = 16


def drawn(jobs: int, seed: int, net_sigma: float = 0.8) -> list[WorkProfile]:
    """Profiles as those of the 80 jobs, with another spread of communicating if wanted."""
    rng = random.Random(seed)
    found = list[WorkProfile]()
    for number in range(jobs):
        net_s = rng.lognormvariate(math.log(5.5) - net_sigma**2 / 2, net_sigma)
        work_machine_s = 16 * net_s * rng.lognormvariate(math.log(1.04), 0.7)
        found.append(WorkProfile(job=f"{number}", work_machine_s=work_machine_s, net_s=net_s))
    return found


def oracle(draws: int) -> Figure:
    """Figure 14: the score beside that of all groupings of the first so many jobs."""
    rules = GroupingRules(cpu_weight=WEIGHT)
    cases: Sequence[tuple[str, Decide, GroupingRules]] = (
        ("corrected", decide, rules),
        ("without the additions", decide, replace(rules, additions=False)),
        ("as printed", decide_printed, rules),
    )
    best = {seed: exhaustive(drawn(JOBS, seed), MACHINES, rules).score for seed in range(draws)}
    rows = list[tuple[str, ...]]()
    for name, rule, its in cases:
        gaps = [1 - rule(drawn(JOBS, seed), MACHINES, its, 0).score / best[seed] for seed in best]
        rows.append((name, f"{100 * mean(gaps):.1f} %", f"{100 * max(gaps):.1f} %", "up to around 2 %"))
    return Figure(
        key="harmony-oracle",
        title=f"Decisions beside the best of all groupings, {draws} draws",
        source="harmony Figure 14, §V-F",
        tables=(
            Table(
                caption=f"{JOBS} jobs on {MACHINES} machines, weight of the CPU {WEIGHT:g}",
                header=("Algorithm 1", "mean gap", "worst gap", "paper"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "All partitions of the first 1 to 7 jobs, with all allocations of machines. With a weight of 1 there is "
            "hardly a gap to be seen: so few jobs on so few machines keep every CPU busy.",
        ),
    )


def spilled(job: WorkProfile) -> WorkProfile:
    """The job with an input of which a machine of 16 keeps half; a disk of 200 MB/s reads the rest in half of `net_s`.

    On 32 machines and more all of it fits.
    """
    kept_bytes = _DISK.disk.bytes_s * job.net_s / 2
    return replace(job, input_bytes=round(2 * _KEPT_ON * kept_bytes), kept_bytes=kept_bytes, reloading=_DISK)


def _timed(profiles: Sequence[WorkProfile], machines: int) -> tuple[float, Grouping]:
    """CPU time of a decision, and what it was."""
    began_s = time.process_time()
    found = decide(profiles, machines, GroupingRules())
    return time.process_time() - began_s, found


def scale(sizes: Sequence[tuple[int, int, float, str, float]] = SIZES) -> Figure:
    """How long decisions take: of all jobs, in memory or spilled, and of those that are left when one ends."""
    rows, spilling, ends = list[tuple[str, ...]](), list[tuple[str, ...]](), list[tuple[str, ...]]()
    for jobs, machines, sigma, paper, bar_s in sizes:
        profiles = drawn(jobs, 1, sigma)
        row, grouping = _scale_row(profiles, machines)
        rows.append((*row, f"{bar_s:g} s", paper))
        spilling.append((*_scale_row([spilled(job) for job in profiles], machines)[0], "-"))
        ends.append((row[0], *_end_cells(profiles, machines, grouping), f"{bar_s:g} s"))
    header = ("jobs/machines", "CPU", "machines' CPUs busy", "jobs that run", "at most")
    ends_header = ("jobs/machines", "others wait", "nobody waits", "at most")
    return Figure(
        key="harmony-scale",
        title="CPU time of a decision",
        source="harmony §V-F",
        tables=(
            Table(caption=f"The best of {_REPEATS}", header=(*header, "paper"), rows=tuple(rows)),
            Table(caption="Jobs that read input back from disks", header=header, rows=tuple(spilling)),
            Table(caption=f"A job ends: mean of {_ENDS}, in brackets the worst", header=ends_header, rows=tuple(ends)),
        ),
        notes=(
            "Seconds on the network are drawn with sigma 1.2 above 80 jobs, so that they are more unlike.",
            f"When a job ends, either all of the first table that do not run wait, or nobody does and every {_GONE}th "
            "job has ended before, so that machines are idle.",
        ),
    )


def _scale_row(profiles: Sequence[WorkProfile], machines: int) -> tuple[tuple[str, ...], Grouping]:
    tries = [_timed(profiles, machines) for _ in range(_REPEATS)]
    least_s, found = min(took_s for took_s, _ in tries), tries[-1][1]
    placed = sum(len(group.jobs) for group in found.groups)
    return (f"{len(profiles):,}/{machines:,}", f"{least_s:.3f} s", f"{found.score:.3f}", f"{placed:,}"), found


def _end_cells(profiles: Sequence[WorkProfile], machines: int, grouping: Grouping) -> tuple[str, ...]:
    """CPU time of deciding what follows from a job's end, where others wait and where nobody does: mean and worst."""
    running = [job for group in grouping.groups for job in group.jobs]
    waiting = tuple(job.job for job in profiles if job.job not in {*running})
    full = _running(profiles, machines, grouping, frozenset(), waiting)
    left = _running(profiles, machines, grouping, frozenset(running[::_GONE]), ())
    cells = list[str]()
    for cluster in (full, left):
        jobs = [job for group in cluster.groups for job in group.jobs]
        ending = [jobs[len(jobs) * at // _ENDS] for at in range(_ENDS)]
        took_s = [min(_ended_s(cluster, job) for _ in range(_REPEATS)) for job in ending]
        cells.append(f"{mean(took_s):.3f} s ({max(took_s):.3f} s)")
    return tuple(cells)


def _running(
    profiles: Sequence[WorkProfile], machines: int, grouping: Grouping, gone: frozenset[str], waiting: tuple[str, ...]
) -> Cluster:
    """A cluster that runs a grouping, without those jobs of it that are gone."""
    groups = [
        RunningGroup(number=number, machines=group.machines, jobs=tuple(job for job in group.jobs if job not in gone))
        for number, group in enumerate(grouping.groups, 1)
    ]
    return Cluster(
        machines=machines, groups=tuple(group for group in groups if group.jobs), waiting=waiting,
        profiles={job.job: job for job in profiles}, next_number=len(groups) + 1,
    )  # fmt: skip


def _ended_s(cluster: Cluster, job: str) -> float:
    """CPU time of deciding what follows from a job's end."""
    after, number = without(cluster, job)
    regrouping = Regrouping(GroupingRules(), decide)
    began_s = time.process_time()
    regrouping.ended(after, number, cluster.profiles[job])
    return time.process_time() - began_s


def eq1(groups: int) -> Figure:
    """Equation 1 beside groups that are played subtask by subtask, and turns without a spread beside the same."""
    one, three = ("one node", 1, 0.0, groups), ("three nodes, messages of 1 ms", 3, 0.001, groups // 10)
    cases = [(*case, "equation 1", _by_equation) for case in (one, three)]
    cases += [(*case, "turns", iteration_in_turns_s) for case in (one, three)]
    rows = list[tuple[str, ...]]()
    for label, nodes, delay_s, count, by, predicted_s in cases:
        errors = sorted(_error(seed, nodes, delay_s, predicted_s) for seed in range(count))
        near = sum(abs(error) <= 0.05 for error in errors) / len(errors)
        rows.append(
            (
                label,
                by,
                f"{len(errors)}",
                f"{100 * median(errors):.1f} %",
                f"{100 * errors[len(errors) // 20]:.1f} %",
                f"{100 * errors[-1]:.1f} %",
                f"{100 * near:.0f} %",
                "below 5 % always",
            )
        )
    return Figure(
        key="harmony-eq1",
        title="A group's iteration: predicted beside played subtask by subtask",
        source="harmony Figure 13b, §V-E",
        tables=(
            Table(
                caption="Predicted by played, less 1; negative: it took longer",
                header=(
                    "played on",
                    "predicted by",
                    "groups",
                    "median",
                    "1 in 20 below",
                    "most",
                    "within 5 %",
                    "paper",
                ),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "Groups of 2 to 6 drawn jobs on 4 to 40 machines; each step's time has a spread of 3 %. The queues and the "
            "synchroniser are those of the nodes.",
        ),
    )


def _by_equation(jobs: Sequence[WorkProfile], machines: int) -> float:
    return group_time(jobs, machines).iteration_s


def _error(seed: int, nodes: int, delay_s: float, predicted_s: Callable[[Sequence[WorkProfile], int], float]) -> float:
    rng = random.Random(seed)
    jobs, machines = drawn(rng.randint(2, 6), seed), rng.randint(4, 40)
    took_s = played_iterations_s(jobs, machines, rng, nodes=nodes, delay_s=delay_s)
    return predicted_s(jobs, machines) / max(took_s.values()) - 1
