"""Status of a running device for `farside status`, and the admin command that sets faults."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import msgspec

from farside.blockdev.client.listener import Clients
from farside.blockdev.device import BlockDevice
from farside.blockdev.donor.donor import Donor
from farside.blockdev.engine_port import Engine
from farside.blockdev.mapping.table import Slab
from farside.blockdev.total import LONGEST, latency_buckets
from farside.config import FaultRule
from farside.errors import ConfigError
from farside.kmod_shim.engine.binding import GRANULE_BYTES, EngineStats, Fault

LIVE_PAGES_GRANULES_MAX = 16384  # counting live pages reads 4 KiB of state a granule; above 32 GiB it is left out
SLABS_MAX = 4096  # in one answer, which is a line of at most 1 MiB
GIB = 1 << 30
_DONOR_FIGURES = ("free_slabs", "used_bytes", "total_bytes", "headroom_bytes")  # of FREE_MEM; 0 before the first


class Rates:
    """Requests a second, over the time since it was last asked, at least a second."""

    def __init__(self, stats: EngineStats) -> None:
        self._last = time.monotonic(), stats

    def since_last(self, stats: EngineStats, *, pages_per_s: float) -> Mapping[str, float]:
        """The rates now; ``pages_per_s`` is the device's own."""
        now_s = time.monotonic()
        then_s, before = self._last
        elapsed_s = max(0.001, now_s - then_s)
        if elapsed_s >= 1.0:
            self._last = now_s, stats
        return {
            "reads_per_s": (stats.requests_read - before.requests_read) / elapsed_s,
            "writes_per_s": (stats.requests_write - before.requests_write) / elapsed_s,
            "pages_per_s": pages_per_s,
        }


