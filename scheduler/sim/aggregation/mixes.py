"""Mixes of jobs that arrive and leave, played by one of the variants of the placement on Aggregators. PURE.

A mix is a list of events in the order of time. After each one the result says where every task is, and what each job
loses by it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import msgspec

from farside.agent.aggregator.layout import CHUNK_BYTES_MAX, CHUNKS_MAX
from farside.agent.aggregator.plan import MEMBERS_MAX
from farside.errors import ConfigError
from farside.scheduler.sharing.aggregation.cost import Cost
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement, Profile, Refused
from farside.scheduler.sharing.aggregation.printed import PrintedPlacement
from farside.scheduler.sharing.aggregation.tasks import ChunkRun, tasks_of

TASKS_MAX = 65_536
_PLACE = re.compile(r"\$\[(\d+)\](?:\[(\d+)\])?(.*)")
_FORM = (
    'a list of mixes, each a list of {"at_s": S, "arrive": {"job": NAME, "iteration_s": S, "tasks_s": [S, ...], '
    '"servers": N}} and {"at_s": S, "exit": NAME}'
)

# Between a microsecond and twelve days: cycles are whole numbers of iterations, and sums of both must stay exact.
ITERATION_S_MIN, ITERATION_S_MAX = 1e-6, 1e6
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=ITERATION_S_MAX)]
_Chunks = Annotated[int, msgspec.Meta(ge=1, le=CHUNKS_MAX)]
_ChunkBytes = Annotated[int, msgspec.Meta(ge=1, le=CHUNK_BYTES_MAX)]


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and what its Aggregators were measured to take for it: as `farside aggregation JOB` shows.

    Attributes:
        chunks: Runs of equal chunks: their number, and bytes of each.
        members: That push each of them.
        chunk_s, byte_s: CPU seconds for each chunk, and for each byte that a member pushes.
    """

    chunks: Annotated[list[tuple[_Chunks, _ChunkBytes]], msgspec.Meta(min_length=1, max_length=1024)]
    members: Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]
    byte_s: _Seconds
    chunk_s: _Seconds = 0.0

    def tasks_s(self) -> tuple[float, ...]:
        """CPU seconds of its tasks, which are those that the manager would place."""
        cost = Cost(chunk_s=self.chunk_s, byte_s=self.byte_s)
        tasks = tasks_of(tuple(ChunkRun(*run) for run in self.chunks))
        return tuple(cost.work_s(task.count, task.size_bytes * self.members) for task in tasks)


