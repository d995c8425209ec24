"""A day of a log, made small: run times and gaps are divided, so that one machine plays it in minutes.

How it works
  1. The day: of the days (midnight to midnight by the log's clock) with a number of jobs that one machine can start,
     and that take at most `DAY_MAX_S` once divided, the one with the most jobs.
  2. The factor: the greatest by which the median job still runs `MEDIAN_MIN_S`. Shorter jobs would show how long this
     machine takes to start processes, and not what the policy decides.
  3. The nodes: each virtual cluster gets nodes for the GPU seconds that its jobs of that day need, and for its largest
     job. So its bursts wait while others' nodes are idle, as on the real cluster.
  4. The past: jobs that had ended by then. The manager learns from them before the first job.

  A job that ran longer than `LONGEST_LOG_S` ends after that; how many do is noted.
"""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.workload.catalog import WORKLOADS
from farside.scheduler.sim.workload.generate import generate
from farside.units import format_count, format_moment, format_seconds

DAY_S = 86400.0
MEDIAN_MIN_S = 2.0
# Two cores start about ten jobs a second; a day of more jobs, or a longer one, takes more than the demo's ten minutes.
JOBS_MIN, JOBS_MAX = 60, 800
DAY_MAX_S = 200.0
LONGEST_LOG_S = DAY_S / 2
GPUS_PER_NODE = 8
NODES_MAX = 16
LOAD = 0.9
# The newest past jobs are read at each start of the scheduler process, a fifth of a millisecond each.
PAST_JOBS_MAX = 2000
# A virtual cluster with fewer of the day's jobs has nodes of its own that nobody would see at work.
SHARE_MIN = 0.01
ALL = "all"
_NO_NAME = re.compile("[^A-Za-z0-9_.-]")
NAME_MAX = 60
# What is played where no log is at hand: users and names recur, in three virtual clusters of unequal size. On some days
# a wide job starts before others or long after them by a few hundredths of a second, in the simulation too, and so does
# all that waits behind it. Of the seeds 1 to 8 this one's day depends least on such a moment.
SEED, GENERATED_JOBS = 1, 6000
GENERATED_CLUSTERS = (("vision", 5.0), ("speech", 3.0), ("robots", 2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDay:
    """Jobs to play, in seconds of this machine.

    Attributes:
        source: Where they come from, in words.
        jobs: By submit time, from 0 on; ``vc`` is the partition.
        past: Jobs that the manager has learned from before the first, by submit time.
        nodes: How many each partition has, of `GPUS_PER_NODE` GPUs each.
        factor: What the log's seconds were divided by.
        cut: Jobs that end after `LONGEST_LOG_S` of the log instead of their own time.
        left_out: Jobs of virtual clusters with too few jobs.
    """

    source: str
    jobs: tuple[TraceJob, ...]
    past: tuple[TraceJob, ...]
    nodes: Mapping[str, int]
    factor: float
    cut: int = 0
    left_out: int = 0

    @property
    def has_users(self) -> bool:
        """Whether the log says who submitted the jobs."""
        return any(one.job.user for one in self.jobs)

    @property
    def half_s(self) -> float:
        """Halfway between the first submission and the last, in seconds after the first."""
        return self.jobs[-1].job.submit_s / 2

    @property
    def median_s(self) -> float:
        """Median run time."""
        return statistics.median(one.duration_s for one in self.jobs)

    @property
    def words(self) -> str:
        """What is played, in one line."""
        clusters = ", ".join(f"{name} {format_count(count, 'node')}" for name, count in self.nodes.items())
        rest = [f"{self.cut} longer than {format_seconds(LONGEST_LOG_S)} end after that"] if self.cut else []
        rest += [f"{format_count(self.left_out, 'job')} of nearly idle virtual clusters left out"] * bool(self.left_out)
        return (
            f"{self.source}: {format_count(len(self.jobs), 'job')}, times divided by {self.factor:.0f}, the median job "
            f"runs {self.median_s:.1f} s; {clusters} of {GPUS_PER_NODE} GPUs" + "".join(f"; {one}" for one in rest)
        )


def generated_log(seed: int = SEED, jobs: int = GENERATED_JOBS) -> tuple[TraceJob, ...]:
    """What `farside sim trace generate repeating` makes, for three virtual clusters; equal for equal seeds."""
    workload = replace(WORKLOADS["repeating"], jobs=jobs, vc_mix=GENERATED_CLUSTERS, users=40)
    return generate(workload, np.random.default_rng(seed)).jobs


def day_of(jobs: Sequence[TraceJob], source: str, *, load: float = LOAD, is_whole: bool = False) -> LiveDay:
    """The day of a log that is played.

    Args:
        jobs: The log, by submit time.
        source: What to call it.
        load: GPU seconds of a virtual cluster's jobs, by those that its nodes have in the day.
        is_whole: All virtual clusters are one.

    Raises:
        ConfigError: No day suits, or its virtual clusters need more nodes than one machine can play.
    """
    begin_s, members = _busiest(jobs, source)
    if is_whole:
        members = [replace(one, job=replace(one.job, vc="")) for one in members]
    factor = _factor(members)
    counts = Counter(one.job.vc for one in members)
    kept = {vc for vc, count in counts.items() if count >= SHARE_MIN * len(members)}
    played = [one for one in members if one.job.vc in kept]
    nodes = _nodes(played, load)
    if sum(nodes.values()) > NODES_MAX:
        raise ConfigError(
            f"{source}: its virtual clusters need {sum(nodes.values())} nodes of {GPUS_PER_NODE} GPUs on that day, and "
            f"{NODES_MAX} is the most", hint="give a log of a smaller cluster, or of one virtual cluster"
        )  # fmt: skip
    past = [one for one in jobs if one.job.submit_s + one.duration_s <= begin_s][-PAST_JOBS_MAX:]
    if is_whole:
        past = [replace(one, job=replace(one.job, vc="")) for one in past]
    return LiveDay(
        source=f"{source}, {format_moment(begin_s).partition(' 00:00')[0]}",
        jobs=_scaled(played, begin_s, factor),
        past=_scaled(past, past[0].job.submit_s, factor) if past else (),
        nodes=nodes,
        factor=factor,
        cut=sum(one.duration_s > LONGEST_LOG_S for one in played),
        left_out=len(members) - len(played),
    )


def _busiest(jobs: Sequence[TraceJob], source: str) -> tuple[float, list[TraceJob]]:
    by_day: defaultdict[float, list[TraceJob]] = defaultdict(list)
    for one in jobs:
        by_day[one.job.submit_s // DAY_S].append(one)
    suited = {
        day: found
        for day, found in by_day.items()
        if JOBS_MIN <= len(found) <= JOBS_MAX and DAY_S / _factor(found) <= DAY_MAX_S
    }
    if not suited:
        least_s = MEDIAN_MIN_S * DAY_S / DAY_MAX_S
        raise ConfigError(
            f"{source}: no day of it has {JOBS_MIN} to {JOBS_MAX} jobs of which half run {format_seconds(least_s)} or "
            f"longer", hint="give another log: --log FILE"
        )  # fmt: skip
    day = max(suited, key=lambda day: (len(suited[day]), -day))
    return day * DAY_S, suited[day]


def _factor(jobs: Sequence[TraceJob]) -> float:
    return max(1.0, math.floor(statistics.median(one.duration_s for one in jobs) / MEDIAN_MIN_S))


def _nodes(jobs: Sequence[TraceJob], load: float) -> dict[str, int]:
    """Nodes by partition, in the order of their names."""
    needed_gpu_s: defaultdict[str, float] = defaultdict(float)
    largest: defaultdict[str, int] = defaultdict(int)
    for one in jobs:
        needed_gpu_s[one.job.vc] += min(one.duration_s, LONGEST_LOG_S) * one.job.gpus
        largest[one.job.vc] = max(largest[one.job.vc], one.job.gpus)
    return {
        _plain(vc) or ALL: max(
            math.ceil(largest[vc] / GPUS_PER_NODE), round(needed_gpu_s[vc] / (load * DAY_S * GPUS_PER_NODE)), 1
        )
        for vc in sorted(needed_gpu_s)
    }


def _scaled(jobs: Sequence[TraceJob], begin_s: float, factor: float) -> tuple[TraceJob, ...]:
    return tuple(
        TraceJob(
            job=replace(
                one.job,
                submit_s=(one.job.submit_s - begin_s) / factor,
                vc=_plain(one.job.vc) or ALL,
                user=_plain(one.job.user),
                name=one.job.name[:NAME_MAX],
            ),
            # A process can't sleep for less than it takes to count the time.
            duration_s=max(1e-3, round(min(one.duration_s, LONGEST_LOG_S) / factor, 3)),
        )
        for one in jobs
    )


def _plain(name: str) -> str:
    """A name that partitions and users may have."""
    return _NO_NAME.sub("_", name)[:NAME_MAX]
