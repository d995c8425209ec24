"""Prometheus metrics of the manager, computed at each scrape.

What only the scheduler process (scheduler_watch.py) and the database know is asked for beside it, so a scrape waits for
nobody.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import CollectorRegistry

from farside.agent.messages import ExecutorFacts
from farside.errors import FarsideError
from farside.scheduler.lent_memory import LentMemory
from farside.scheduler.manager.aggregation.orders import untold
from farside.scheduler.manager.aggregation.state import NOBODY
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.colocation.state import Colocation
from farside.scheduler.manager.decider.scheduler_process import CYCLE_BUCKETS_S
from farside.scheduler.manager.model.lending import promised_memory
from farside.scheduler.manager.model.record import ACTIVE, LiveNode, Phase
from farside.scheduler.manager.model.state import LiveState, member_nodes
from farside.scheduler.manager.view.groups import report
from farside.scheduler.manager.view.memory import NodeMemory
from farside.scrape import family, registry_of

_Figure = tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, float | None]
PREFIX = "farside_manager"
NODE_STATES = ("idle", "busy", "draining", "drained", "lost", "closing", "asleep", "booting")


class ManagerCollector:
    """All that a scrape gets."""

    def __init__(self, context: Context, *, names_jobs: bool = False) -> None:
        """``names_jobs``: with metrics of single jobs, by their numbers. [L5]"""
        self._context, self._names_jobs = context, names_jobs
        self._store_bytes: int | None = None

    def registry(self) -> CollectorRegistry:
        """A registry of these and of the process's own metrics."""
        return registry_of(self.collect)

    async def ask(self) -> None:
        """Asks it once. Where it does not answer it has no metrics."""
        try:
            self._store_bytes = await asyncio.to_thread(self._context.log.store.size_bytes)
        except (FarsideError, OSError):
            self._store_bytes = None

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        state, scheduler = self._context.log.state, self._context.scheduler.latest
        for kind, name, text, value in self._figures(scheduler or {}):
            if value is not None:
                yield family(kind, PREFIX, name, text, value)
        yield _by_state("jobs", "Jobs by state.", Counter(job.phase.value for job in state.jobs.values()), Phase)
        yield _by_state("nodes", "Nodes by state.", Counter(one.state for one in state.nodes.values()), NODE_STATES)
        yield _gpus(state.nodes.values())
        turns = self._context.overviews.turns()
        yield _groups(turns, self._context.log.state.colocation)
        if self._names_jobs:
            yield _processor_times(turns)
            yield from _spills(turns)
        if scheduler is not None:
            yield from _packlimits(scheduler.get("packlimits", ()))
            bounds = (*map(str, CYCLE_BUCKETS_S), "+Inf")
            yield HistogramMetricFamily(
                "farside_manager_cycle_seconds",
                "How long the scheduler process read, decided and wrote, each time.",
                buckets=list(zip(bounds, accumulate(scheduler["cycles_by_bucket"]), strict=True)),
                sum_value=scheduler["spent_s"],
            )

    def _figures(self, scheduler: Mapping[str, Any]) -> Iterator[_Figure]:
        """Metrics of one number; ``scheduler``: what the scheduler process answered, empty: it did not."""
        counter, gauge = CounterMetricFamily, GaugeMetricFamily
        log, sessions = self._context.log, self._context.sessions
        state, now_s = log.state, log.now_s()
        waiting_s = [now_s - job.since_s for job in state.live_jobs() if job.phase is Phase.WAITING]
        yield counter, "log_entries", "Entries of the log.", state.seq
        yield gauge, "generation", "Grows with each scheduler process that takes the lead.", state.generation
        yield gauge, "agents_connected", "Agents that are connected to this manager.", sessions.connected
        text = "Connected agents that take any manager's word: they are of a version before."
        yield gauge, "agents_unproved", text, sessions.unproved
        text = "Nodes that say that they have more GPUs or memory than anybody vouched for."
        yield gauge, "nodes_grown", text, sum(bool(node.excess) for node in state.nodes.values())
        text = "Nodes that wait for `farside node accept`."
        yield gauge, "nodes_waiting", text, len(sessions.waiting.strangers(state))
        yield gauge, "page_streams", "Pages that are open and follow.", self._context.overviews.streams
        yield gauge, "longest_wait_seconds", "Of the jobs that wait now.", max(waiting_s, default=0.0)
        text = "1 while this manager's scheduler process leads and answers."
        yield gauge, "brain_answers", text, int(bool(scheduler))
        yield counter, "service_faults", "States of node services that could not be read.", sessions.service_faults
        text = "Seconds that nodes have slept, all together."
        yield counter, "node_sleep_seconds", text, state.slept.node_s(0.0, now_s)
        yield gauge, "lent_gpus", "GPUs that partitions lend to jobs of others.", _lent_gpus(state)
        idle = [job.spec.gpus for job in state.live_jobs() if job.idle is not None]
        yield gauge, "idle_jobs", "Jobs that were warned as they do not use their GPUs.", len(idle)
        yield gauge, "idle_gpus", "GPUs of these jobs.", sum(idle)
        yield from _memory(self._context.memory().values(), promised_memory(state))
        yield from _aggregation(state)
        yield from _colocation(state)
        wanted = None if state.wanted is None else state.wanted.nodes
        yield gauge, "nodes_wanted", "Nodes that the energy policy wants on.", wanted
        yield gauge, "store_bytes", "What the store's database takes.", self._store_bytes
        text = "Times that the scheduler process had something to write."
        yield counter, "decisions", text, scheduler.get("cycles")
        text = "Cycles that failed by a fault in Farside, and were tried again."
        yield counter, "cycle_failures", text, scheduler.get("cycle_failures")


