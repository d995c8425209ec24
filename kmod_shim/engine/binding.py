"""Python binding of the engine: `engine.h`, call for call; errors are exceptions, and objects own their C handles.

The only importer of `_ffi`. A method is the C function without `ne_` (`ne_cluster_map` is `Device.cluster_map`); what
it means, its limits and its errors are above its prototype in `engine.h`. A call that answers `-errno` raises
`EngineError(op, errno)`. A file descriptor that is given away belongs to the engine once the call has returned, and
stays the caller's if it raises. One thread at a time calls a `Device`; the engine's own threads never call Python.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from farside.errors import EngineError
from farside.kmod_shim.engine._ffi import ffi as ffi  # also for aggregation.py
from farside.kmod_shim.engine._ffi import lib as lib

# All numbers come from the compiled engine.h: Python has no copy of its own that could differ.
PAGE_BYTES: int = lib.NE_PAGE_BYTES
GRANULE_BYTES: int = lib.NE_CLUSTER_BYTES
MOVER: int = lib.NE_MOVER
DONORS_MAX: int = lib.NE_DONORS_MAX
SLABS_MAX: int = lib.NE_SLABS_MAX
LATENCY_BUCKETS: int = lib.NE_LATENCY_BUCKETS


class Protection(IntEnum):
    """Where a page's second copy is."""

    DISK = lib.NE_PROTECT_DISK
    REPLICA = lib.NE_PROTECT_REPLICA
    NONE = lib.NE_PROTECT_NONE
    BOTH = lib.NE_PROTECT_BOTH


class DonorState(IntEnum):
    """State of a donor: what the workers may do with it."""

    NONE = lib.NE_DONOR_NONE
    UP = lib.NE_DONOR_UP
    SUSPECT = lib.NE_DONOR_SUSPECT
    FAILED = lib.NE_DONOR_FAILED


class SlabState(IntEnum):
    """Where a slab is between lease and return."""

    NONE = lib.NE_SLAB_NONE
    LIVE = lib.NE_SLAB_LIVE
    DRAINING = lib.NE_SLAB_DRAINING
    GONE = lib.NE_SLAB_GONE


class Fault(IntEnum):
    """How the fault layer spoils an operation."""

    DELAY = lib.NE_FAULT_DELAY
    ERROR = lib.NE_FAULT_ERROR
    SHORT = lib.NE_FAULT_SHORT
    DISCONNECT = lib.NE_FAULT_DISCONNECT
    CORRUPT = lib.NE_FAULT_CORRUPT
    HANG = lib.NE_FAULT_HANG


class EventKind(IntEnum):
    """Kind of an event; `engine.h` explains its numbers a to d."""

    WANT = lib.NE_EVENT_WANT
    CLUSTER_FREE = lib.NE_EVENT_CLUSTER_FREE
    LINK_DOWN = lib.NE_EVENT_LINK_DOWN
    DONOR_SUSPECT = lib.NE_EVENT_DONOR_SUSPECT
    SLAB_DRAINED = lib.NE_EVENT_SLAB_DRAINED
    CLUSTER_DRAINED = lib.NE_EVENT_CLUSTER_DRAINED
    CONN_CLOSED = lib.NE_EVENT_CONN_CLOSED
    DISK_ERROR = lib.NE_EVENT_DISK_ERROR
    CHECKSUM = lib.NE_EVENT_CHECKSUM


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """A device's parameters; units are in the names, ranges in `engine.h`."""

    size_bytes: int
    slab_bytes: int
    pending_bytes: int
    workers: int
    protection: Protection | int
    deadline_ms: int
    hedge_us: int
    spin_us: int
    flush_wait_ms: int
    encrypt_disk: int
    encrypt_remote: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabInfo:
    """A slab: our number for it, and the lease that the donor knows it by."""

    slab: int
    donor: int
    lease: int
    epoch: int
    token: int
    state: SlabState = SlabState.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class GranuleMapping:
    """One mapping of a granule: an extent of a slab. ``index`` is its position among the granule's mappings."""

    index: int
    slab: int
    extent: int
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """An event from the engine's threads."""

    kind: EventKind
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since this process began; see `struct ne_stats`. Latency bucket i counts [2^i, 2^(i+1)) ns."""

    requests_read: int
    requests_write: int
    requests_flush: int
    requests_trim: int
    requests_zero: int
    requests_other: int
    requests_error: int
    pages_in_remote: int
    pages_in_replica: int
    pages_in_disk: int
    pages_in_pending: int
    pages_in_zero: int
    pages_out_remote: int
    pages_out_replica: int
    pages_out_disk: int
    pages_out_zero: int
    pages_lost: int
    pages_moved: int
    checksum_errors: int
    disk_errors: int
    link_errors: int
    reads_hedged: int
    reads_retried: int
    writes_round: int
    writes_fenced: int
    hedges_won: int
    hedges_no_budget: int
    hedges_overload: int
    waits_pending: int
    sleeps: int
    spins: int
    latency_read: tuple[int, ...]
    latency_write: tuple[int, ...]
    longest_request_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportStats:
    """A donor's data plane since it began."""

    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    refused: int
    connections: int
    cpu_ns: int
    rdma_connections: int
    rdma_keys: int
    rdma_registered_bytes: int


