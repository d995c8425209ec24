"""The donor's Prometheus metrics, made at each scrape from its last status."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from farside.daemon.status import DonorStatus


def donor_metrics(status: DonorStatus) -> Iterator[Metric]:
    """All metrics of this moment."""
    yield _slabs(status)
    yield from _memory(status)
    yield from _counters(status)
    yield from _traffic(status)


def _slabs(status: DonorStatus) -> Metric:
    family = GaugeMetricFamily("farside_donor_slabs", "Slabs by state.", labels=["state"])
    for state, count in status.slab_counts.items():
        family.add_metric([state], count)
    return family


def _memory(status: DonorStatus) -> Iterator[Metric]:
    memory = status.memory
    for name, text, value in (
        ("memory_bytes", "Memory that this donor reckons with.", memory.total_bytes),
        ("memory_used_bytes", "Memory that everybody else uses, smoothed.", memory.used_bytes),
        ("memory_slabs_bytes", "Memory in slabs.", memory.slabs_bytes),
        ("memory_free_bytes", "Memory that nobody uses.", memory.free_bytes),
        ("headroom_bytes", "Memory that is to stay free.", memory.headroom_bytes),
        ("leasable_slabs", "Slabs that could be lent now.", memory.free_slabs),
        ("draining", "1 while nothing is lent, for maintenance.", int(status.draining)),
        ("sessions", "Borrowers with a session.", len(status.sessions) + status.sessions_omitted),
    ):
        yield GaugeMetricFamily(f"farside_donor_{name}", text, value=value)


def _counters(status: DonorStatus) -> Iterator[Metric]:
    for name, text, value in (
        ("slabs_lent", "Slabs lent.", status.counters["lent"]),
        ("slabs_released", "Slabs that borrowers gave back unasked.", status.counters["released"]),
        ("migrations", "Recalled slabs that were let go in time to move them.", status.counters["migrations"]),
        ("evictions", "Recalled slabs that had to go at once, or were taken.", status.counters["evictions"]),
        ("expiries", "Slabs taken back from silent borrowers.", status.counters["expiries"]),
        ("fences", "Times that older data connections of a borrower were cut off.", status.counters["fences"]),
        ("memory_sample_errors", "Memory samples that could not be read.", status.counters["bad_samples"]),
    ):
        yield CounterMetricFamily(f"farside_donor_{name}", text, value=value)
    recalled = CounterMetricFamily("farside_donor_recalled_pages", "Pages of recalled slabs.", labels=["fate"])
    recalled.add_metric(["moved"], status.counters["moved_pages"])
    recalled.add_metric(["dropped"], status.counters["dropped_pages"])
    yield recalled
    refused = CounterMetricFamily("farside_donor_refused", "Requests and connections refused.", labels=["reason"])
    for reason, count in status.refused.items():
        refused.add_metric([reason.lower()], count)
    yield refused


def _traffic(status: DonorStatus) -> Iterator[Metric]:
    traffic = status.traffic
    for name, text, value in (
        ("reads", "Reads served over networks.", traffic["reads"]),
        ("writes", "Writes served over networks.", traffic["writes"]),
        ("read_bytes", "Bytes that borrowers read over networks.", traffic["read_bytes"]),
        ("written_bytes", "Bytes that borrowers wrote over networks.", traffic["written_bytes"]),
        ("serving_cpu_seconds", "Time on a CPU of the threads that serve pages.", traffic["cpu_ns"] / 1e9),
        ("rdma_keys", "Keys given to queue pairs, one for each pair and slab.", traffic["rdma_keys"]),
    ):
        yield CounterMetricFamily(f"farside_donor_{name}", text, value=value)
    for name, text, value in (
        ("data_connections", "Data connections by TCP.", traffic["connections"]),
        ("queue_pairs", "Data connections by RDMA.", traffic["rdma_connections"]),
        ("rdma_registered_bytes", "Memory registered with RDMA devices.", traffic["rdma_registered_bytes"]),
    ):
        yield GaugeMetricFamily(f"farside_donor_{name}", text, value=value)
