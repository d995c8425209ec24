"""Python face of the engine's aggregation calls: what each does, its limits and its errors are in `engine.h`.

Arrays are anything with a buffer that lies in one piece: NumPy arrays, memory views, bytes. Nothing is copied, and the
engine keeps no address after a call.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from farside.errors import EngineError
from farside.kmod_shim.engine.binding import Fault, RdmaLink, ffi, lib

Buffer: TypeAlias = Any  # collections.abc.Buffer, which comes with Python 3.12
MEMBERS_MAX: int = lib.NE_MEMBERS_MAX
REGION_LEASE: int = lib.NE_REGION_LEASE
_KEYS_BYTES = 32
THREADS_MAX: int = lib.NE_THREADS_MAX


class DType(IntEnum):
    """Number format of gradients and results. The last three can only be summed."""

    F32 = lib.NE_DTYPE_F32
    F16 = lib.NE_DTYPE_F16
    BF16 = lib.NE_DTYPE_BF16
    F64 = lib.NE_DTYPE_F64
    I32 = lib.NE_DTYPE_I32
    I64 = lib.NE_DTYPE_I64

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES[self]


_ITEM_BYTES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.F64: 8, DType.I32: 4, DType.I64: 8}


class Rule(IntEnum):
    """What becomes of the members' gradients."""

    SUM = lib.NE_RULE_SUM
    MEAN = lib.NE_RULE_MEAN
    SGD = lib.NE_RULE_SGD
    ADAM = lib.NE_RULE_ADAM
    ADAMW = lib.NE_RULE_ADAMW


