"""The donor's Prometheus metrics, made at each scrape from its last status."""

from collections.abc import Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from farside.daemon.status import DonorStatus
from farside.scrape import family

_gauge = partial(family, GaugeMetricFamily, "farside_donor")
_counter = partial(family, CounterMetricFamily, "farside_donor")


def donor_metrics(status: DonorStatus) -> Iterator[Metric]:
    """All metrics of this moment."""
    yield from _memory(status)
    yield from _counters(status)
    yield from _traffic(status)


def _memory(status: DonorStatus) -> Iterator[Metric]:
    memory = status.memory
    sessions = len(status.sessions) + status.sessions_omitted
    yield _gauge("slabs", "Slabs by state.", status.slab_counts.items(), ("state",))
    yield _gauge("memory_bytes", "Memory that this donor reckons with.", memory.total_bytes)
    yield _gauge("memory_used_bytes", "Memory that everybody else uses, smoothed.", memory.used_bytes)
    yield _gauge("memory_slabs_bytes", "Memory in slabs.", memory.slabs_bytes)
    yield _gauge("memory_free_bytes", "Memory that nobody uses.", memory.free_bytes)
    yield _gauge("headroom_bytes", "Memory that is to stay free.", memory.headroom_bytes)
    yield _gauge("leasable_slabs", "Slabs that could be lent now.", memory.free_slabs)
    yield _gauge("draining", "1 while nothing is lent, for maintenance.", int(status.draining))
    yield _gauge("sessions", "Borrowers with a session.", sessions)


def _counters(status: DonorStatus) -> Iterator[Metric]:
    counts = status.counters
    yield _counter("slabs_lent", "Slabs lent.", counts["lent"])
    yield _counter("slabs_released", "Slabs that borrowers gave back unasked.", counts["released"])
    yield _counter("migrations", "Recalled slabs that were let go in time to move them.", counts["migrations"])
    yield _counter("evictions", "Recalled slabs that had to go at once, or were taken.", counts["evictions"])
    yield _counter("expiries", "Slabs taken back from silent borrowers.", counts["expiries"])
    yield _counter("fences", "Times that older data connections of a borrower were cut off.", counts["fences"])
    yield _counter("memory_sample_errors", "Memory samples that could not be read.", counts["bad_samples"])
    pages = [("moved", counts["moved_pages"]), ("dropped", counts["dropped_pages"])]
    yield _counter("recalled_pages", "Pages of recalled slabs.", pages, ("fate",))
    refused = ((reason.lower(), count) for reason, count in status.refused.items())
    yield _counter("refused", "Requests and connections refused.", refused, ("reason",))


def _traffic(status: DonorStatus) -> Iterator[Metric]:
    traffic = status.traffic
    cpu_s = traffic["cpu_ns"] / 1e9
    yield _counter("reads", "Reads served over networks.", traffic["reads"])
    yield _counter("writes", "Writes served over networks.", traffic["writes"])
    yield _counter("read_bytes", "Bytes that borrowers read over networks.", traffic["read_bytes"])
    yield _counter("written_bytes", "Bytes that borrowers wrote over networks.", traffic["written_bytes"])
    yield _counter("serving_cpu_seconds", "Time on a CPU of the threads that serve pages.", cpu_s)
    yield _counter("rdma_keys", "Keys given to queue pairs, one for each pair and slab.", traffic["rdma_keys"])
    yield _gauge("data_connections", "Data connections by TCP.", traffic["connections"])
    yield _gauge("queue_pairs", "Data connections by RDMA.", traffic["rdma_connections"])
    yield _gauge("rdma_registered_bytes", "Memory registered with RDMA devices.", traffic["rdma_registered_bytes"])