class Handled(Protocol):
    """Whatever has a handle of the engine's."""

    handle: Any


# What every call goes through: the engine answers 0 or a figure, or -errno.
def _check(op: str, answer: int) -> int:
    if answer < 0:
        raise EngineError(op, -answer)
    return answer


def _keys(keys: bytes) -> object:
    # 32 bytes, or NULL for a connection without codes.
    assert len(keys) in (0, 32)
    return keys or ffi.NULL


def _values(record: type[Params | SlabInfo | EngineStats | ExportStats], of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in record.__dataclass_fields__}


def _params(params: Params) -> object:
    # Fields have the names of struct ne_params; cffi refuses a name that the struct does not have.
    return ffi.new("struct ne_params *", _values(Params, params))


# A class apart from Device only because of their number; both share one handle.
class Figures:
    """Figures of a running device, added up over all its threads."""

    def __init__(self, handle: Callable[[], Any]) -> None:
        """``handle`` is asked each time: a device that was destroyed has none."""
        self._handle = handle

    def hedge_ns(self, donor: int) -> int:
        """Age after which reads of the donor are hedged now."""
        return int(lib.ne_hedge_ns(self._handle(), donor))

    def pending_bytes(self) -> int:
        """Payload bytes that wait for the disk now."""
        return int(lib.ne_pending_bytes(self._handle()))

    def pages_exposed(self) -> int:
        """Pages with one copy, though the protection promises two."""
        return int(lib.ne_pages_exposed(self._handle()))

    def pages_single(self) -> int:
        """Pages that only one donor has where two should (replica, both), otherwise 0."""
        return int(lib.ne_pages_single(self._handle()))

    def pages_disk_alone(self) -> int:
        """Pages that only the disk has; they are lost if it breaks."""
        return int(lib.ne_pages_disk_alone(self._handle()))

    def pages_filled(self) -> int:
        """Pages that have a copy anywhere: at donors, on the disk, or on their way there."""
        return int(lib.ne_pages_filled(self._handle()))

    def pages_clear(self) -> int:
        """Pages that donors have in the clear."""
        return int(lib.ne_pages_clear(self._handle()))