class Arrival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job, as a mix names it: by CPU seconds of its tasks, or by its model."""

    job: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    iteration_s: Annotated[float, msgspec.Meta(ge=ITERATION_S_MIN, le=ITERATION_S_MAX)]
    tasks_s: Annotated[list[_Seconds], msgspec.Meta(min_length=1, max_length=TASKS_MAX)] | None = None
    model: Model | None = None
    servers: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class Happening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a mix: an arrival or an exit."""

    at_s: float
    arrive: Arrival | None = None
    exit: str | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One Aggregator after an event."""

    id: int
    cycle_s: float
    tasks: list[tuple[str, int]]


class After(msgspec.Struct, frozen=True, kw_only=True):
    """All Aggregators after an event, the share of its speed that each job loses, and why a job was refused."""

    aggregators: list[Held]
    loss: dict[str, float]
    refused: str | None


Mix = Sequence[Happening]


def _of(make: Callable[[Limits], Placement], multiple: int) -> Callable[[float, float], Placement]:
    def made(capacity: float, loss_limit: float) -> Placement:
        # Times are exact here, so none is stretched.
        limits = Limits(capacity=capacity, loss_limit=loss_limit, cycle_multiple=multiple, period_tolerance=0.0)
        return make(limits)

    return made


# By name: the paper's pseudocode; corrected, with the paper's cycle; corrected, with cycles of up to four iterations.
VARIANTS: Mapping[str, Callable[[float, float], Placement]] = MappingProxyType(
    {"printed": _of(PrintedPlacement, 1), "corrected": _of(Placement, 1), "cycles": _of(Placement, 4)}
)


def decode_mixes(text: bytes, name: str) -> list[list[Happening]]:
    """The mixes of a JSON file.

    Raises:
        ConfigError: It is none; names the mix and the event, counted from 1.
    """
    try:
        mixes = msgspec.json.decode(text, type=list[list[Happening]])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name}: {_counted_from_1(str(error))}", hint=f"give {_FORM}") from error
    for number, mix in enumerate(mixes, 1):
        for place, problem in _problems(mix):
            raise ConfigError(f"{name}: mix {number}, event {place}: {problem}", hint=f"give {_FORM}")
    return mixes


def _counted_from_1(text: str) -> str:
    """What msgspec says, which counts from 0 as in `Expected ... - at `$[0][2].arrive.servers``."""
    what, is_placed, path = text.partition(" - at `")
    found = _PLACE.match(path)
    if not is_placed or found is None:
        return text
    mix, event, field = found.groups()
    where = f"mix {int(mix) + 1}" + (f", event {int(event) + 1}" if event else "")
    return f"{where}: {what}" + (f", in {field.strip('.`')}" if field.strip(".`") else "")


def _problems(mix: Mix) -> Iterator[tuple[int, str]]:
    running: set[str] = set()
    before_s = float("-inf")
    for place, happening in enumerate(mix, 1):
        if happening.at_s < before_s:
            yield place, f"at_s {happening.at_s:g} is before the event above it"
        before_s = happening.at_s
        if (happening.arrive is None) == (happening.exit is None):
            yield place, "needs one of arrive and exit"
        elif happening.arrive is not None:
            if (happening.arrive.tasks_s is None) == (happening.arrive.model is None):
                yield place, "arrive needs one of tasks_s and model"
            if happening.arrive.job in running:
                yield place, f"job '{happening.arrive.job}' has arrived already"
            running.add(happening.arrive.job)
        elif happening.exit is not None:
            if happening.exit not in running:
                yield place, f"no job '{happening.exit}' has arrived"
            running.discard(happening.exit)


def play(mix: Mix, placement: Placement) -> Iterator[After]:
    """The state after each event. A job that was refused has no place, and its exit changes nothing."""
    for happening in mix:
        refused = None
        if happening.arrive is not None:
            answer = placement.add(_profile(happening.arrive))
            refused = answer.reason if isinstance(answer, Refused) else None
        elif happening.exit in placement.profiles:
            placement.leave(happening.exit)
        yield _after(placement, refused)


def _profile(arrival: Arrival) -> Profile:
    tasks_s = tuple(arrival.tasks_s or ()) if arrival.model is None else arrival.model.tasks_s()
    return Profile(job=arrival.job, iteration_s=arrival.iteration_s, tasks_s=tasks_s, servers=arrival.servers)


def _after(placement: Placement, refused: str | None) -> After:
    held = [
        Held(
            id=number,
            cycle_s=aggregator.cycle_s,
            tasks=[(job, task) for job, tasks in aggregator.tasks.items() for task in sorted(tasks)],
        )
        for number, aggregator in sorted(placement.aggregators.items())
    ]
    return After(aggregators=held, loss=dict(placement.losses()), refused=refused)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of all mixes, each looked at when it had the most jobs.

    Attributes:
        mixes: Their number.
        jobs: Jobs that had a place, of one mix on average.
        aggregators: Of one mix on average.
        overloaded_share: Mixes with an Aggregator whose work is more than its capacity, at any time.
        most_load: The greatest share of its capacity that any Aggregator was given.
        jobs_at_limit: Jobs of a mix that lose the limit or more, on average.
        most_loss: The most that any job lost at any time.
        refused: Jobs that had no place, of all mixes.
    """

    mixes: int
    jobs: float
    aggregators: float
    overloaded_share: float
    most_load: float
    jobs_at_limit: float
    most_loss: float
    refused: int


class Watcher:
    """Sums up mixes while they are played."""

    def __init__(self, loss_limit: float) -> None:
        self._loss_limit = loss_limit
        self._full: list[tuple[int, int, int]] = []
        self._overloaded = self._refused = 0
        self._most_load = self._most_loss = 0.0

    def watch(self, mix: Mix, placement: Placement) -> Iterator[After]:
        """Plays a mix, and passes on what `play` gives."""
        full, most_load = (0, 0, 0), 0.0
        for after in play(mix, placement):
            yield after
            at_limit = sum(share >= self._loss_limit for share in after.loss.values())
            full = max(full, (len(after.loss), len(after.aggregators), at_limit))
            most_load = max([most_load, *placement.loads().values()])
            self._most_loss = max([self._most_loss, *after.loss.values()])
            self._refused += after.refused is not None
        self._full.append(full)
        # The last bits of a sum are no overload.
        self._overloaded += most_load > 1 + 1e-9
        self._most_load = max(self._most_load, most_load)

    def summary(self) -> Summary:
        """Returns the figures of all mixes so far."""
        count = max(1, len(self._full))
        jobs, aggregators, at_limit = (sum(full[column] for full in self._full) / count for column in range(3))
        return Summary(
            mixes=len(self._full),
            jobs=jobs,
            aggregators=aggregators,
            overloaded_share=self._overloaded / count,
            most_load=self._most_load,
            jobs_at_limit=at_limit,
            most_loss=self._most_loss,
            refused=self._refused,
        )


def encode(results: Sequence[Sequence[After]]) -> bytes:
    """JSON of what all mixes came to, a line a mix."""
    return b"[" + b",\n".join(msgspec.json.encode(result) for result in results) + b"]\n"
