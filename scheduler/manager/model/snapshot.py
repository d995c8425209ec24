"""Snapshot of all jobs and nodes at one entry of the log, encoded as bytes; a reader goes on from it. PURE.

How it works
  MessagePack, compressed; it has infinity and NaN, which JSON has not. Jobs of one submission share what was asked for,
  and do so again when they are read. A field that a later version adds has its default when an older snapshot is read;
  a snapshot of a later version is refused as the log is.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from farside.errors import RemoteProtocolError
from farside.scheduler.manager.aggregation.state import Aggregation
from farside.scheduler.manager.colocation.state import Colocation
from farside.scheduler.manager.model import log_version2 as version2
from farside.scheduler.manager.model.event import VERSION, NodesWanted
from farside.scheduler.manager.model.job_table import JobTable
from farside.scheduler.manager.model.preemption_times import PreemptionTimes
from farside.scheduler.manager.model.record import Admission, LiveJob, LiveNode, LiveTask, Maintenance
from farside.scheduler.manager.model.sleep_time import SleepPoint, SleepRecord
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState, RequestKey
from farside.scheduler.manager.model.submit_rate import SubmitRates
from farside.scheduler.placement.recall_times import RecallTimes

# The fastest: a snapshot is written and read far more often than it is sent anywhere.
_LEVEL = 1
_NO_SPEC = JobSpec(argv=())


class _Snapshot(Struct, frozen=True, kw_only=True):
    """A state's fields, under the names that the bytes have; some are kept in another form (`_FORMS`)."""

    seq: int
    at_s: float
    generation: int
    next_number: int
    next_sequence: int
    forgotten_s: float
    preemption_times: PreemptionTimes = field(name="toll")
    specs: tuple[JobSpec, ...]
    spec_of: tuple[int, ...]  # of each job
    jobs: tuple[LiveJob, ...]
    nodes: Mapping[str, LiveNode]
    stale: tuple[LiveTask, ...]
    unfinished: tuple[str, ...]
    allocated: tuple[str, ...] = field(name="placed")
    meetings: Mapping[str, tuple[tuple[str, int], ...]]
    submitted: Mapping[int, tuple[str, ...]]
    maintenance: Mapping[str, Maintenance]
    reserved: Mapping[int, str]
    dependents: Mapping[str, tuple[str, ...]]
    present: Mapping[str, tuple[str, ...]]
    donors_version: int
    requests: tuple[tuple[RequestKey, int], ...] = ()
    closing: tuple[str, ...] = ()
    slept: tuple[SleepPoint, ...] = ()
    wanted: NodesWanted | None = None
    submit_rates: Mapping[str, tuple[tuple[float, int], ...]] = field(name="hourly", default_factory=dict)
    admissions: Mapping[str, Admission] = field(default_factory=dict)
    aggregation: Aggregation = field(default_factory=Aggregation)
    colocation: Colocation = field(default_factory=Colocation)
    recall_times: RecallTimes = field(default_factory=RecallTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Conversion of a state's field to its stored form and back."""

    pack: Callable[[Any], Any] = lambda kept: kept
    unpack: Callable[[Any], Any] = lambda kept: kept


_KEYS = _Form(pack=tuple, unpack=dict.fromkeys)
_OTHERWISE: Mapping[str, _Form] = {
    "stale": _Form(pack=lambda stale: tuple(stale.values()), unpack=lambda tasks: {task.key: task for task in tasks}),
    "unfinished": _KEYS,
    "allocated": _KEYS,
    "closing": _KEYS,
    "dependents": _Form(
        pack=lambda known: {name: tuple(others) for name, others in known.items()},
        unpack=lambda known: {name: list(others) for name, others in known.items()},
    ),
    "present": _Form(
        pack=lambda known: {name: tuple(jobs) for name, jobs in known.items()},
        unpack=lambda known: {name: dict.fromkeys(jobs) for name, jobs in known.items()},
    ),
    "requests": _Form(pack=lambda requests: tuple(requests.items()), unpack=dict),
    "slept": _Form(pack=lambda slept: tuple(slept.points), unpack=SleepRecord),
    "submit_rates": _Form(pack=lambda rates: rates.steps, unpack=SubmitRates),
}
_FORMS: Mapping[str, _Form] = {
    name: _OTHERWISE.get(name, _Form())
    for name in _Snapshot.__struct_fields__
    if name not in ("specs", "spec_of", "jobs")
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Snapshot)


def encode_state(state: LiveState) -> bytes:
    """The snapshot of a state."""
    # By identity, as jobs of one submission share one object.
    specs = {id(job.spec): job.spec for job in state.jobs.values()}
    places = {one: at for at, one in enumerate(specs)}
    spec_of = tuple(places[id(job.spec)] for job in state.jobs.values())
    kept = {name: form.pack(getattr(state, name)) for name, form in _FORMS.items()}
    jobs = tuple(structs.replace(job, spec=_NO_SPEC) for job in state.jobs.values())
    snapshot = _Snapshot(specs=tuple(specs.values()), spec_of=spec_of, jobs=jobs, **kept)
    return zlib.compress(_ENCODER.encode(snapshot), _LEVEL)


def decode_state(body: bytes, version: int = VERSION) -> LiveState:
    """The state of a snapshot that a manager of this version of the log wrote.

    Raises:
        RemoteProtocolError: It is damaged.
    """
    try:
        packed = zlib.decompress(body)
        if version <= version2.VERSION:
            packed = _ENCODER.encode(version2.snapshot(msgspec.msgpack.decode(packed)))
        snapshot = _DECODER.decode(packed)
    except (zlib.error, *version2.DAMAGE) as error:
        raise RemoteProtocolError(f"the store's snapshot of its state: {error}", hint="restore a backup") from error
    state = LiveState()
    for node in snapshot.nodes.values():
        # A version before did not note it: what the node has now is what it may have.
        if node.vouched_gpus is None:
            structs.force_setattr(node, "vouched_gpus", len(node.gpus))
            structs.force_setattr(node, "vouched_memory_bytes", node.memory_bytes)
    for name, form in _FORMS.items():
        setattr(state, name, form.unpack(getattr(snapshot, name)))
    for job, at in zip(snapshot.jobs, snapshot.spec_of, strict=True):
        structs.force_setattr(job, "spec", snapshot.specs[at])  # it was just made, and nobody else has it
    # What follows from other fields is not stored, and is computed anew here.
    state.jobs = JobTable(snapshot.jobs)
    for at, count in Counter(job.submitted_at for job in state.live_jobs()).items():
        first = state.jobs[next(job_id for job_id in snapshot.submitted[at] if job_id in state.unfinished)]
        state.queued.come(at, first.user, count, first.spec.size_bytes)
    return state