# Of float32 that an Aggregator keeps of a chunk: parameters, then momentum or two moments.
_ARRAYS = {Rule.SUM: 0, Rule.MEAN: 0, Rule.SGD: 2, Rule.ADAM: 3, Rule.ADAMW: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """An optimizer's numbers, named and preset as in torch.optim.Adam; ``momentum`` and ``nesterov`` are SGD's."""

    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    nesterov: bool = False


def reduce(
    rule: Rule,
    dtype: DType,
    gradients: Sequence[Buffer],
    outputs: Sequence[Buffer],
    *,
    step: int = 0,
    hyper: Hyper | None = None,
    masters: Sequence[Buffer] = (),
    next_masters: Sequence[Buffer] | None = None,
    past_caches: bool = False,
) -> None:
    """Reduces one chunk's gradients, given in rank order, into every one of ``outputs``.

    Args:
        rule: Sum, mean, or an optimizer's step with the mean.
        dtype: Number format of gradients and outputs.
        gradients: 1 to 64 arrays of equally many elements of ``dtype``.
        outputs: Writable arrays of the same length; one may be a gradient itself.
        step: An optimizer's: number of this chunk's update, from 1.
        hyper: An optimizer's numbers.
        masters: An optimizer's arrays of float32: parameters, then momentum or the two moments.
        next_masters: Where those go after the step; None: in place.
        past_caches: The CPU's caches do not hold the outputs until somebody reads them. It changes no bit.

    Raises:
        ValueError: arrays differ in length, or an optimizer lacks an array.
        EngineError: the engine refuses rule, format or numbers (EINVAL); nothing was written.
    """
    views = [ffi.from_buffer(array) for array in gradients]
    writable = [ffi.from_buffer(array, require_writable=True) for array in outputs]
    before = [ffi.from_buffer(array) for array in masters]
    after = [
        ffi.from_buffer(array, require_writable=True) for array in (masters if next_masters is None else next_masters)
    ]
    size_bytes = len(views[0]) if views else 0
    count = size_bytes // dtype.item_bytes
    needed = _masters(rule, hyper)
    if any(len(view) != size_bytes for view in (*views, *writable)) or size_bytes % dtype.item_bytes:
        raise ValueError("gradients and outputs must have the same number of whole elements")
    if len(before) < needed or len(after) < needed or any(len(view) != 4 * count for view in (*before, *after)):
        raise ValueError(f"{rule.name} needs {needed} arrays of {count} float32 before and after the step")

    asked = ffi.new("struct ne_reduction *")
    asked.dtype, asked.rule, asked.count, asked.step = dtype, rule, count, step
    asked.members, asked.results, asked.past_caches = len(views), len(writable), past_caches
    # cffi frees an array with the last reference to it, and a struct that points to it holds none.
    pointers = ffi.new("void *[]", [ffi.cast("void *", view) for view in views])
    results = ffi.new("void *[]", [ffi.cast("void *", view) for view in writable])
    asked.gradients = ffi.cast("const void *const *", pointers)
    asked.outputs = results
    for index in range(needed):
        # "from" is a word of Python's, so this field can't be written as an attribute.
        getattr(asked, "from")[index] = ffi.cast("float *", before[index])
        asked.to[index] = ffi.cast("float *", after[index])
    _set_hyper(asked.hyper, hyper)
    err = lib.ne_reduce(asked)
    if err < 0:
        raise EngineError("reduce", -err)


def _masters(rule: Rule, hyper: Hyper | None) -> int:
    if rule in (Rule.SUM, Rule.MEAN):
        return 0
    if hyper is None:
        raise ValueError(f"{rule.name} needs its numbers (hyper)")
    if rule is Rule.SGD:
        return 2 if hyper.momentum > 0 else 1
    return 3


def _set_hyper(raw: Any, hyper: Hyper | None) -> None:
    if hyper is not None:
        for name in Hyper.__slots__:
            setattr(raw, name, getattr(hyper, name))


def use_portable(portable: bool) -> bool:
    """Gives up the CPU's vector instructions, or takes them again; True when without. For tests and measurements."""
    return bool(lib.ne_reduce_portable(portable))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a job: its elements, their format, and the parameter group whose numbers count."""

    count: int
    dtype: DType = DType.F32
    group: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of its gradient."""
        return self.count * self.dtype.item_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """What all members of a job and its Aggregators agree on; limits as in `ne_job`.

    ``hold``: a result goes to a member when that asks for it (`Member.ask`).
    """

    members: int
    rule: Rule
    chunks: tuple[Chunk, ...]
    hold: bool = False

    def raw(self) -> tuple[Any, Any]:
        """The struct, and the array that it points to."""
        chunks = ffi.new("struct ne_job_chunk[]", len(self.chunks))
        for raw, chunk in zip(chunks, self.chunks, strict=True):
            raw.count, raw.dtype, raw.group = chunk.count, chunk.dtype, chunk.group
        job = ffi.new("struct ne_job *")
        job.members, job.rule, job.chunks, job.chunk = self.members, self.rule, len(self.chunks), chunks
        job.hold = self.hold
        job.groups = 1 + max((chunk.group for chunk in self.chunks), default=0)
        return job, chunks


class AggregatorEventKind(IntEnum):
    """Kinds of an Aggregator's events."""

    LANE_ENDED = lib.NE_AGGREGATOR_LANE_ENDED
    LOST = lib.NE_AGGREGATOR_LOST
    COPIED = lib.NE_AGGREGATOR_COPIED
    PUSHED = lib.NE_AGGREGATOR_PUSHED
    BROKEN_HERE = lib.NE_AGGREGATOR_BROKEN_HERE
    BROKEN_THERE = lib.NE_AGGREGATOR_BROKEN_THERE
    FREED = lib.NE_AGGREGATOR_FREED
    NEXT_ENDED = lib.NE_AGGREGATOR_NEXT_ENDED
    PREVIOUS_ENDED = lib.NE_AGGREGATOR_PREVIOUS_ENDED


_OF_MOVES = (
    AggregatorEventKind.COPIED,
    AggregatorEventKind.PUSHED,
    AggregatorEventKind.BROKEN_HERE,
    AggregatorEventKind.BROKEN_THERE,
)


@dataclass(frozen=True, slots=True)
class AggregatorEvent:
    """Something that has happened to a job: a lane has ended, a chunk can't go on, or chunks have moved.

    ``chunk`` and ``count`` are the run that moves, ``epoch`` is the one under which it does; ``rank`` is a member's, or
    the number of the Aggregator at the other end of a lane.
    """

    kind: AggregatorEventKind
    job: int
    rank: int
    chunk: int
    count: int
    epoch: int
    error: int


def _event(raw: Any) -> AggregatorEvent:
    kind = AggregatorEventKind(raw.kind)
    return AggregatorEvent(kind, raw.job, raw.rank, raw.chunk, raw.count, raw.epoch, raw.error)


@dataclass(frozen=True, slots=True)
class AggregatorStats:
    """Counters of one job since it was added; fields as in `ne_aggregator_stats`.

    ``size_squares`` in bytes², ``size_times`` in bytes times nanoseconds.

    ``serves`` is None where no chunk is owned, or a version of one that is owned has yet to come from a member.
    """

    updates: int
    busy_ns: int
    size_squares: float
    size_times: float
    pushed_bytes: int
    result_bytes: int
    memory_bytes: int
    wrong_codes: int
    lanes: int
    shm_lanes: int
    rdma_lanes: int
    uncoded_lanes: int
    waits_for: int
    serves: int | None


def _checked(op: str, answer: int) -> int:
    if answer < 0:
        raise EngineError(op, -answer)
    return answer


def _keys(keys: bytes) -> Any:
    if keys and len(keys) != _KEYS_BYTES:
        raise ValueError(f"keys of codes have {_KEYS_BYTES} bytes, not {len(keys)}")
    return ffi.from_buffer("uint8_t[]", keys) if keys else ffi.NULL


def _open(handle: Any) -> Any:
    if handle is None:
        raise EngineError("closed", errno.ESHUTDOWN)
    return handle


class Aggregator:
    """A server that updates chunks for the members of many jobs; its threads end with `close`."""

    def __init__(self, memory_bytes: int, threads: int = 1) -> None:
        """Starts its threads.

        Args:
            memory_bytes: What contents of all jobs may take together.
            threads: 1 to 64. Each job is served by one of them: its number's remainder says which.
        """
        handle = ffi.new("struct ne_aggregator **")
        _checked("aggregator_create", lib.ne_aggregator_create(memory_bytes, threads, handle))
        self._owned: Any = ffi.gc(handle[0], lib.ne_aggregator_destroy)

    def close(self) -> None:
        """Ends all lanes, and the thread. A second call does nothing."""
        # A call of another thread may be under way: the last one that returns frees it, with the last reference.
        if self._owned is not None:
            lib.ne_aggregator_stop(self._owned)
        self._owned = None

    @property
    def _handle(self) -> Any:
        return _open(self._owned)

    def add_job(self, number: int, job: Job) -> None:
        """A job, none of whose chunks is owned yet."""
        raw, _chunks = job.raw()
        _checked("aggregator_add_job", lib.ne_aggregator_add_job(self._handle, number, raw))

    def drop_job(self, number: int) -> None:
        """Ends its lanes, and forgets it."""
        _checked("aggregator_drop_job", lib.ne_aggregator_drop_job(self._handle, number))

    def own(self, number: int, first: int, count: int, epoch: int) -> None:
        """This Aggregator owns these chunks, and no other one is known."""
        self.plan(number, first, count, me=0, owner=0, epoch=epoch)

    def plan(
        self,
        number: int,
        first: int,
        count: int,
        *,
        me: int,
        owner: int,
        epoch: int,
        next_owner: int | None = None,
        next_epoch: int = 0,
    ) -> None:
        """A plan's word on a run of chunks; a word that is older than the last is ignored.

        Args:
            number: The job.
            first: Its first chunk.
            count: How many.
            me: This Aggregator's number in the plan, as the two that follow.
            owner: Who updates the chunks.
            epoch: The owner's.
            next_owner: To whom they move; None: they stay.
            next_epoch: The next owner's, newer than ``epoch``.

        Raises:
            EngineError: ENOMEM: the run would go beyond ``memory_bytes``, and nothing of it is taken.
        """
        place = ffi.new("struct ne_place *")
        place.me, place.owner, place.epoch = me, owner, epoch
        if next_owner is not None:
            place.next_owner, place.next_epoch = next_owner, next_epoch
        _checked("aggregator_plan", lib.ne_aggregator_plan(self._handle, number, first, count, place))

    def attach_next(self, number: int, aggregator: int, fd: int, keys: bytes = b"") -> None:
        """The lane on which chunks of a job move to another Aggregator, where it is given to `attach_previous`.

        ``keys``: as of `attach`.
        """
        done = lib.ne_aggregator_attach_next(self._handle, number, aggregator, fd, _keys(keys))
        _checked("aggregator_attach_next", done)

    def attach_previous(self, number: int, aggregator: int, fd: int, keys: bytes = b"") -> None:
        """The lane on which chunks of a job come from another Aggregator."""
        done = lib.ne_aggregator_attach_previous(self._handle, number, aggregator, fd, _keys(keys))
        _checked("aggregator_attach_previous", done)

    def attach(
        self,
        number: int,
        rank: int,
        fd: int,
        region: int | None,
        greeting: bytes = b"",
        *,
        keys: bytes = b"",
        link: RdmaLink | None = None,
        token: int = 0,
    ) -> None:
        """A member's lane, whose other end has proved who it is.

        Args:
            number: The job.
            rank: The member.
            fd: A connected stream socket, which is taken.
            region: The member's memory file, if it is on this host; it is taken, too.
            greeting: Bytes that go out before the engine's first frame, once nothing can be refused any more.
            keys: Of the codes of frames' heads, 32 bytes: those that go out, then those that come in. Empty: no codes.
            link: To `Member.export`'s end, by which gradients and results go; taken in any case.
            token: As given there.

        Raises:
            EngineError: EPERM: the region is not sealed; EINVAL: it is too short, or there is no such rank; ENOMEM;
                EPIPE: the greeting did not go out. Both stay the caller's.
        """
        lane = ffi.new("struct ne_lane *")
        # A struct that points to an array holds no reference to it.
        said, secret = ffi.from_buffer(greeting), _keys(keys)
        lane.fd, lane.region = fd, -1 if region is None else region
        lane.keys, lane.greeting, lane.greeting_bytes = secret, said, len(greeting)
        if link is not None:
            lane.link, lane.token = link.give_away(), token
        _checked("aggregator_attach", lib.ne_aggregator_attach(self._handle, number, rank, lane))

    def fault_set(self, kind: Fault, every: int, delay_us: int = 0) -> None:
        """Spoils one in ``every`` frames that go out; 0 ends it."""
        _checked("aggregator_fault_set", lib.ne_aggregator_fault_set(self._handle, kind, every, delay_us))

    def fileno(self) -> int:
        """Readable when there are events."""
        return int(lib.ne_aggregator_event_fd(self._handle))

    def next_event(self) -> AggregatorEvent | None:
        """The oldest event that nobody has had; None: there is none."""
        raw = ffi.new("struct ne_aggregator_event *")
        if not lib.ne_aggregator_next_event(self._handle, raw):
            return None
        return _event(raw)

    def told(self, number: int) -> tuple[AggregatorEvent, ...]:
        """What has been said of moves that are under way, by kinds and then by chunks."""
        raw = ffi.new("struct ne_aggregator_event *")
        found = []
        for kind in _OF_MOVES:
            first = 0
            while _checked("aggregator_told", lib.ne_aggregator_told(self._handle, number, kind, first, raw)):
                found.append(_event(raw))
                first = raw.chunk + raw.count
        return tuple(found)

    def stats(self, number: int) -> AggregatorStats:
        """Counters of one job."""
        raw = ffi.new("struct ne_aggregator_stats *")
        _checked("aggregator_job_stats", lib.ne_aggregator_job_stats(self._handle, number, raw))
        values = {name: getattr(raw, name) for name in AggregatorStats.__slots__}
        if not raw.has_served:
            values["serves"] = None
        return AggregatorStats(**values)


class RegionPair:
    """A member's end of a queue pair that no lane has yet. `close` frees it, before the member is closed."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def close(self) -> None:
        """Ends it, if it is still ours; nothing can reach the region by it any more. A second call does nothing."""
        handle, self.handle = self.handle, ffi.NULL
        lib.ne_export_destroy(handle)


class Member:
    """One member's region, and its lanes to the Aggregators of its job.

    It belongs to the process that made it. A child of fork() gets EBADF for each call, and must not touch the buffers
    of `gradient` and `result`, whose memory is not there.
    """

    def __init__(self, job: Job, rank: int) -> None:
        handle = ffi.new("struct ne_kv **")
        raw, _chunks = job.raw()
        _checked("kv_create", lib.ne_kv_create(raw, rank, handle))
        self._owned: Any = ffi.gc(handle[0], lib.ne_kv_destroy)
        self._job = job

    def close(self) -> None:
        """Ends all lanes, the thread and the region. Nothing of `gradient` and `result` may be used any more."""
        if self._owned is not None:
            lib.ne_kv_stop(self._owned)
        self._owned = None

    @property
    def _handle(self) -> Any:
        return _open(self._owned)

    @property
    def region(self) -> int:
        """The memory file, which stays the member's."""
        return int(lib.ne_kv_region(self._handle))

    def gradient(self, chunk: int, iteration: int) -> Buffer:
        """Where the gradient of a chunk and iteration goes."""
        return self._buffer(chunk, lib.ne_kv_gradient(self._handle, chunk, iteration))

    def result(self, chunk: int) -> Buffer:
        """Where the result of a chunk is; of a start with a server's optimizer, rank 0's parameters."""
        return self._buffer(chunk, lib.ne_kv_result(self._handle, chunk))

    def _buffer(self, chunk: int, at: Any) -> Buffer:
        size_bytes = self._job.chunks[chunk].size_bytes
        if at == ffi.NULL:
            raise EngineError("kv_region", errno.EBADF)
        return ffi.buffer(at, size_bytes)

    def start(self, version: int, state: Sequence[Sequence[Buffer]] | None = None) -> None:
        """All chunks are at this version: at rank 0 alone, if the server has the optimizer.

        Args:
            version: Updates that the chunks have had.
            state: At rank 0, of a job that goes on: for each chunk the optimizer's arrays of float32, as `fetch` gives
                them. Parameters must be in `result` as well. None: momentum and moments are zero.

        Raises:
            ValueError: ``state`` has not the shape of the job.
            EngineError: EINVAL: a second call, or a state where nothing but a sum is wanted.
        """
        packed = ffi.NULL if state is None else ffi.from_buffer(self._packed(state))
        _checked("kv_start", lib.ne_kv_start(self._handle, version, packed))

    def _packed(self, state: Sequence[Sequence[Buffer]]) -> bytearray:
        arrays = _ARRAYS[self._job.rule]
        packed = bytearray()
        if len(state) != len(self._job.chunks):
            raise ValueError(f"state of {len(state)} chunks, and the job has {len(self._job.chunks)}")
        for index, (given, chunk) in enumerate(zip(state, self._job.chunks, strict=True)):
            views = [memoryview(array).cast("B") for array in given]
            if [len(view) for view in views] != [4 * chunk.count] * arrays:
                raise ValueError(f"chunk {index}: {arrays} arrays of {chunk.count} float32 are needed")
            for view in views:
                packed += view
        return packed

    def fetch(self, first: int, count: int, version: int, timeout_s: float | None = None) -> list[tuple[Buffer, ...]]:
        """Parameters and optimizer state of chunks: for each its arrays of float32, parameters first.

        They come from the owners. The chunks must be held at ``version``, without a push under way; nothing of them can
        be pushed meanwhile.

        Raises:
            EngineError: EAGAIN: they are not; EINVAL: the job has no optimizer; EBUSY: another fetch is under way;
                ETIMEDOUT; ESTALE: the job can't go on.
        """
        arrays = _ARRAYS[self._job.rule]
        chunks = self._job.chunks[first : first + count]
        packed = bytearray(sum(4 * arrays * chunk.count for chunk in chunks))
        timeout_ms = -1 if timeout_s is None else int(timeout_s * 1000)
        to = ffi.from_buffer(packed, require_writable=True)
        _checked("kv_fetch", lib.ne_kv_fetch(self._handle, first, count, version, to, len(packed), timeout_ms))
        view, found, at = memoryview(packed).cast("f"), [], 0
        for chunk in chunks:
            found.append(tuple(view[at + i * chunk.count :][: chunk.count] for i in range(arrays)))
            at += arrays * chunk.count
        return found

    def own(self, first: int, count: int, aggregator: int, epoch: int) -> None:
        """Names the Aggregator that owns these chunks; ignored unless the epoch is newer than the one that is known."""
        _checked("kv_own", lib.ne_kv_own(self._handle, first, count, aggregator, epoch))

    def export(self, sock: int, token: int) -> "RegionPair":
        """A queue pair by which an Aggregator reaches the region, beside an authenticated connection, which is taken.

        Raises:
            EngineError: EOPNOTSUPP: a build without rdma-core; ENOMEM.
        """
        handle = ffi.new("struct ne_export **")
        _checked("kv_export", lib.ne_kv_export(self._handle, sock, token, handle))
        return RegionPair(handle[0])

    def attach(
        self, aggregator: int, fd: int, *, shm: bool, keys: bytes = b"", pair: "RegionPair | None" = None
    ) -> None:
        """A lane to an Aggregator, which is taken.

        Args:
            aggregator: Its number.
            fd: A connected stream socket, which is taken.
            shm: It has the region.
            keys: As of `Aggregator.attach`.
            pair: Of `export`, whose link it has. Taken.
        """
        given = ffi.NULL if pair is None else pair.handle
        _checked("kv_attach", lib.ne_kv_attach(self._handle, aggregator, fd, shm, _keys(keys), given))
        if pair is not None:
            pair.handle = ffi.NULL

    def fault_set(self, kind: Fault, every: int, delay_us: int = 0) -> None:
        """Spoils one in ``every`` frames that go out; 0 ends it."""
        _checked("kv_fault_set", lib.ne_kv_fault_set(self._handle, kind, every, delay_us))

    def hyper(self, group: int, iteration: int, hyper: Hyper) -> None:
        """The optimizer's numbers of a group from this iteration on; rank 0's count."""
        raw = ffi.new("struct ne_hyper *")
        _set_hyper(raw, hyper)
        _checked("kv_hyper", lib.ne_kv_hyper(self._handle, group, iteration, raw))

    def push(self, first: int, count: int, iteration: int, *, absent: bool = False) -> None:
        """The gradients of these chunks are in place.

        ``absent``: this member has none, and zeros are in place. With a server's optimizer, a chunk for which all
        members are absent keeps its parameters and state, and has the next version.

        Raises:
            EngineError: EAGAIN: the result of the iteration before is lacking, or they have been pushed.
        """
        _checked("kv_push", lib.ne_kv_push(self._handle, first, count, iteration, absent))

    def ask(self, first: int, count: int, iteration: int) -> None:
        """In a job with ``hold``: the results of chunks that were pushed are wanted now.

        Raises:
            EngineError: EAGAIN: they were not pushed in that iteration; EINVAL: the job has no ``hold``.
        """
        _checked("kv_ask", lib.ne_kv_ask(self._handle, first, count, iteration))

    def wait_taken(self, first: int, count: int, iteration: int, timeout_s: float | None = None) -> None:
        """In a job with ``hold``: blocks until the Aggregators have these pushes. Errors as of `ask` and `wait`."""
        timeout_ms = -1 if timeout_s is None else int(timeout_s * 1000)
        _checked("kv_wait_taken", lib.ne_kv_wait_taken(self._handle, first, count, iteration, timeout_ms))

    def version(self, first: int, count: int) -> int | None:
        """The lowest version that is held of these chunks; None: one is not held."""
        raw = ffi.new("uint64_t *")
        has_all = _checked("kv_version", lib.ne_kv_version(self._handle, first, count, raw))
        return int(raw[0]) if has_all else None

    def wait(self, first: int, count: int, version: int, timeout_s: float | None = None) -> None:
        """Blocks until these chunks have a version.

        Raises:
            EngineError: ETIMEDOUT; ESTALE: the job can't go on; EDOM: this member's numbers of the optimizer are
                others than rank 0's.
        """
        timeout_ms = -1 if timeout_s is None else int(timeout_s * 1000)
        _checked("kv_wait", lib.ne_kv_wait(self._handle, first, count, version, timeout_ms))

    def wait_lane(self, timeout_s: float | None = None) -> int:
        """Blocks until a lane has ended, or a chunk has moved to an Aggregator without one; the Aggregator's number."""
        timeout_ms = -1 if timeout_s is None else int(timeout_s * 1000)
        return _checked("kv_wait_lane", lib.ne_kv_wait_lane(self._handle, timeout_ms))
