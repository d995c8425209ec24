"""Made-up logs for estimators."""

import numpy as np

from farside.scheduler.predict.job_history import Past
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.workload.durations import Lognormal
from farside.scheduler.sim.workload.generate import Workload, generate
from farside.scheduler.sim.workload.naming import Naming
from farside.scheduler.state import Job

DAY_S = 86400.0


def job(sequence: int = 0, **of: object) -> Job:
    """A job of one GPU, unless told otherwise."""
    fields = {"job_id": str(sequence), "sequence": sequence, "submit_s": 1.7e9 + sequence, "gpus": 1, **of}
    return Job(**fields)  # type: ignore[arg-type]


def repeating(jobs: int, *, repeats: float = 0.8, users: int = 20, gpus: int = 16, seed: int = 1) -> list[TraceJob]:
    """Jobs of users that repeat themselves, with dates and slips in their names."""
    workload = Workload(
        jobs=jobs, service=Lognormal(median_s=1800.0, sigma=2.0), cluster_gpus=gpus, load=0.9, users=users, names=4,
        recurrence=0.94, repeats=repeats, newcomers=0.2, naming=Naming(dated=0.4, typos=0.05),
        gpu_mix=((1, 0.6), (2, 0.2), (4, 0.2)),
    )  # fmt: skip
    return list(generate(workload, np.random.default_rng(seed)).jobs)


def nameless(jobs: int, seed: int = 1) -> list[TraceJob]:
    """Jobs of nobody: run times that only chance decides."""
    rng = np.random.default_rng(seed)
    submit_s = 1.7e9 + np.cumsum(rng.exponential(600.0, jobs))
    return [
        TraceJob(
            job=job(at, submit_s=float(submit_s[at]), gpus=int(rng.choice([1, 2, 4, 8]))),
            duration_s=float(rng.lognormal(7.0, 1.5)),
        )
        for at in range(jobs)
    ]


def past(jobs: list[TraceJob]) -> list[Past]:
    """As history."""
    return [(one.job, one.duration_s) for one in jobs]
