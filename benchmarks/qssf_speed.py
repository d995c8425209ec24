"""Measure how long QSSF's estimator takes: for names, for one job that comes, and for all that wait after a fit."""

import random
import resource
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure, Row, Table
from benchmarks.qssf_runs import lesson
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.gpu_time_fit import learned_from
from farside.scheduler.predict.job_history import replay
from farside.scheduler.predict.job_names import NameBuckets, form_of
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.predict.service import JobSubmitted
from farside.scheduler.sim.estimator import Learner

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("train", "eval", "resnet50", "bert", "lr", "gan", "imagenet", "coco", "v2", "exp", "debug", "finetune", "seg")
SIMILARITY = 0.9


def names(count: int, seed: int) -> list[str]:
    """Distinct names: words that many have in common, and letters of their own."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        own = "".join(rng.choice(LETTERS) for _ in range(rng.randint(4, 9)))
        found["_".join((*rng.choices(WORDS, k=3), own))] = None
    return list(found)


def figure(*, name_counts: Sequence[int], history_jobs: int, seed: int) -> Figure:
    """Both tables."""
    rows: list[Row] = []
    for count in name_counts:
        made = names(count, seed)
        started_s = time.process_time()
        buckets = NameBuckets(SIMILARITY)
        for name in made:
            buckets.add(form_of(name))
        spent_s = time.process_time() - started_s
        rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append(
            (f"{count:,}", f"{spent_s:.1f}", f"{spent_s / count * 1e6:.0f}", f"{len(buckets):,}", f"{rss_mib:.0f}")
        )
    return Figure(
        key="qssf-speed",
        title="QSSF's estimator: names and answers",
        source="helios §4.2.2; 'typically milliseconds', §4.1",
        tables=(
            Table(
                caption="Distinct names into buckets, one core",
                header=("names", "CPU s", "us a name", "buckets", "peak MiB"),
                rows=tuple(rows),
            ),
            _answers(history_jobs, seed),
        ),
        notes=("To reach: a million distinct names in minutes; an answer within 5 ms at the 99th percentile.",),
    )


def _answers(history_jobs: int, seed: int) -> Table:
    one = lesson(2 * history_jobs, seed)
    learner = Learner(GpuTimeParams(), RollingParams(), one.past)
    wall_ms, cpu_ms = [], []
    for at, entry in enumerate(one.scene.jobs[:5000]):
        job = replace(entry.job, sequence=10**9 + at)
        started_s, started_cpu_s = time.perf_counter(), time.thread_time()
        learner.service.observe(JobSubmitted(at_s=job.submit_s, job=job))
        wall_ms.append((time.perf_counter() - started_s) * 1e3)
        cpu_ms.append((time.thread_time() - started_cpu_s) * 1e3)
    rows: list[Row] = []
    for clock, spent_ms in (("wall", wall_ms), ("CPU", cpu_ms)):
        rows.append((clock, *(f"{one:.2f}" for one in np.percentile(spent_ms, [50, 99, 100]).tolist())))
    return Table(
        caption=f"Expectation of one of {len(wall_ms):,} jobs, by {learner.service.source} of {len(one.past):,} jobs",
        header=("clock", "median ms", "99th ms", "longest ms"),
        rows=tuple(rows),
    )


def refit(*, ended_jobs: int, waiting_jobs: int, seed: int) -> Figure:
    """What a fit to so many ended jobs costs, and new estimates of those that wait, as in the manager."""
    one = lesson(2 * ended_jobs, seed)
    times = LearnedTimes()
    for fact in replay(one.past[-ended_jobs:]):
        times.service.observe(fact)
    waiting = [replace(entry.job, sequence=10**9 + at) for at, entry in enumerate(one.scene.jobs[:waiting_jobs])]
    now_s = waiting[-1].submit_s
    rows: list[Row] = []

    def step(what: str, begun_s: float) -> None:
        rows.append((what, f"{time.process_time() - begun_s:.2f}"))

    begun_s = time.process_time()
    for job in waiting:
        times.predicted_gpu_s(job, now_s)
    step("estimates of the jobs that wait, as they come", begun_s)
    begun_s = time.process_time()
    asked = times.lesson(now_s)
    step("what the model is fitted to", begun_s)
    assert asked is not None
    begun_s = time.process_time()
    fitted = learned_from(asked)
    step("the fit, in a process of its own", begun_s)
    begun_s = time.process_time()
    told = times.take(fitted)
    step("new estimates of the jobs that wait", begun_s)
    return Figure(
        key="qssf-refit",
        title="QSSF's estimator: a fit, and new estimates of all that wait",
        source="helios §4.1, Model Update Engine",
        tables=(
            Table(
                caption=f"A model of {fitted.trained_on:,} ended jobs, and {len(told):,} jobs that wait",
                header=("step", "CPU s"),
                rows=tuple(rows),
            ),
        ),
        notes=("To reach: new estimates of 10,000 waiting jobs within 1 s.",),
    )