def _lent_gpus(live: LiveState) -> int:
    return sum(job.spec.gpus for job in live.live_jobs() if job.host and job.phase in ACTIVE)


def _memory(nodes: Collection[NodeMemory], promised: LentMemory) -> Iterator[_Figure]:
    """What jobs were promised of what is lent, over all nodes; the rest of those whose agents are connected here."""
    text = "Memory of other nodes that jobs were promised."
    yield GaugeMetricFamily, "memory_promised_bytes", text, promised.promised_bytes
    text = "Memory that donors lend to jobs, lent already or not, as far as it counts for what they are promised."
    yield GaugeMetricFamily, "memory_capacity_bytes", text, promised.lent_bytes
    texts = {
        "lent_bytes": "Memory that donors have lent.",
        "lendable_bytes": "Memory that donors could lend now, besides.",
        "remote_bytes": "Pages of nodes' Farside devices that donors have.",
        "on_disk_bytes": "Pages of nodes' Farside devices that backup disks alone have.",
        "pages_at_risk": "Pages with one copy where two are promised, or that a disk alone has which fails.",
        "disk_failed": "Nodes of which a backup disk fails.",
    }
    for name, text in texts.items():
        yield GaugeMetricFamily, f"memory_{name}", text, sum(getattr(node, name) or 0 for node in nodes)


def _aggregation(live: LiveState) -> Iterator[_Figure]:
    gauge, state = GaugeMetricFamily, live.aggregation
    yield gauge, "aggregators", "Aggregators that the pool has.", len(state.pool)
    yield gauge, "aggregators_used", "Aggregators that own chunks of jobs.", len(state.in_use())
    yield gauge, "aggregator_cores", "Cores that the pool has.", sum(one.cores for one in state.pool.values())
    yield gauge, "aggregated_jobs", "Jobs whose gradients are aggregated.", len(state.jobs)
    up = {name for name, node in live.nodes.items() if node.is_up and name in state.pool}
    stranded = sum(
        live.jobs[job.job_id].phase in ACTIVE
        and (not job.is_assigned or any(state.node_of(one) not in up for one in job.owners))
        for job in state.jobs.values()
    )
    text = "Jobs that run, and some of whose chunks have no Aggregator, or one of a node that is away."
    yield gauge, "aggregation_stranded_jobs", text, stranded
    text = "Jobs that lose more speed by sharing than they should, where no other place helps."
    yield gauge, "aggregation_slowed_jobs", text, sum(bool(job.accepted) for job in state.jobs.values())
    text = "Jobs that a node which has part in them is not told of, since it has part in too many."
    yield gauge, "aggregation_untold_jobs", text, len(untold(state, member_nodes(live)))
    moving = sum(run.count for job in state.jobs.values() for run in job.runs if run.next_owner != NOBODY)
    yield gauge, "aggregation_moving_chunks", "Chunks on their way to another Aggregator.", moving


def _colocation(live: LiveState) -> Iterator[_Figure]:
    gauge, state = GaugeMetricFamily, live.colocation
    yield gauge, "colocated_jobs", "Co-located jobs that are not over.", len(state.jobs)
    yield gauge, "colocated_groups", "Groups of co-located jobs.", len(state.groups)
    machines = sum(len(group.nodes) for group in state.groups)
    yield gauge, "colocated_machines", "Nodes that have co-located jobs.", machines
    yield gauge, "colocated_jobs_measuring", "Co-located jobs whose times are not known yet.", len(state.measuring)
    text = "Measured co-located jobs that no group has."
    yield gauge, "colocated_jobs_waiting", text, sum(job in state.jobs for job in state.waiting)


