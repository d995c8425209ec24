"""Messages of turns: between a worker and its node's executor, and between executors of a group. PURE.

A worker's message is one packet of at most `WORKER_BYTES_MAX`; who sends it the kernel says. An executor's message is a
frame of a link whose both ends have proved the group's key (`agent/training/link.py`).
"""

from typing import Annotated, TypeVar

import msgspec

from farside.agent.training.alpha import Use
from farside.agent.training.subtask import FIRST, LAST, Apart, Bound, Progress, Ready, Together, ToNode
from farside.errors import RemoteProtocolError
from farside.group_time import LEAST_BYTES_S, ReadCost

VERSION, SPILLING_VERSION = 1, 2
"""Spoken by workers that keep their input in memory, and by those that say what their memory is: an executor of the
version before refuses the latter alone."""
WORKER_BYTES_MAX = 512
LINK_BYTES_MAX = 1024
WORKERS_MAX = 64
BEAT_S = 0.2
SILENCE_S = 0.6
"""Whoever hears nothing for so long goes on without the other."""
NUMBER_MAX = 2**62

Job = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
UserJob = Annotated[str, msgspec.Meta(min_length=1, max_length=144)]
"""On links: a user's number, at most 10 digits, a colon, and the job's name."""
Worker = Annotated[int, msgspec.Meta(ge=0, lt=WORKERS_MAX)]
Position = Annotated[int, msgspec.Meta(ge=FIRST, le=LAST)]
Done = Annotated[int, msgspec.Meta(ge=FIRST - 1, le=LAST)]
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
MOST_BYTES_S, MOST_CPU_S_BYTE = 1e15, 1.0
"""Bounds of what reading input back takes, beside `LEAST_BYTES_S`: what is beyond them was not measured."""


class Here(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A worker's first word.

    Attributes:
        job: Name of its job, which counts for its user alone.
        worker, workers: Its number in the job, and how many there are.
        position: What it asks for first.
        is_first: Its whole job begins there.
    """

    version: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    job: Job
    worker: Worker
    workers: Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]
    position: Position
    is_first: bool


class Wants(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A worker asks for its next subtask, having done the one before."""

    position: Position


class HasDone(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A worker has done a subtask."""

    position: Position


class Yields(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A worker gives its turn back, and asks for it again."""

    position: Position


class Granted(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A worker may begin; ``lease_s``: how long the turn is its own, None where nobody keeps the order."""

    position: Position
    lease_s: float | None


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The executor lives."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Why a worker goes on without turns."""

    line: str


class Uses(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """What an iteration took of time and memory: `Use` of `agent/training/alpha.py`, whose names its fields have.

    ``disk`` and ``peer`` are bytes a second and CPU seconds a byte; `use_of` drops what is out of bounds. The last
    four: the version before says none.
    """

    spilled: Share
    iteration_s: Seconds
    comp_s: Seconds
    net_s: Seconds
    stall_s: Seconds
    input_bytes: Number
    used_bytes: Number
    limit_bytes: Number
    disk: tuple[float, float] | None
    peer: tuple[float, float] | None
    wait_s: Seconds = 0.0
    disk_bytes: Number = 0
    peer_bytes: Number = 0
    waited_s: Seconds = 0.0


class Keeps(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """What a worker is to keep where, from its next iteration on."""

    spilled: Share
    by_peer: Share


class HasProgress(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """`Progress`."""

    epoch: Number
    job: UserJob
    worker: Worker
    position: Done


class IsReady(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """`Ready`."""

    epoch: Number
    job: UserJob
    position: Position
    number: Number


class IsBound(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """`Bound`."""

    epoch: Number
    job: UserJob


class AreTogether(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """`Together`."""

    epoch: Number


class AreApart(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """`Apart`."""

    epoch: Number


class JobHere(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """A node has a worker of this job."""

    job: UserJob
    workers: Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]


class JobGone(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """A node has no worker of this job any more."""

    job: UserJob


FromWorker = Here | Wants | HasDone | Yields | Uses
ToWorker = Granted | Beat | Refused | Keeps
OfLink = HasProgress | IsReady | IsBound | AreTogether | AreApart | JobHere | JobGone | Beat

_FROM_WORKER: "msgspec.msgpack.Decoder[FromWorker]" = msgspec.msgpack.Decoder(FromWorker)
_TO_WORKER: "msgspec.msgpack.Decoder[ToWorker]" = msgspec.msgpack.Decoder(ToWorker)
# What both state machines speak of, and what goes on the wire for it: their fields have the same names.
_WIRE: dict[type[Progress | ToNode], type[msgspec.Struct]] = {
    Progress: HasProgress, Ready: IsReady, Bound: IsBound, Together: AreTogether, Apart: AreApart,
}  # fmt: skip
_EVENT = {wire: event for event, wire in _WIRE.items()}


def from_worker(packet: bytes) -> FromWorker:
    """A worker's message.

    Raises:
        RemoteProtocolError: it is none.
    """
    return _decoded(_FROM_WORKER, packet, WORKER_BYTES_MAX)


def to_worker(packet: bytes) -> ToWorker:
    """An executor's message to a worker.

    Raises:
        RemoteProtocolError: it is none.
    """
    return _decoded(_TO_WORKER, packet, WORKER_BYTES_MAX)


def packet_of(message: msgspec.Struct) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def on_the_wire(event: Progress | ToNode) -> OfLink:
    """What goes to another node for it."""
    wire = _WIRE[type(event)]
    return wire(*(getattr(event, name) for name in wire.__struct_fields__))  # type: ignore[return-value]


def event_of(message: msgspec.Struct) -> Progress | ToNode | None:
    """The event that came; None: it is about something other than turns."""
    event = _EVENT.get(type(message))
    return None if event is None else event(**msgspec.structs.asdict(message))


def wire_of_use(use: Use) -> Uses:
    """The message of an iteration's use."""
    disk, peer = ((one.bytes_s, one.cpu_s_byte) if one is not None else None for one in (use.disk, use.peer))
    return Uses(
        use.spilled, use.iteration_s, use.comp_s, use.net_s, use.stall_s, use.input_bytes, use.used_bytes,
        use.limit_bytes, disk, peer, use.wait_s, use.disk_bytes, use.peer_bytes, use.waited_s,
    )  # fmt: skip


def use_of(job: str, message: Uses) -> Use:
    """What came of an iteration of a job."""
    costs = {"disk": _cost_of(message.disk), "peer": _cost_of(message.peer)}
    return Use(**{**msgspec.structs.asdict(message), **costs, "job": job})


def _cost_of(told: tuple[float, float] | None) -> ReadCost | None:
    """What reading takes, where that is known and within bounds."""
    if told is None:
        return None
    bytes_s, cpu_s_byte = told
    is_sound = LEAST_BYTES_S <= bytes_s <= MOST_BYTES_S and 0 <= cpu_s_byte <= MOST_CPU_S_BYTE
    return ReadCost(bytes_s=bytes_s, cpu_s_byte=cpu_s_byte) if is_sound else None


T = TypeVar("T")


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", packet: bytes, limit_bytes: int) -> T:
    if len(packet) > limit_bytes:
        raise RemoteProtocolError(f"a message of {len(packet)} bytes came; {limit_bytes} are allowed")
    try:
        return decoder.decode(packet)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a message can't be understood: {error}") from error
