"""Survey of a job log: all data for the figures and the implications, gathered once. PURE."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.characterise import jobs, users
from farside.scheduler.sim.characterise.busy_times import Diurnal, Month, diurnal, months
from farside.scheduler.sim.characterise.cluster_size import Sizes
from farside.scheduler.sim.characterise.jobs import Curve, Demand, Ends
from farside.scheduler.sim.characterise.replay import stage, waits_s
from farside.scheduler.sim.characterise.tenants import Imbalance, Tenant, imbalance, tenants
from farside.scheduler.sim.characterise.users import Concentration
from farside.scheduler.sim.cluster import WHOLE
from farside.scheduler.sim.trace.log import JobLog, Status
from farside.scheduler.table import Floats

# Replaying more jobs than that to learn their starts takes longer than an operator waits for a page.
MOST_REPLAYED = 200_000
# Things that a log may lack, as the page calls them.
CALENDAR, STARTS, USERS, STATUSES, VCS, CPU_JOBS, SIZES = (
    "a calendar", "start times", "users", "final statuses", "virtual clusters", "CPU jobs", "the cluster's size",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Contents of a log. None: the log does not have it.

    Attributes:
        log: All jobs.
        gpu: Those with GPUs, with starts: the log's own, or replayed.
        sizes: The cluster.
        lacks: Of the names above.
        is_replayed: Starts are the simulator's: first come first served on this cluster.
        left_out: Jobs that were not replayed since they fit nowhere.
        unsized: Virtual clusters whose size is not known: their jobs count, what they use does not.
        known_jobs: Of GPU jobs, the share whose final status is known; ``known_gpu_time``: of their GPU time. All
            shares of statuses are of these.
    """

    log: JobLog
    gpu: JobLog
    sizes: Sizes | None
    lacks: frozenset[str]
    is_replayed: bool
    left_out: int
    unsized: tuple[str, ...]
    known_jobs: float
    known_gpu_time: float
    durations: Curve
    cpu_durations: Curve | None
    gpu_time_ends: Ends | None
    diurnal: Diurnal | None
    months: tuple[Month, ...]
    tenants: tuple[Tenant, ...]
    imbalance: Imbalance | None
    demand: Demand
    ends: Ends | None
    cpu_ends: Ends | None
    ends_by_demand: Mapping[str, Ends]
    gpu_time_by_user: Concentration | None
    cpu_time_by_user: Concentration | None
    waits_by_user: Concentration | None
    completion_rates: Floats

    @property
    def has_waits(self) -> bool:
        """Whether it is known how long jobs waited."""
        return not np.isnan(self.gpu.wait_s).all()


def survey(log: JobLog, sizes: Sizes | None, *, tell: Callable[[str], None] = lambda _: None) -> Survey:
    """Survey a log with GPU jobs. ``tell``: called with the name of each step."""
    gpu, cpu = log.of(log.gpus > 0), log.of(log.gpus == 0)
    tell("replaying" if np.isnan(gpu.start_s).all() else "counting")
    gpu, is_replayed, left_out = _with_starts(gpu, sizes)
    has_starts = not np.isnan(gpu.start_s).all()
    lacks = _lacks(log, cpu, sizes, has_starts=has_starts)
    used = sizes if has_starts else None
    tell("counting")
    unsized, placed = _placed(gpu, used)
    parts = used is not None and not used.is_pool and len(used.largest) > 1
    cpu_s = cpu.cpus * cpu.duration_s
    return Survey(
        log=log,
        gpu=gpu,
        sizes=sizes,
        lacks=lacks,
        is_replayed=is_replayed,
        left_out=left_out,
        unsized=unsized,
        known_jobs=jobs.known_share(gpu, np.ones(len(gpu))),
        known_gpu_time=jobs.known_share(gpu, jobs.gpu_s(gpu)),
        durations=jobs.durations(gpu),
        cpu_durations=jobs.durations(cpu) if len(cpu) else None,
        gpu_time_ends=jobs.ends(gpu, jobs.gpu_s(gpu)),
        diurnal=diurnal(placed, used) if log.has_calendar else None,
        months=months(placed, used) if log.has_calendar else (),
        tenants=tenants(placed, used) if parts and used else (),
        imbalance=imbalance(placed, used) if parts and used else None,
        demand=jobs.demand(gpu),
        ends=jobs.ends(gpu),
        cpu_ends=jobs.ends(cpu) if len(cpu) else None,
        ends_by_demand=jobs.ends_by_demand(gpu),
        gpu_time_by_user=users.concentration(gpu, jobs.gpu_s(gpu), users=len(log.users)),
        cpu_time_by_user=users.concentration(cpu, cpu_s, users=len(log.users)) if len(cpu) else None,
        waits_by_user=users.concentration(gpu, gpu.wait_s, users=len(log.users)),
        completion_rates=users.completion_rates(gpu),
    )


def _with_starts(gpu: JobLog, sizes: Sizes | None) -> tuple[JobLog, bool, int]:
    if not np.isnan(gpu.start_s).all() or sizes is None or len(gpu) > MOST_REPLAYED:
        return gpu, False, 0
    found = stage(gpu, sizes)
    if not len(found.log):
        return gpu, False, 0
    return found.log.with_starts(found.log.submit_s + waits_s(found)), True, found.left_out


def _placed(gpu: JobLog, sizes: Sizes | None) -> tuple[tuple[str, ...], JobLog]:
    """Virtual clusters without a size, and the jobs, those of such ones without starts so that they use nothing."""
    if sizes is None or sizes.is_pool:
        return (), gpu
    known = [sizes.largest.get(name, 0) > 0 for name in gpu.vcs]
    unsized = tuple(name for name, is_known in zip(gpu.vcs, known, strict=True) if not is_known)
    has_size = np.array([*known, sizes.largest.get(WHOLE, 0) > 0])[gpu.vc]  # -1, no name, is the last
    return unsized, gpu.with_starts(np.where(has_size, gpu.start_s, np.nan))


def _lacks(log: JobLog, cpu: JobLog, sizes: Sizes | None, *, has_starts: bool) -> frozenset[str]:
    present = {
        CALENDAR: log.has_calendar,
        STARTS: has_starts,
        USERS: bool(log.users),
        STATUSES: bool((log.status != Status.UNKNOWN).any()),
        VCS: bool(log.vcs),
        CPU_JOBS: bool(len(cpu)),
        SIZES: sizes is not None,
    }
    return frozenset(name for name, is_there in present.items() if not is_there)
