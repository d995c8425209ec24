"""One case of the simulator's benchmark in a process of its own, so that its peak memory is its own, too.

``python -m benchmarks.sim_case trace '{"policy": "las", "jobs": 1000}'`` prints the figures as JSON.
"""

import gc
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.sim_result import CycleCase, CycleFigures, TraceCase, TraceFigures
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.sim.cluster import equal_nodes
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.read import read_trace
from farside.scheduler.sim.workload.arrivals import ARRIVALS
from farside.scheduler.sim.workload.catalog import GPU_MIXES
from farside.scheduler.sim.workload.durations import PRESETS
from farside.scheduler.sim.workload.generate import Workload, generate
from farside.scheduler.state import Action, Cluster, VirtualCluster
from farside.scheduler.table import JobTable

GPUS_PER_NODE = 8
FILL_STEP_S = 1.0
ENDS = 21
HISTORY_JOBS = 20_000


class QueueLength:
    """An observer: jobs that wait, on average over time and at most."""

    def __init__(self) -> None:
        self.most = 0
        self._area = self._first_s = self._last_s = 0.0
        self._now = -1

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        """A cycle was run."""
        if self._now < 0:
            self._first_s = self._last_s = now_s
        self._area += max(0, self._now) * (now_s - self._last_s)
        self._last_s, self._now = now_s, len(domain.waiting)
        self.most = max(self.most, self._now)

    @property
    def mean(self) -> float:
        """Over the time from the first cycle to the last."""
        span_s = self._last_s - self._first_s
        return self._area / span_s if span_s else 0.0


def _philly(case: TraceCase) -> Sequence[TraceJob]:
    workload = Workload(
        jobs=case.jobs,
        arrivals=ARRIVALS["bursts"],
        service=PRESETS["philly"],
        gpu_mix=GPU_MIXES["philly"],
        cluster_gpus=case.gpus,
        load=case.load,
    )
    return generate(workload, np.random.default_rng(case.seed)).jobs


def _at_once(case: TraceCase) -> Sequence[TraceJob]:
    return [replace(entry, job=replace(entry.job, submit_s=0.0)) for entry in _philly(case)]


def _of_no_length(case: TraceCase) -> Sequence[TraceJob]:
    return [replace(entry, duration_s=0.0) for entry in _at_once(case)]


def _all_different(case: TraceCase) -> Sequence[TraceJob]:
    """Each with a memory demand of its own, so that no two are alike for a placement."""
    return [
        replace(entry, job=replace(entry.job, memory_bytes_per_gpu=float(at)))
        for at, entry in enumerate(_at_once(case), start=1)
    ]


SHAPES: Mapping[str, Callable[[TraceCase], Sequence[TraceJob]]] = {
    "philly": _philly,
    "at once": _at_once,
    "at once, 0 s": _of_no_length,
    "at once, no two alike": _all_different,
}


def jobs_of(case: TraceCase) -> Sequence[TraceJob]:
    """The jobs of a case, in one virtual cluster."""
    if case.path:
        jobs: Sequence[TraceJob] = read_trace(Path(case.path)).jobs
        jobs = [replace(entry, job=replace(entry.job, vc="")) for entry in jobs]
    else:
        jobs = SHAPES[case.shape](case)
    if not case.in_whole_seconds:
        return jobs
    first_s = int(jobs[0].job.submit_s)
    return [
        replace(
            entry,
            job=replace(entry.job, submit_s=float(int(entry.job.submit_s) - first_s)),
            duration_s=float(max(1, int(entry.duration_s))),
        )
        for entry in jobs
    ]


