"""Memory of the donor's machine: samples, smoothed, against the operator's settings."""

from dataclasses import asdict

from farside.config import DaemonConfig
from farside.daemon.control.messages import FreeMem
from farside.daemon.headroom import (
    HeadroomParams,
    MemorySnapshot,
    SlabCounts,
    default_headroom_bytes,
    smoothed_use_bytes,
    used_by_others_bytes,
)
from farside.memory_sense import MemoryReading


def headroom_params(config: DaemonConfig, total_bytes: int) -> HeadroomParams:
    """The policy's parameters, with the settings' zeros resolved."""
    return HeadroomParams(
        slab_bytes=config.slab_bytes,
        headroom_bytes=config.headroom_bytes or default_headroom_bytes(total_bytes),
        hysteresis_bytes=config.headroom_hysteresis_bytes or config.slab_bytes,
        preallocate_slabs=config.preallocate_slabs,
        max_slabs=config.max_slabs,
        psi_full_pct_limit=config.psi_full_pct_limit,
        migrate_deadline_s=config.migrate_deadline_s,
        evict_deadline_s=config.evict_deadline_s,
    )


class MemoryWatch:
    """Smoothed memory use by other programs, and the newest sample."""

    def __init__(self, config: DaemonConfig, first: MemoryReading, *, slabs_bytes: int = 0) -> None:
        """Starts with the first sample, taken while our slabs had `slabs_bytes`."""
        self._beta = config.ewma_beta
        self._slab_bytes = config.slab_bytes
        self._hugepages = config.hugepages
        self.total_bytes = config.memory_total_bytes or first.total_bytes
        self.params = headroom_params(config, self.total_bytes)
        self._smoothed_bytes: float | None = None
        self.note(first, slabs_bytes=slabs_bytes)

    @property
    def smoothed_bytes(self) -> float:
        """U: smoothed use by other programs."""
        assert self._smoothed_bytes is not None
        return self._smoothed_bytes

    def note(self, reading: MemoryReading, *, slabs_bytes: int) -> None:
        """Takes a sample; `slabs_bytes` is what our slabs had at that moment."""
        # What our slabs have is taken off: it is no use by others, and would count twice.
        self._reading = reading
        self._used_bytes = used_by_others_bytes(
            total_bytes=reading.total_bytes, available_bytes=reading.available_bytes, slabs_bytes=slabs_bytes
        )
        self._smoothed_bytes = smoothed_use_bytes(self._smoothed_bytes, self._used_bytes, self._beta)

    def huge_slabs_free(self) -> int:
        """Slabs for which there are reserved huge pages; 0 where a page is larger than a slab."""
        page_bytes = self._reading.huge_page_bytes
        # A slab is made of whole pages: pages that are larger than it, or do not divide it, carry none.
        if self._hugepages == "off" or not page_bytes or self._slab_bytes % page_bytes:
            return 0
        return self._reading.huge_pages_free * page_bytes // self._slab_bytes

    def snapshot(self, slabs: SlabCounts) -> MemorySnapshot:
        """Snapshot for the policies."""
        return MemorySnapshot(
            total_bytes=self.total_bytes,
            used_bytes=self.smoothed_bytes,
            used_now_bytes=self._used_bytes,
            **asdict(slabs),
            huge_free=self.huge_slabs_free(),
            psi_full_pct=self._reading.psi_full_pct,
        )

    def free_mem(self, snapshot: MemorySnapshot, *, leasable_slabs: int) -> FreeMem:
        """The answer to QUERY_MEM, with how many slabs could be lent now. [infiniswap §2.6.1, 2]"""
        slabs_bytes = (snapshot.unmapped + snapshot.mapped + snapshot.recalled) * self._slab_bytes
        return FreeMem(
            free_slabs=leasable_slabs,
            # The larger: a donor that was squeezed just now must not look like the emptiest.
            used_bytes=int(max(snapshot.used_bytes, snapshot.used_now_bytes)) + slabs_bytes,
            total_bytes=self.total_bytes,
            headroom_bytes=self.params.headroom_bytes,
            slab_bytes=self._slab_bytes,
        )
