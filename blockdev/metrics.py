"""Prometheus metrics of a borrower, collected at each scrape; counters continue across its processes.

They are served from the event loop. Only one thread may call a device, and a thread of the metrics server would have to
be waited for when a successor takes over.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from farside.blockdev.donor.donor import DonorHealth
from farside.blockdev.status import Reporter, hedge_after_s, slab_state
from farside.blockdev.total import LONGEST, latency_buckets
from farside.scrape import family

_gauge = partial(family, GaugeMetricFamily, "farside_blockdev")
_counter = partial(family, CounterMetricFamily, "farside_blockdev")

# Name in the engine's statistics -> (metric, label value): one family for each kind of thing counted.
_PAGES_IN = ("remote", "replica", "disk", "pending", "zero")
_PAGES_OUT = ("remote", "replica", "disk", "zero")
_REQUESTS = ("read", "write", "flush", "trim", "zero", "other")
_PLAIN = {
    "requests_error": "Requests answered with an error.",
    "pages_lost": "Pages of reads answered with an error because no copy was left, or none could be read.",
    "pages_moved": "Pages copied from donor to donor.",
    "checksum_errors": "Copies of pages found damaged and dropped.",
    "disk_errors": "Requests that the backup disk failed.",
    "link_errors": "Data connections to donors that broke.",
    "reads_hedged": "Reads asked of a second copy because the first was late.",
    "hedges_won": "Of these, reads that the second copy answered first.",
    "hedges_no_budget": "Late reads not asked of a second copy at once, because many had been lately.",
    "hedges_overload": "Late reads not asked of a second copy at once, because that was slower than usual.",
    "reads_retried": "Reads asked of another copy because the first failed.",
    "writes_round": "Writes that went round a donor that was suspect.",
    "writes_fenced": "Writes dropped because their connection was dead.",
    "waits_pending": "Requests that found the disk's queue full.",
}
_EVENTS = {
    "evictions": "Slabs that donors wanted back at once.",
    "migrations": "Slabs that donors wanted back with time to move.",
    "migrated_pages": "Pages of recalled slabs that are on other donors now.",
    "dropped_pages": "Pages of recalled slabs left to disk or replica.",
    "failovers": "Donors declared failed.",
    "takeovers": "Server processes that took the device over.",
    "slabs_leased": "Slabs leased.",
    "slabs_returned": "Slabs given back.",
    "rdma_fallbacks": "Times that a donor was reached by TCP though RDMA was preferred.",
    "sessions_broken": "Sessions with donors that ended in an error, and greetings that were no donor's.",
}


class DeviceCollector:
    """The families of one device."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def collect(self) -> Iterator[Metric]:
        """All families, from one reading of the engine's counters."""
        device = self._reporter.device
        # Saved before it is shown: a successor that began with less would make a counter fall, and Prometheus takes a
        # counter that falls for one that was reset, and adds all of it again.
        device.save()
        yield from engine_families(device.context.table.totals)
        yield from self._device_families()

    def _device_families(self) -> Iterator[Metric]:
        device = self._reporter.device
        table = device.context.table
        figures = device.context.engine.figures
        yield _gauge("size_bytes", "Size of the device.", device.context.config.size_bytes)
        yield _gauge("connections", "Clients now.", self._reporter.connections)
        yield _gauge("connections_tls", "Clients now that have TLS.", self._reporter.connections_tls)
        yield _gauge("pending_bytes", "Payload that waits for the disk now.", figures.pending_bytes())
        told = self._reporter.pages()
        yield _gauge("pages_remote", "Pages that donors have now, or are about to have.", told["pages_remote"])
        failed = told["disk_failed"]
        text = "1 while the backup disk fails; there is none without a disk."
        yield _gauge("disk_failed", text, None if failed is None else float(failed))
        text = "Pages with one copy now, though the protection promises two."
        yield _gauge("pages_exposed", text, figures.pages_exposed())
        text = "Pages that one donor has and no second now, though two donors shall."
        yield _gauge("pages_single", text, figures.pages_single())
        text = "Pages that the backup disk alone has now; one that breaks loses them."
        yield _gauge("pages_disk_alone", text, figures.pages_disk_alone())
        text = "Pages that donors have in the clear now; with encrypt_remote they are sealed one after the other."
        yield _gauge("pages_clear", text, figures.pages_clear())
        text = "Donors whose data connections by TCP carry no codes: they run an earlier version."
        yield _gauge("donors_without_codes", text, sum(not donor.has_codes for donor in device.donors.all()))
        text = "Donors that are left out, as they gave damaged pages again and again."
        yield _gauge("donors_left_out", text, len(table.distrusted))
        text = "Copies of pages that a donor had and that were damaged."
        yield _counter("donor_damaged_pages", text, sorted(table.damaged_pages.items()), ("donor",))
        slabs = Tally((table.node(slab.donor), slab_state(slab)) for slab in tuple(table.slabs.values()))
        yield _gauge("slabs", "Leased slabs by donor and state.", sorted(slabs.items()), ("donor", "state"))
        states = Tally(donor.health for donor in device.donors.all())
        yield _gauge("donors", "Donors by state.", ((state, states[state]) for state in DonorHealth), ("state",))
        text = "Age from which on a read of the donor is asked of its second copy as well."
        ages_s = ((each.address.node, hedge_after_s(device, each)) for each in device.donors.all())
        yield _gauge("hedge_after_seconds", text, ages_s, ("donor",))
        counters = asdict(table.counters)
        for name, text in _EVENTS.items():
            yield _counter(name, text, counters[name])


def engine_families(totals: Mapping[str, int]) -> Iterator[Metric]:
    """The families that come from the engine alone, over all processes of the device (total.py)."""
    for name, help_text, label, places in (
        ("pages_in", "Pages read, by where they came from.", "source", _PAGES_IN),
        ("pages_out", "Pages written, by where they went.", "target", _PAGES_OUT),
        ("requests", "Requests by kind.", "kind", _REQUESTS),
    ):
        rows = ((place, totals[f"{name}_{place}"]) for place in places)
        yield _counter(name, help_text, rows, (label,))
    for name, text in _PLAIN.items():
        yield _counter(name, text, totals[name])
    for kind in ("read", "write"):
        yield _histogram(kind, latency_buckets(totals, kind))
    yield _gauge("longest_request_seconds", "The longest request so far.", totals[LONGEST] / 1e9)


def _histogram(kind: str, buckets: tuple[int, ...]) -> HistogramMetricFamily:
    # Bucket i counts [2^i, 2^(i+1)) ns. The sum is not measured; each request counts with the middle of its bucket.
    total, seconds = 0, 0.0
    bounds: list[tuple[str, float]] = []
    for i, count in enumerate(buckets):
        total += count
        seconds += count * 1.5 * 2**i / 1e9
        if i >= 9:  # shorter than a microsecond is one bucket
            bounds.append((repr(2 ** (i + 1) / 1e9), total))
    bounds.append(("+Inf", total))
    return HistogramMetricFamily(
        f"farside_blockdev_{kind}_latency_seconds",
        f"From a {kind} request parsed to its answer queued.",
        buckets=bounds,
        sum_value=seconds,
    )
