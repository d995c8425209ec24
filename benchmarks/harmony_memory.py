"""Harmony's data reloading: the share of the input on the disk by hill climbing, and what slow disks cost."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median

from benchmarks.figure import Figure, Table
from benchmarks.harmony_runs import BASE, gain_cells, mean_and_least, outcome
from farside.agent.training.alpha import WINDOW, Keep, Spilling, Use, step

NOISE = 0.03
WINDOWS = 15
SETTLED_WINDOWS = 60
INPUT_BYTES = 8 * 10**9
Curve = Callable[[Mapping[str, float]], float]


def drawn_curve(jobs: int, rng: random.Random) -> Curve:
    """A group's iteration by its jobs' shares: each is shortest at a place of its own, and rises to both sides."""
    places = {f"{number}": rng.uniform(0.05, 0.95) for number in range(jobs)}
    rise = rng.uniform(1.0, 4.0)
    return lambda shares: 1 + rise * sum((shares[job] - place) ** 2 for job, place in places.items())


def climbed(curve: Curve, jobs: int, windows: int, rng: random.Random) -> dict[str, float]:
    """The shares after so many windows, from 0.5 on, where times have a spread of 3 %."""
    state, shares = Spilling(), {f"{number}": 0.5 for number in range(jobs)}
    for _ in range(windows * WINDOW):
        iteration_s = curve(shares) * max(0.1, rng.gauss(1, NOISE))
        told = dict[str, Keep]()
        for job, share in shares.items():
            state, more = step(state, Use(job=job, spilled=share, iteration_s=iteration_s, input_bytes=INPUT_BYTES))
            told |= more
        shares |= {job: keep.spilled for job, keep in told.items()}
    return shares


def best_common(curve: Curve, jobs: int) -> float:
    """The least iteration with one share for all jobs, looked for in steps of 1 %."""
    return min(curve({f"{number}": percent / 100 for number in range(jobs)}) for percent in range(101))


def alpha(draws: int) -> Figure:
    """Figure 12 in kind: hill climbing beside the best fixed share."""
    rows = list[tuple[str, ...]]()
    for jobs, windows in ((1, WINDOWS), (2, WINDOWS), (2, SETTLED_WINDOWS), (4, SETTLED_WINDOWS)):
        found = list[float]()
        for seed in range(draws):
            rng = random.Random(seed)
            curve = drawn_curve(jobs, rng)
            found.append(curve(climbed(curve, jobs, windows, rng)) / best_common(curve, jobs))
        rows.append(
            (f"{jobs}", f"{windows}", f"{median(found):.2f}", f"{max(found):.2f}", "0.84, from 52.9 s to 44.3 s")
        )  # fmt: skip
    return Figure(
        key="harmony-alpha",
        title=f"The share on the disk by hill climbing, {draws} draws",
        source="harmony §V-G",
        tables=(
            Table(
                caption="A group's iteration by that with the best share that all its jobs have in common",
                header=("jobs", "windows of 3 iterations", "median", "worst", "paper"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "Drawn curves, each shortest at one place, with 3 % spread of each iteration. The paper's group is 8 real "
            "jobs, whose best common share was 0.3.",
        ),
    )


def disks(seeds: Sequence[int]) -> Figure:
    """What reading back costs 80 jobs on 100 machines."""
    cases = (
        ("takes no time", BASE),
        ("disk of 200 MB/s", replace(BASE, disk_bytes_s=200e6)),
        ("disk of 50 MB/s", replace(BASE, disk_bytes_s=50e6)),
        ("disk of 50 MB/s, and peers by 1.1 Gb/s", replace(BASE, disk_bytes_s=50e6, peer_bytes_s=137.5e6)),
        ("disk of 50 MB/s, and peers by 10 Gb/s", replace(BASE, disk_bytes_s=50e6, peer_bytes_s=1.25e9)),
    )
    rows = [
        (
            words,
            *gain_cells("harmony", seeds, settings),
            mean_and_least([outcome("harmony", seed, settings).busy_cpu for seed in seeds]),
        )
        for words, settings in cases
    ]
    return Figure(
        key="harmony-disks",
        title=f"Input that does not fit in memory, {len(seeds)} draws",
        source="harmony §IV-C",
        tables=(
            Table(caption="Over isolated", header=("reading back", "JCT", "makespan", "CPU busy"), rows=tuple(rows)),
        ),
        notes=(
            "Jobs alone on 10 machines have their input in memory. Groups are chosen with what reading back "
            f"costs them; on average {mean(outcome('harmony', seed).group_count for seed in seeds):.1f} run.",
        ),
    )