def run_trace(case: TraceCase) -> TraceFigures:
    """A whole trace; what is timed begins with the jobs in memory and ends with the last job."""
    jobs = jobs_of(case)
    nodes = equal_nodes(case.gpus, GPUS_PER_NODE)
    cluster = Cluster(virtual_clusters=(VirtualCluster(name="", nodes=nodes),))
    queue = QueueLength()
    rules = Rules(order=make_order(case.policy, {}), placement=make_placement(case.placement, {}))
    started_s, wall_s = time.process_time(), time.perf_counter()
    simulation = Simulation(cluster, rules, jobs, observers=(queue,))
    runs = simulation.run()
    cpu_s, wall_s = time.process_time() - started_s, time.perf_counter() - wall_s
    waits_s = [run.end_s - entry.job.submit_s - run.held_s for run, entry in zip(runs, jobs, strict=True)]
    return TraceFigures(
        jobs=len(jobs),
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        events=simulation.events,
        preemptions=sum(run.preemptions for run in runs),
        mean_queue=queue.mean,
        max_queue=queue.most,
        avg_wait_s=statistics.fmean(waits_s),
    )


def run_cycles(case: CycleCase) -> CycleFigures:
    """Fills the machines, hands in the queue, and times the cycles then and after each of some jobs' ends."""
    gpus = case.nodes * case.gpus_per_node
    jobs = _philly(TraceCase(policy=case.policy, jobs=case.queue + gpus, gpus=gpus, seed=case.seed))
    domain = Domain(
        "",
        equal_nodes(gpus, case.gpus_per_node),
        Rules(order=_taught(case), placement=make_placement(case.placement, {})),
        JobTable(len(jobs)),
    )
    row, now_s = _fill(domain, jobs)
    running = len(domain.running)
    for at in range(row, row + case.queue):
        _submit(domain, jobs[at], at, now_s)
    gc.collect()
    new_queue_ms = _timed_cycle_ms(domain, now_s)
    rng = random.Random(case.seed)
    times_ms: list[float] = []
    for _ in range(ENDS):
        now_s += 1.0
        domain.finish(rng.choice(sorted(domain.running)))
        domain.learn(1.0)
        times_ms.append(_timed_cycle_ms(domain, now_s))
    return CycleFigures(
        running=running, new_queue_ms=new_queue_ms, median_ms=statistics.median(times_ms), most_ms=max(times_ms)
    )


def _taught(case: CycleCase) -> OrderPolicy:
    order = make_order(case.policy, {})
    if not isinstance(order, Gittins):
        return order
    past = _philly(TraceCase(policy=case.policy, jobs=HISTORY_JOBS, seed=case.seed + 1))
    services = Distribution(entry.duration_s * entry.job.gpus for entry in past)
    return replace(order, prior=services, is_learning=False)


def _fill(domain: Domain, jobs: Sequence[TraceJob]) -> tuple[int, float]:
    """Until jobs hold all GPUs, started one after the other; returns the next row, and what time it is."""
    row, now_s = 0, 0.0
    placement, ledger = domain.rules.placement, domain.ledger
    while ledger.free_gpus:
        allocation = placement.place(ledger, placement.demand(jobs[row].job))
        if allocation is not None:
            _submit(domain, jobs[row], row, now_s)
            domain.admit(row, allocation, now_s)
            domain.start(row, allocation, ledger, now_s)
            domain.settle([((now_s,), row)], [], now_s)
            now_s += FILL_STEP_S
        row += 1
    return row, now_s


def _submit(domain: Domain, entry: TraceJob, row: int, now_s: float) -> None:
    job = replace(entry.job, submit_s=now_s)
    domain.submit(row, job, remaining_s=entry.duration_s, predicted_gpu_s=entry.duration_s * job.gpus)


def _timed_cycle_ms(domain: Domain, now_s: float) -> float:
    started_s = time.process_time()
    run_cycle(domain, now_s)
    return (time.process_time() - started_s) * 1e3


def main(arguments: Sequence[str]) -> int:
    """Prints the figures of one case."""
    kind, text = arguments
    if kind == "trace":
        figures: object = run_trace(msgspec.json.decode(text, type=TraceCase))
    else:
        figures = run_cycles(msgspec.json.decode(text, type=CycleCase))
    print(msgspec.json.encode(figures).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