class Device:
    """A slab block device in this process. `destroy` ends it here; the state memfd keeps it.

    Attributes:
        adopted: The state memfd held a device already.
        event_fd: Readable when `event_next` has something.
        figures: What it says of itself now.
    """

    def __init__(self, params: Params, state_fd: int, disk_fd: int) -> None:
        """Make a device over an empty state memfd, or adopt the device in it."""
        # An out parameter: cffi frees the pointer itself, while what it points to is the engine's until destroy().
        handle = ffi.new("struct ne_device **")
        _check("device_create", lib.ne_device_create(_params(params), state_fd, disk_fd, handle))
        self._device = handle[0]
        self._granules = params.size_bytes // GRANULE_BYTES
        # Made once and filled anew each second: a device of 1 TiB has half a million counters.
        self._activity = ffi.new("uint32_t[]", self._granules)
        self.adopted = bool(lib.ne_device_adopted(self._device))
        self.event_fd = int(lib.ne_device_event_fd(self._device))
        self.figures = Figures(lambda: self._device)

    @staticmethod
    def state_bytes(params: Params) -> int:
        """The size that the state memfd must have."""
        return _check("state_bytes", int(lib.ne_state_bytes(_params(params))))

    @staticmethod
    def state_check(params: Params, state_fd: int) -> None:
        """Returns when a device of these parameters can be made over the state memfd, or adopted from it."""
        _check("state_check", lib.ne_state_check(_params(params), state_fd))

    def stop(self) -> None:
        """Stops every worker at a request boundary; the state memfd is then ready for a successor."""
        _check("device_stop", lib.ne_device_stop(self._device))

    def destroy(self) -> None:
        """Stops, and frees what this process holds. A second call does nothing."""
        # The C function takes NULL, so a second call is harmless.
        device, self._device = self._device, ffi.NULL
        lib.ne_device_destroy(device)

    def prefault(self) -> None:
        """Load all memory that serving pages may use."""
        _check("device_prefault", lib.ne_device_prefault(self._device))

    def conn_attach(self, worker: int, sock: int, session: Handled | None = None) -> None:
        """Serves (or resumes) NBD transmission on the socket; a session, which is ours from then on: by TLS."""
        if session is None:
            _check("conn_attach", lib.ne_conn_attach(self._device, worker, sock))
            return
        _check("conn_attach_tls", lib.ne_conn_attach_tls(self._device, worker, sock, session.handle))
        # Only after success: until then its owner has to close it.
        session.handle = ffi.NULL

    def conn_is_unfinished(self, worker: int) -> bool:
        """True when the state holds a connection of this worker that nobody serves."""
        return bool(lib.ne_conn_is_unfinished(self._device, worker))

    def conn_forget(self, worker: int) -> None:
        """Drops an unfinished connection whose socket is gone."""
        _check("conn_forget", lib.ne_conn_forget(self._device, worker))

    def donor_set(self, donor: int, state: DonorState) -> None:
        """Set for all workers what they may do with the donor."""
        _check("donor_set", lib.ne_donor_set(self._device, donor, int(state)))

    def donor_get(self, donor: int) -> DonorState:
        """State of the donor as the workers see it now."""
        return DonorState(_check("donor_get", lib.ne_donor_get(self._device, donor)))

    def link_attach_tcp(self, donor: int, worker: int, sock: int, keys: bytes = b"") -> None:
        """Gives the worker (or `MOVER`) a data connection to the donor; ``keys``: of its heads' codes (wire.h)."""
        _check("link_attach_tcp", lib.ne_link_attach_tcp(self._device, donor, worker, sock, _keys(keys)))

    def link_attach_rdma(self, donor: int, worker: int, link: "RdmaLink") -> None:
        """Gives the worker (or `MOVER`) a queue pair to the donor."""
        _check("link_attach_rdma", lib.ne_link_attach_rdma(self._device, donor, worker, link.handle))
        # Only after success: the engine owns it now, and close() must not free it.
        link.handle = ffi.NULL

    def link_attach_shm(self, donor: int) -> None:
        """The donor's slabs are memory of this host."""
        _check("link_attach_shm", lib.ne_link_attach_shm(self._device, donor))

    def fault_set(self, donor: int, kind: Fault, every: int, delay_us: int = 0) -> None:
        """Spoils one in ``every`` operations to the donor; 0 ends it."""
        _check("fault_set", lib.ne_fault_set(self._device, donor, int(kind), every, delay_us))

    def fault_hits(self, donor: int) -> int:
        """Operations that the donor's present fault rules have hit."""
        return int(lib.ne_fault_hits(self._device, donor))

    def disk_fault_set(self, kind: Fault, every: int, delay_us: int = 0) -> None:
        """Spoils one in ``every`` disk writes; 0 ends it."""
        _check("disk_fault_set", lib.ne_disk_fault_set(self._device, int(kind), every, delay_us))

    def slab_add(self, info: SlabInfo, memfd: int = -1) -> None:
        """Makes a lease known; with its memory where the donor is on this host."""
        raw = ffi.new("struct ne_slab_info *", _values(SlabInfo, info))
        _check("slab_add", lib.ne_slab_add(self._device, raw, memfd))

    def slab_remap(self, slab: int, memfd: int) -> None:
        """Gives a known slab its memory again, after adoption."""
        _check("slab_remap", lib.ne_slab_remap(self._device, slab, memfd))

    def slab_get(self, slab: int) -> SlabInfo:
        """The slab in the state."""
        info = ffi.new("struct ne_slab_info *")
        _check("slab_get", lib.ne_slab_get(self._device, slab, info))
        return SlabInfo(**_values(SlabInfo, info) | {"state": SlabState(info.state)})

    def slab_remove(self, slab: int) -> None:
        """Forgets a slab that nothing uses."""
        _check("slab_remove", lib.ne_slab_remove(self._device, slab))

    def slab_drain(self, slab: int, deadline_ms: int, fail: bool = False) -> None:
        """Empties the slab in the background; `EventKind.SLAB_DRAINED` ends it."""
        _check("slab_drain", lib.ne_slab_drain(self._device, slab, deadline_ms, fail))

    def cluster_map(self, granule: int, slab: int, extent: int) -> int:
        """Adds a mapping; returns its index."""
        return _check("cluster_map", lib.ne_cluster_map(self._device, granule, slab, extent))

    def cluster_get(self, granule: int) -> tuple[GranuleMapping, ...]:
        """Mappings of the granule, writable or being drained."""
        # NE_HOMES in engine.h: primary, replica, and one that is being filled.
        mappings = ffi.new("struct ne_home_info[3]")
        _check("cluster_get", lib.ne_cluster_get(self._device, granule, mappings))
        return tuple(
            GranuleMapping(index=i, slab=mapping.slab, extent=mapping.extent, writable=bool(mapping.writable))
            for i, mapping in enumerate(mappings)
            if mapping.valid
        )

    def cluster_count(self, granule: int) -> tuple[int, int]:
        """(pages with content, pages that some donor holds)."""
        counts = ffi.new("uint32_t[2]")
        _check("cluster_count", lib.ne_cluster_count(self._device, granule, counts))
        return counts[0], counts[1]

    def cluster_drain(self, granule: int, slab: int) -> None:
        """Empties the granule's mapping on the slab; `EventKind.CLUSTER_DRAINED` ends it."""
        _check("cluster_drain", lib.ne_cluster_drain(self._device, granule, slab))

    def event_next(self) -> EngineEvent | None:
        """The next event, or None."""
        event = ffi.new("struct ne_event *")
        if not lib.ne_event_next(self._device, event):
            return None
        return EngineEvent(kind=EventKind(event.kind), a=event.a, b=event.b, c=event.c, d=event.d)

    def stats(self) -> EngineStats:
        """All counters, summed over the workers."""
        raw = ffi.new("struct ne_stats *")
        _check("stats_get", lib.ne_stats_get(self._device, raw))
        # Arrays in C are histograms; everything else is one number.
        times: dict[str, Any] = {"latency_read": tuple(raw.latency_read), "latency_write": tuple(raw.latency_write)}
        return EngineStats(**_values(EngineStats, raw) | times)

    def lift_set(self, on: bool) -> None:
        """Set whether such pages are copied to donors in the background; WANT names their unmapped granules."""
        lib.ne_lift_set(self._device, on)

    def activity(self) -> Sequence[int]:
        """Cumulative page I/O of each granule since this process began, wrapping at 2^32."""
        _check("activity_get", lib.ne_activity_get(self._device, self._granules, self._activity))
        # Plain memory instead of half a million Python objects: an idle second only compares it. A copy, because the
        # next call fills the buffer anew.
        counters = array("I")
        counters.frombytes(ffi.buffer(self._activity))
        return counters


