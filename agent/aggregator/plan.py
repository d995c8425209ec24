"""Plan of a job: which Aggregator owns which of its chunks, and under which epoch. PURE.

A plan is a whole state: whoever gets it twice, or misses one before it, loses nothing. Whoever gets an older one than
it has keeps what it has. A move names the next owner and its epoch beside the owner; the plan that makes it the owner
keeps that epoch. Every other change of an owner has a new one, the way back to the owner before as well.
"""

import hmac
from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import groupby
from typing import Annotated

import msgspec

from farside.agent.aggregator.layout import CHUNKS_MAX, Layout

AGGREGATORS_MAX = 64
"""Limit of one job: what a member holds lanes to."""
MEMBERS_MAX = 64
"""Limit of one job, as the engine has it."""
RUNS_MAX = CHUNKS_MAX
KEY_BYTES = 32
EPOCH_SEQ_BITS = 40
"""An epoch is the manager's generation, and in these bits the place of the log entry: no manager repeats one."""
STATIC_EPOCH = 1
"""Epoch of all chunks of a plan that no manager made."""

SERVICE_VARIABLE, JOB_VARIABLE = "FARSIDE_AGGREGATION_SERVICE", "FARSIDE_AGGREGATION_JOB"
KEY_VARIABLE, START_VARIABLE = "FARSIDE_AGGREGATION_KEY", "FARSIDE_AGGREGATION_START"
"""Variables that tell a process of a job which Aggregators it has; a manager's jobs are given the last two."""

Number = Annotated[int, msgspec.Meta(ge=0, lt=AGGREGATORS_MAX)]
NUMBER_MAX = (1 << 63) - 1
Epoch = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
JobName = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Start = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Chunks [first, first + count) and their owner; ``next_owner``: to whom they move."""

    first: Annotated[int, msgspec.Meta(ge=0, lt=CHUNKS_MAX)]
    count: Annotated[int, msgspec.Meta(ge=1, le=CHUNKS_MAX)]
    owner: Number
    epoch: Epoch
    next_owner: Number | None = None
    next_epoch: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0


class AggregatorAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an Aggregator is reached.

    Attributes:
        number: Its number in this job, the same in all plans of one start.
        unix: Path of its socket; "": it has none.
        tcp: HOST:PORT; "": it has none.
        machine: Equal to a member's own where they may share memory: the host's boot id. "": its unix socket tells.

    Without both sockets it is away, and its node offers none now: who needs it waits for a plan that says where it is.
    """

    number: Number
    unix: Annotated[str, msgspec.Meta(max_length=107)] = ""
    tcp: Annotated[str, msgspec.Meta(max_length=300)] = ""
    machine: Annotated[str, msgspec.Meta(max_length=64)] = ""

    @property
    def is_away(self) -> bool:
        """Whether nobody can say where it is."""
        return not self.unix and not self.tcp


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that members and Aggregators of one start of a job must know.

    Attributes:
        key: What both ends of a lane prove; of this job and start alone.
        digest: The layout's.
        runs: Every chunk once, in order.
    """

    job: JobName
    start: Start
    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    members: Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    aggregators: Annotated[tuple[AggregatorAddress, ...], msgspec.Meta(max_length=AGGREGATORS_MAX)]
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=RUNS_MAX)]

    @property
    def epoch(self) -> int:
        """The newest epoch in it: it grows from plan to plan. 0: no chunk is owned."""
        return max((max(run.epoch, run.next_epoch) for run in self.runs), default=0)

    def address(self, number: int) -> AggregatorAddress | None:
        """Where this Aggregator is; None: it has no part in the job."""
        return next((one for one in self.aggregators if one.number == number), None)


class JobGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A start of a job that an Aggregator serves by the plan that its members bring; ``key`` is its own."""

    job: JobName
    start: Start
    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


def job_key(secret: bytes, job: str, start: int) -> bytes:
    """The key of one start of a job; neither the secret nor another job's key follows from it."""
    label = b"farside aggregation job " + start.to_bytes(8, "little") + job.encode()
    return hmac.digest(secret, label, "sha256")


def epoch_of(generation: int, seq: int) -> int:
    """The epoch of a log entry of this manager's generation."""
    return generation << EPOCH_SEQ_BITS | seq


def plan_problem(plan: JobPlan, chunks: int) -> str:
    """What is wrong with a plan for a layout with this number of chunks, in one line; "" if nothing is."""
    numbers = [one.number for one in plan.aggregators]
    if len(set(numbers)) != len(numbers):
        return "two Aggregators of the plan have the same number"
    return runs_problem(plan.runs, chunks, numbers)


def runs_problem(runs: Sequence[Run], chunks: int, numbers: Sequence[int]) -> str:
    """What is wrong with runs for this number of chunks and these Aggregators, in one line; "" if nothing is."""
    at = 0
    for run in runs:
        if run.first != at:
            return f"chunk {min(run.first, at)} is owned {'twice' if run.first < at else 'by nobody'} in the plan"
        at += run.count
        if not {run.owner, run.next_owner} <= {None, *numbers}:
            return f"chunk {run.first} is owned by an Aggregator that the plan has no address of"
        if run.next_owner == run.owner:
            return f"chunk {run.first} moves to the Aggregator that owns it"
        if (run.next_owner is None) != (run.next_epoch == 0) or 0 < run.next_epoch <= run.epoch:
            return f"chunk {run.first} moves under epoch {run.next_epoch}, which is no newer one than {run.epoch}"
    return "" if at == chunks else f"the plan has {at} chunks, the layout {chunks}"


def spread(layout: Layout, numbers: Sequence[int]) -> tuple[Run, ...]:
    """Owners of a static plan: equal bytes for each of these Aggregators, to a chunk; largest tasks first.

    A task is split where it is larger than what its Aggregator lacks of its share.
    """
    share_bytes = sum(layout.sizes_bytes) / len(numbers)
    # The least loaded first, ties to the one that was named first.
    loads = [(0, place) for place in range(len(numbers))]
    heapify(loads)
    owners = [0] * len(layout.chunks)
    for task in sorted(layout.tasks, key=lambda one: (-one.size_bytes, one.first)):
        at, end = task.first, task.first + task.count
        while at < end:
            load_bytes, place = loads[0]
            fit = max(1, int((share_bytes - load_bytes) // task.chunk_bytes))
            taken = min(fit, end - at)
            owners[at : at + taken] = [numbers[place]] * taken
            heapreplace(loads, (load_bytes + taken * task.chunk_bytes, place))
            at += taken
    return given(owners)


def given(owners: Sequence[int]) -> tuple[Run, ...]:
    """Runs of a static plan in which each chunk's owner is said."""
    return tuple(_runs(owners))


def _runs(owners: Sequence[int]) -> Iterator[Run]:
    at = 0
    for owner, same in groupby(owners):
        count = sum(1 for _one in same)
        yield Run(first=at, count=count, owner=owner, epoch=STATIC_EPOCH)
        at += count
