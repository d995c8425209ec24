"""Snapshot of all jobs and nodes at one entry of the log, encoded as bytes; a reader goes on from it. PURE.

How it works
  MessagePack, compressed; it has infinity and NaN, which JSON has not. Jobs of one submission share what was asked for,
  and do so again when they are read. A field that a later version adds has its default when an older snapshot is read;
  an snapshot of a later version is refused as the log is.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from farside.errors import RemoteProtocolError
from farside.scheduler.manager.model import log_version2 as version2
from farside.scheduler.manager.model.event import VERSION, NodesWanted
from farside.scheduler.manager.model.job_table import JobTable
from farside.scheduler.manager.model.preemption_times import PreemptionTimes
from farside.scheduler.manager.model.record import LiveJob, LiveNode, LiveTask, Maintenance
from farside.scheduler.manager.model.sleep_time import SleepPoint, SleepRecord
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState, RequestKey
from farside.scheduler.manager.model.submit_rate import SubmitRates

# The fastest: a snapshot is written and read far more often than it is sent anywhere.
_LEVEL = 1
_NO_SPEC = JobSpec(argv=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """A state's fields by their names; those that have no form of their own are kept in another (`_FORMS`)."""

    seq: int
    at_s: float
    generation: int
    next_number: int
    next_sequence: int
    forgotten_s: float
    toll: PreemptionTimes
    specs: tuple[JobSpec, ...]
    spec_of: tuple[int, ...]  # of each job
    jobs: tuple[LiveJob, ...]
    nodes: Mapping[str, LiveNode]
    stale: tuple[LiveTask, ...]
    unfinished: tuple[str, ...]
    placed: tuple[str, ...]
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
    wanted_s: float = 0.0
    hourly: Mapping[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Conversion of a state's field to its stored form and back."""

    pack: Callable[[Any], Any] = lambda kept: kept
    unpack: Callable[[Any], Any] = lambda kept: kept


_AS_IT_IS = _Form()
_KEYS = _Form(pack=tuple, unpack=dict.fromkeys)
_OTHERWISE = {
    "stale": _Form(pack=lambda stale: tuple(stale.values()), unpack=lambda tasks: {task.key: task for task in tasks}),
    "unfinished": _KEYS,
    "placed": _KEYS,
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
    "hourly": _Form(pack=lambda hourly: hourly.steps, unpack=SubmitRates),
}
_FORMS: Mapping[str, _Form] = {
    field.name: _OTHERWISE.get(field.name, _AS_IT_IS)
    for field in fields(_Snapshot)
    if field.name not in ("specs", "spec_of", "jobs")
}
# What a state calls a field otherwise than the bytes, whose names stay.
_STATE_NAMES = {"toll": "preemption_times", "placed": "allocated", "hourly": "submit_rates"}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Snapshot)


def encode_state(state: LiveState) -> bytes:
    """The snapshot of a state."""
    specs: dict[int, int] = {}
    found: list[JobSpec] = []
    spec_of: list[int] = []
    for job in state.jobs.values():
        at = specs.get(id(job.spec))
        if at is None:
            at = specs[id(job.spec)] = len(found)
            found.append(job.spec)
        spec_of.append(at)
    kept = {name: form.pack(getattr(state, _STATE_NAMES.get(name, name))) for name, form in _FORMS.items()}
    jobs = tuple(_without_spec(job) for job in state.jobs.values())
    snapshot = _Snapshot(specs=tuple(found), spec_of=tuple(spec_of), jobs=jobs, **kept)
    return zlib.compress(_ENCODER.encode(snapshot), _LEVEL)


def decode_state(body: bytes, version: int = VERSION) -> LiveState:
    """The state of a snapshot that a manager of this version of the log wrote.

    Raises:
        RemoteProtocolError: It is damaged.
    """
    try:
        packed = zlib.decompress(body)
        if version < VERSION:
            packed = _ENCODER.encode(version2.snapshot(msgspec.msgpack.decode(packed)))
        snapshot = _DECODER.decode(packed)
    except (zlib.error, *version2.DAMAGE) as error:
        raise RemoteProtocolError(f"the store's snapshot of its state: {error}", hint="restore a backup") from error
    state = LiveState()
    for name, form in _FORMS.items():
        setattr(state, _STATE_NAMES.get(name, name), form.unpack(getattr(snapshot, name)))
    state.jobs = JobTable(
        _with_spec(job, snapshot.specs[at]) for job, at in zip(snapshot.jobs, snapshot.spec_of, strict=True)
    )
    for at, count in Counter(job.submitted_at for job in state.live_jobs()).items():
        first = state.jobs[next(job_id for job_id in snapshot.submitted[at] if job_id in state.unfinished)]
        state.queued.come(at, first.user, count, first.spec.size_bytes)
    return state


def _without_spec(job: LiveJob) -> LiveJob:
    return replace(job, spec=_NO_SPEC)


def _with_spec(job: LiveJob, spec: JobSpec) -> LiveJob:
    # The job was just made and nobody else has it; `replace` takes ten times as long, and there are many.
    object.__setattr__(job, "spec", spec)
    return job
