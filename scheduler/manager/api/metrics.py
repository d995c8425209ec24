"""Prometheus metrics of the manager, computed at each scrape.

What only the scheduler process (scheduler_watch.py) and the database know is asked for beside it, so a scrape waits for
nobody.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import CollectorRegistry

from farside.errors import FarsideError
from farside.scheduler.manager.api.overview_stream import OverviewStreams
from farside.scheduler.manager.decider.scheduler_process import CYCLE_BUCKETS_S
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.record import LiveNode, Phase
from farside.scheduler.manager.nodes.sessions import AgentSessions
from farside.scheduler.manager.scheduler_watch import SchedulerWatch
from farside.scrape import registry_of

NODE_STATES = ("idle", "busy", "draining", "drained", "lost", "closing", "asleep", "booting")


class ManagerCollector:
    """All that a scrape gets."""

    def __init__(
        self, log: LiveLog, sessions: AgentSessions, overviews: OverviewStreams, scheduler: SchedulerWatch
    ) -> None:
        self._log, self._sessions, self._overviews, self._scheduler = log, sessions, overviews, scheduler
        self._store_bytes: int | None = None

    def registry(self) -> CollectorRegistry:
        """A registry of these and of the process's own metrics."""
        return registry_of(self.collect)

    async def ask(self) -> None:
        """Asks it once. Where it does not answer it has no metrics."""
        try:
            self._store_bytes = await asyncio.to_thread(self._log.store.size_bytes)
        except (FarsideError, OSError):
            self._store_bytes = None

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        state, now_s = self._log.state, self._log.now_s()
        yield CounterMetricFamily("farside_manager_log_entries", "Entries of the log.", value=state.seq)
        waiting_s = [now_s - job.since_s for job in state.live_jobs() if job.phase is Phase.WAITING]
        for name, text, value in (
            ("generation", "Grows with each scheduler process that takes the lead.", state.generation),
            ("agents_connected", "Agents that are connected to this manager.", self._sessions.connected),
            ("page_streams", "Pages that are open and follow.", self._overviews.streams),
            ("longest_wait_seconds", "Of the jobs that wait now.", max(waiting_s, default=0.0)),
            (
                "brain_answers",
                "1 while this manager's scheduler process leads and answers.",
                int(self._scheduler.latest is not None),
            ),
        ):
            yield GaugeMetricFamily(f"farside_manager_{name}", text, value=value)
        yield _by_state("jobs", "Jobs by state.", Counter(job.phase.value for job in state.jobs.values()), Phase)
        yield _by_state("nodes", "Nodes by state.", Counter(one.state for one in state.nodes.values()), NODE_STATES)
        text = "States of node services that could not be read."
        yield CounterMetricFamily("farside_manager_service_faults", text, value=self._sessions.service_faults)
        yield _gpus(state.nodes.values())
        text = "Seconds that nodes have slept, all together."
        yield CounterMetricFamily("farside_manager_node_sleep_seconds", text, value=state.slept.node_s(0.0, now_s))
        if state.wanted is not None:
            text = "Nodes that the energy policy wants on."
            yield GaugeMetricFamily("farside_manager_nodes_wanted", text, value=state.wanted.nodes)
        if self._store_bytes is not None:
            text = "What the store's database takes."
            yield GaugeMetricFamily("farside_manager_store_bytes", text, value=self._store_bytes)
        if self._scheduler.latest is not None:
            yield from _cycles(self._scheduler.latest)


def _by_state(name: str, text: str, counts: Counter[str], states: Iterable[str]) -> Metric:
    family = GaugeMetricFamily(f"farside_manager_{name}", text, labels=["state"])
    for one in states:
        family.add_metric([str(one)], counts[str(one)])
    return family


def _gpus(nodes: Iterable[LiveNode]) -> Metric:
    counts: Counter[str] = Counter()
    for node in nodes:
        free, broken = set(node.free_devices), set(node.unhealthy)
        idle = "free" if node.is_taking else "unavailable"
        for device in node.devices:
            counts["held" if device not in free else "broken" if device.gpu in broken else idle] += 1
    return _by_state("gpus", "GPUs by what may be done with them.", counts, ("held", "free", "unavailable", "broken"))


def _cycles(scheduler: Mapping[str, Any]) -> Iterator[Metric]:
    bounds = (*map(str, CYCLE_BUCKETS_S), "+Inf")
    yield HistogramMetricFamily(
        "farside_manager_cycle_seconds",
        "How long the scheduler process read, decided and wrote, each time.",
        buckets=list(zip(bounds, accumulate(scheduler["cycles_by_bucket"]), strict=True)),
        sum_value=scheduler["spent_s"],
    )
    text = "Times that the scheduler process had something to write."
    yield CounterMetricFamily("farside_manager_decisions", text, value=scheduler["cycles"])
    text = "Cycles that failed by a fault in Farside, and were tried again."
    yield CounterMetricFamily("farside_manager_cycle_failures", text, value=scheduler["cycle_failures"])
