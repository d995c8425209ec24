"""An Aggregator's Prometheus metrics, made at each scrape from its status."""

from collections.abc import Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from farside.agent.aggregator.status import AggregatorStatus
from farside.scrape import family

_gauge = partial(family, GaugeMetricFamily, "farside_aggregator")
_counter = partial(family, CounterMetricFamily, "farside_aggregator")


class Totals:
    """Sums over all jobs, those that have ended too: a counter never falls."""

    NAMES = ("updates", "busy_s", "pushed_bytes", "result_bytes", "wrong_codes")

    def __init__(self) -> None:
        self._ended = dict.fromkeys(self.NAMES, 0.0)
        self._seen: dict[tuple[str, int], dict[str, float]] = {}

    def take(self, status: AggregatorStatus) -> dict[str, float]:
        """The sums, after a look at the jobs that are there now."""
        now = {(job.job, job.start): {name: getattr(job, name) for name in self.NAMES} for job in status.jobs}
        for key, before in self._seen.items():
            after = now.get(key)
            # A job that came anew under its name counts from 0.
            if after is None or after["updates"] < before["updates"]:
                for name in self.NAMES:
                    self._ended[name] += before[name]
        self._seen = now
        return {name: self._ended[name] + sum(one[name] for one in now.values()) for name in self.NAMES}


def aggregator_metrics(status: AggregatorStatus, totals: dict[str, float]) -> Iterator[Metric]:
    """All metrics of this moment."""
    yield _gauge("jobs", "Jobs that are served.", len(status.jobs))
    shm, rdma = sum(job.lanes_shm for job in status.jobs), sum(job.lanes_rdma for job in status.jobs)
    carriers = {"shm": shm, "rdma": rdma, "tcp": sum(job.lanes for job in status.jobs) - shm - rdma}
    text = "Members with a lane, by what their gradients and results go by."
    yield _gauge("lanes", text, carriers.items(), ("carrier",))
    text = "Members by TCP whose frames' heads carry no codes: they run an earlier version."
    yield _gauge("lanes_without_codes", text, sum(job.lanes_without_codes for job in status.jobs))
    yield _gauge("jobs_lost", "Jobs that can't go on.", sum(job.lost for job in status.jobs))
    waiting = sum(job.waits_for is not None for job in status.jobs)
    yield _gauge("jobs_waiting", "Jobs in which a member's push is lacking where others have pushed.", waiting)
    yield _gauge("memory_bytes", "Memory that jobs may take.", status.memory_bytes)
    yield _gauge("memory_used_bytes", "Memory that jobs have taken.", status.used_bytes)
    yield _gauge("cores", "Cores that updates may use.", status.cores)
    yield _counter("updates", "Chunks updated.", totals["updates"])
    yield _counter("busy_seconds", "Processor time of updates.", totals["busy_s"])
    yield _counter("pushed_bytes", "Bytes of gradients that members pushed.", totals["pushed_bytes"])
    yield _counter("result_bytes", "Bytes of results that members got.", totals["result_bytes"])
    text = "Heads of frames with another code than their sender's; each ended its connection."
    yield _counter("wrong_codes", text, totals["wrong_codes"])
    text = "Lanes that go by TCP because a queue pair could not be made."
    yield _counter("rdma_fallbacks", text, status.rdma_fallbacks)
    yield _counter("restarts", "Servers that ended or hung, and were replaced.", status.restarts)
    yield _counter("refused", "Callers that got no lane.", status.refused.items(), ("reason",))