class RdmaLink:
    """A queue pair that no worker has yet. `close` frees it; one that was given away is the engine's."""

    def __init__(self, sock: int, limit_ms: int) -> None:
        """Makes it beside an authenticated data connection; blocks up to ``limit_ms``, in any thread."""
        handle = ffi.new("struct ne_link **")
        _check("rdma_connect", lib.ne_rdma_connect(sock, limit_ms, handle))
        self.handle = handle[0]

    def probe(self, lease: int, token: int, limit_ms: int) -> None:
        """Reads a few bytes of a lease; blocks up to ``limit_ms``, in any thread.

        Raises:
            EngineError: why nothing can be read by it.
        """
        _check("link_probe", lib.ne_link_probe(self.handle, lease, token, limit_ms))

    def give_away(self) -> Any:
        """The handle, for a call of the engine that takes it."""
        handle, self.handle = self.handle, ffi.NULL
        return handle

    def close(self) -> None:
        """Frees it, if it is still ours. A second call does nothing."""
        handle, self.handle = self.handle, ffi.NULL
        if handle != ffi.NULL:
            lib.ne_link_discard(handle)


class Exporter:
    """The donor's data plane: leases and the threads that serve them."""

    def __init__(self) -> None:
        handle = ffi.new("struct ne_export **")
        _check("export_create", lib.ne_export_create(handle))
        self._export = handle[0]

    def destroy(self) -> None:
        """Ends every connection and thread. A second call does nothing."""
        export, self._export = self._export, ffi.NULL
        lib.ne_export_destroy(export)

    def lease(self, lease: int, session: int, token: int, addr: int, size_bytes: int) -> None:
        """Lets connections of the session reach the memory at ``addr`` (from `map`)."""
        # Memory is an integer in Python, from map(): only the engine reads and writes it.
        pointer = ffi.cast("void *", addr)
        _check("export_lease", lib.ne_export_lease(self._export, lease, session, token, pointer, size_bytes))

    def revoke(self, lease: int) -> None:
        """Ends the lease; when this returns nobody touches the memory through it."""
        _check("export_revoke", lib.ne_export_revoke(self._export, lease))

    def conn(self, session: int, sock: int, keys: bytes = b"") -> None:
        """Serves data requests of the session on the socket; ``keys``: of its heads' codes (wire.h)."""
        _check("export_conn", lib.ne_export_conn(self._export, session, sock, _keys(keys)))

    def conn_rdma(self, session: int, sock: int, address: str = "") -> None:
        """Gives the session a queue pair beside the socket, at this machine's address on the RDMA network."""
        _check("export_conn_rdma", lib.ne_export_conn_rdma(self._export, session, sock, address.encode()))

    def offer(self, addr: int, size_bytes: int) -> None:
        """Any thread: this memory may be leased soon, and is registered ahead."""
        _check("export_offer", lib.ne_export_offer(self._export, ffi.cast("void *", addr), size_bytes))

    def withdraw(self, addr: int) -> None:
        """Any thread: no adapter has this memory registered when this returns."""
        _check("export_withdraw", lib.ne_export_withdraw(self._export, ffi.cast("void *", addr)))

    def fence(self, session: int) -> None:
        """Ends the session's data connections; nothing of them can land after this."""
        _check("export_fence", lib.ne_export_fence(self._export, session))

    def malformed(self) -> tuple[int, ...]:
        """Sessions of which a connection has ended, since the last call, for what came on it."""
        raw = ffi.new(f"uint64_t[{lib.NE_MALFORMED_MAX}]")
        count = _check("export_malformed_take", lib.ne_export_malformed_take(self._export, raw))
        return tuple(int(raw[at]) for at in range(count))

    def stats(self) -> ExportStats:
        """Counters of what has been served."""
        raw = ffi.new("struct ne_export_stats *")
        _check("export_stats_get", lib.ne_export_stats_get(self._export, raw))
        return ExportStats(**_values(ExportStats, raw))


def crc32c(data: Any) -> int:
    """Check sum (CRC-32C) of the bytes of a buffer."""
    view = ffi.from_buffer(data)
    return int(lib.ne_crc32c(view, len(view)))


def map(fd: int, size_bytes: int) -> int:  # noqa: A001 (engine.h's name for it)
    """Maps a memfd, shared and populated; returns its address."""
    address = int(ffi.cast("uintptr_t", lib.ne_map(fd, size_bytes)))
    if not address:
        # ne_map answers an address or NULL, so the reason is in errno, which cffi has kept from this call.
        raise EngineError("map", int(ffi.errno))
    return address


def unmap(addr: int, size_bytes: int) -> None:
    """Undoes `map`."""
    _check("unmap", lib.ne_unmap(ffi.cast("void *", addr), size_bytes))


def features() -> tuple[str, ...]:
    """Features of this build of the engine."""
    return tuple(ffi.string(lib.ne_features()).decode().split(","))


def rdma_devices() -> int:
    """Number of RDMA devices; 0 also in a build without rdma-core, or where the kernel can't list them."""
    return max(0, int(lib.ne_rdma_devices()))