class Reporter:
    """Status and fault commands of one device."""

    def __init__(self, device: BlockDevice, clients: Clients, engine: Engine) -> None:
        self.device = device
        self._clients = clients
        self._engine = engine
        self._began_s = time.monotonic()
        # Each asker has its own: one that asks often would shorten the time that the other's rates are over.
        self._status_rates, self._figure_rates = Rates(engine.stats()), Rates(engine.stats())

    @property
    def connections(self) -> int:
        """Clients served now."""
        return len(self._clients.taken)

    @property
    def connections_tls(self) -> int:
        """Clients served now that have TLS."""
        return len(self._clients.secure)

    async def status(self, _: Mapping[str, object]) -> object:
        """Admin: everything, as JSON values."""
        context = self.device.context
        config, table = context.config, context.table
        stats, totals = self._engine.stats(), self.device.totals()
        mapped = sum(slab.used for slab in table.slabs.values())
        return {
            "role": "blockdev",
            "name": config.name,
            "node": config.node or socket.gethostname(),
            "pid": os.getpid(),
            "server_pid": os.getpid(),
            "supervisor_pid": os.getppid(),
            "uptime_s": time.monotonic() - self._began_s,
            "size_bytes": config.size_bytes,
            "slab_bytes": config.slab_bytes,
            "protection": config.protection,
            "donors_hold": config.donors_hold if context.has_disk else "all",
            "offered": self.device.offered.is_set(),
            "listen": config.listen,
            "disk_path": os.fspath(config.disk_path) if context.has_disk else "",
            "mapped_bytes": mapped * GRANULE_BYTES,
            **self.pages(),
            "connections": self.connections,
            "connections_tls": self.connections_tls,
            "workers": config.workers,
            "longest_request_s": totals[LONGEST] / 1e9,
            "rates": self._status_rates.since_last(stats, pages_per_s=self.device.rates),
            "pages_in": _by_place(totals, "pages_in_"),
            "pages_out": _by_place(totals, "pages_out_"),
            "hedges": {
                "asked": totals["reads_hedged"],
                "won": totals["hedges_won"],
                "refused_budget": totals["hedges_no_budget"],
                "refused_overload": totals["hedges_overload"],
            },
            "counters": asdict(table.counters) | {"lost_reads": totals["pages_lost"]},
            "errors": {name: totals[f"{name}_errors"] for name in ("checksum", "disk", "link")}
            | {"requests": totals["requests_error"], "pages_lost": totals["pages_lost"]},
            "donors_left_out": sorted(table.distrusted),
            "donors": [self._donor(donor) for donor in self.device.donors.all()],
            "slabs": [self._slab(slab) for slab in islice(table.slabs.values(), SLABS_MAX)],
            "slabs_omitted": max(0, len(table.slabs) - SLABS_MAX),
            "engine": asdict(stats),
        }

    async def figures(self, _: Mapping[str, object]) -> object:
        """Admin: size, places of pages, rates and latencies, for the node's agent: what is cheap to say each second."""
        totals, stats, config = self.device.totals(), self._engine.stats(), self.device.context.config
        return {
            "role": "blockdev",
            "name": config.name,
            "size_bytes": config.size_bytes,
            "copies": config.copies,
            **self.pages(),
            "rates": self._figure_rates.since_last(stats, pages_per_s=self.device.rates),
            "latency_buckets": {kind: latency_buckets(totals, kind) for kind in ("read", "write")},
        }

    def pages(self) -> Mapping[str, Any]:
        """Pages by where they are, and whether the disk fails; None: there is no disk."""
        context, figures = self.device.context, self._engine.figures
        # In this order: a page that leaves the disk in between counts as one that has not left it yet, never twice.
        filled, disk_alone = figures.pages_filled(), figures.pages_disk_alone()
        return {
            "pending_bytes": figures.pending_bytes(),
            "pages_remote": max(0, filled - disk_alone),
            "pages_exposed": figures.pages_exposed(),
            "pages_single": figures.pages_single(),
            "pages_disk_alone": disk_alone,
            "pages_clear": figures.pages_clear(),
            "disk_failed": not context.is_disk_well if context.has_disk else None,
        }

    async def fault(self, arguments: Mapping[str, object]) -> object:
        """Admin: sets one rule of the fault layer, as a [[fault]] table of the settings does. Raises ConfigError."""
        try:
            rule = msgspec.convert(arguments, type=FaultRule)
            # A look only: an unknown kind is a KeyError here, and not later in the engine.
            Fault[rule.kind.upper()]
        except (msgspec.ValidationError, KeyError) as error:
            kinds = ", ".join(kind.name.lower() for kind in Fault)
            raise ConfigError(f"no such fault rule: {error}", hint=f"kinds are {kinds}") from error
        if rule.donor != "disk" and rule.donor not in {donor.address.node for donor in self.device.donors.all()}:
            raise ConfigError(f"no donor {rule.donor!r} in the peers file")
        self.device.set_fault(rule.donor, rule.kind, rule.every, rule.delay_s)
        return {}

    async def trust(self, arguments: Mapping[str, object]) -> object:
        """Admin: uses a donor again that was left out for damaged pages. Raises ConfigError."""
        if set(arguments) != {"donor"}:
            raise ConfigError("trust takes one argument", hint="farside admin trust donor=NODE")
        self.device.donors.trust(str(arguments["donor"]))
        return {}

    def _donor(self, donor: Donor) -> Mapping[str, object]:
        return {
            "node": donor.address.node,
            "control": donor.address.control,
            "state": donor.health.value,
            "reason": donor.reason,
            "transport": donor.transport,
            "has_codes": donor.has_codes,
            **{name: getattr(donor.figures, name, 0) for name in _DONOR_FIGURES},
            "slabs": donor.view().slabs,
            "hedge_after_s": hedge_after_s(self.device, donor),
            "damaged_pages": self.device.context.table.damaged_pages.get(donor.address.trusted_as, 0),
            "faults_hit": self._engine.fault_hits(donor.number),
        }

    def _slab(self, slab: Slab) -> Mapping[str, object]:
        context = self.device.context
        share = context.config.slab_bytes / GIB
        told: dict[str, object] = {
            "slab": slab.slab,
            "donor": context.table.node(slab.donor),
            "lease": slab.lease,
            "state": slab_state(slab),
            "extents_used": slab.used,
            "extents": len(slab.granules),
            "activity": context.slab_rates.get(slab.slab, 0.0) / share,
        }
        if len(context.activity.counters) <= LIVE_PAGES_GRANULES_MAX:
            told["live_pages"] = sum(self._engine.cluster_count(c)[1] for c in context.table.residents(slab.slab))
        return told


def hedge_after_s(device: BlockDevice, donor: Donor) -> float | None:
    """Age after which a read of the donor is also sent to the second copy; None: never."""
    if not device.context.config.hedge_s:
        return None
    return device.context.engine.figures.hedge_ns(donor.number) / 1e9


def slab_state(slab: Slab) -> str:
    """live, draining, or gone (given back, not confirmed yet)."""
    if slab.returned:
        return "gone"
    return "draining" if slab.draining else "live"


def _by_place(totals: Mapping[str, int], prefix: str) -> Mapping[str, int]:
    return {name.removeprefix(prefix): count for name, count in totals.items() if name.startswith(prefix)}