def _by_state(name: str, text: str, counts: Counter[str], states: Iterable[str]) -> Metric:
    return family(GaugeMetricFamily, PREFIX, name, text, ((one, counts[str(one)]) for one in states), ("state",))


def _groups(facts: Mapping[str, ExecutorFacts], planned: Colocation) -> Metric:
    """An iteration of the jobs that take turns on a node, by equation 1 now, as decided, and as measured."""
    rows: list[tuple[tuple[str, str], float | None]] = []
    rows += [((node, "planned"), group.predicted_s) for group in planned.groups for node in group.nodes]
    for group in report(facts, lambda _: False).groups:
        rows += [((group.node, "predicted"), group.predicted_s), ((group.node, "measured"), group.measured_s)]
    text = "An iteration of all jobs that take turns on a node."
    return family(GaugeMetricFamily, PREFIX, "group_iteration_seconds", text, rows, ("node", "kind"))


def _packlimits(limits: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """The limit of the placement by skew, in each partition, and what it is learned from."""
    told = list(limits)
    if not told:
        return
    gauge, names = GaugeMetricFamily, ("partition",)
    text = "Share of a model that its largest tensor may have before its job is consolidated."
    yield family(gauge, PREFIX, "packlimit", text, ((one["partition"], one["packlimit"]) for one in told), names)
    text = "When that limit was learned; left out while it is as configured."
    rows = [(one["partition"], one["since_s"]) for one in told]
    yield family(gauge, PREFIX, "packlimit_learned_timestamp_seconds", text, rows, names)
    places = [((one["partition"], "spread"), one["spread_starts"]) for one in told]
    places += [((one["partition"], "consolidated"), one["measured_starts"] - one["spread_starts"]) for one in told]
    text = "Starts of jobs of several GPUs that told how long their iterations took."
    yield family(gauge, PREFIX, "measured_starts", text, places, ("partition", "place"))


def _processor_times(facts: Mapping[str, ExecutorFacts]) -> Metric:
    """Processor time of jobs that take turns on a node."""
    rows = dict[tuple[str, ...], float]()
    for node, said in facts.items():
        for one in said.takers:
            if (used := one.processor) is not None:
                rows |= {(node, one.job, "computing"): used.comp_s, (node, one.job, "updates"): used.rest_s}
    text = "CPU seconds of an iteration of a job: computing, and for its updates."
    return family(GaugeMetricFamily, PREFIX, "job_iteration_cpu_seconds", text, rows.items(), ("node", "job", "part"))


def _spills(facts: Mapping[str, ExecutorFacts]) -> Iterator[Metric]:
    """Input of jobs that take turns on a node that is not in memory, and what they read back."""
    found = {(node, one.job): one.spill for node, said in facts.items() for one in said.takers if one.spill is not None}
    labels, gauge, counter = ("node", "job"), GaugeMetricFamily, CounterMetricFamily
    text = "Share of a job's input that is not in its memory."
    yield family(gauge, PREFIX, "job_spilled_ratio", text, ((at, one.spilled) for at, one in found.items()), labels)
    text = "Input of a job on a node, in memory or not."
    yield family(gauge, PREFIX, "job_input_bytes", text, ((at, one.input_bytes) for at, one in found.items()), labels)
    reads = [((*at, "disk"), one.disk_bytes) for at, one in found.items()]
    reads += [((*at, "peer"), one.peer_bytes) for at, one in found.items()]
    text = "Input that a job has read back since its worker began."
    yield family(counter, PREFIX, "job_reload_bytes", text, reads, (*labels, "source"))
    text = "How long a job has waited for input that it reads back."
    waits = ((at, one.waited_s) for at, one in found.items())
    yield family(counter, PREFIX, "job_reload_wait_seconds", text, waits, labels)


def _gpus(nodes: Iterable[LiveNode]) -> Metric:
    counts: Counter[str] = Counter()
    for node in nodes:
        free, broken = set(node.free_devices), set(node.unhealthy)
        idle = "free" if node.is_taking else "unavailable"
        for device in node.devices:
            counts["held" if device not in free else "broken" if device.gpu in broken else idle] += 1
    return _by_state("gpus", "GPUs by what may be done with them.", counts, ("held", "free", "unavailable", "broken"))
