"""A glet's round: which model runs next, in which batch, when, and which requests are given up [glet §2.2]. PURE.

There is one queue a model, and glets pull: the head goes to whichever glet has its turn, so that a late batch holds no
request hostage. The same rules run in the simulator.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

_NEAR_S = 1e-9
# Of the last batch in the mean and the deviation of how late batches end, as TCP has for round trips (RFC 6298).
_GAIN, _DEVIATION_GAIN, _DEVIATIONS = 1 / 8, 1 / 4, 2.0
_FORGOTTEN = 0.9
# A model that fails on a glet is tried there again after so long, then after twice as long each time, up to the most.
TRY_S, TRY_S_MAX = 0.1, 10.0


class Queue(Protocol):
    """The requests of one model that wait, oldest first. Each row of a request counts."""

    def waiting(self, now_s: float) -> int:
        """How many have arrived, wait, and may be in the next batch."""
        ...

    def oldest(self) -> int:
        """Rows of the oldest, which are never parted."""
        ...

    def deadline_s(self) -> float:
        """When the oldest must be answered."""
        ...

    def full_s(self, count: int) -> float:
        """When ``count`` wait, as far as that is known; infinity where it is not."""
        ...

    def drop(self, now_s: float) -> None:
        """Gives the oldest up, since its answer would be late."""
        ...


class Slot(NamedTuple):
    """A model on a glet: its largest batch, and the seconds of batches of 1, 2, 3, ... requests as planned."""

    model: str
    batch: int
    latency_s: Sequence[float]


@dataclass(slots=True)
class Pace:
    """By how much batches of a model end later than planned: mean and mean deviation of the last ones, in seconds.

    Where too much is asked each batch begins as late as its oldest request allows, so that one which takes a little
    longer than planned makes that request late, and mostly all of the batch with it.

    Attributes:
        mean_s: The mean.
        deviation_s: The mean deviation.
        late_s: How much later than planned a batch may end; 0 where batches end as planned. Kept, as it is asked for
            with each request and changes with each batch.
    """

    mean_s: float = 0.0
    deviation_s: float = 0.0
    late_s: float = 0.0

    def ended(self, planned_s: float, took_s: float) -> None:
        """Learns from a batch; one that stood still counts as twice as long as planned at most."""
        error_s = min(took_s - planned_s, planned_s) - self.mean_s
        self.mean_s += _GAIN * error_s
        self.deviation_s += _DEVIATION_GAIN * (abs(error_s) - self.deviation_s)
        self.late_s = max(0.0, self.mean_s + _DEVIATIONS * self.deviation_s)

    def forget(self) -> None:
        """Lowers `late_s` where nothing runs because of it alone: so it never stays without batches that show it."""
        self.mean_s *= _FORGOTTEN
        self.deviation_s *= _FORGOTTEN
        self.late_s *= _FORGOTTEN


class Try(NamedTuple):
    """When a model that fails on a glet is tried there again, and how long after that it is if it fails still."""

    at_s: float
    wait_s: float


@dataclass(slots=True, kw_only=True)
class GletRound:
    """What a glet serves, when each model last had its turn, and how late its batches end.

    ``early``: it does not wait where nothing else runs. ``paces``: by model, as planned where none has ended.
    ``tries``: models that fail on it while another glet serves them. Nothing of these runs on it but a try now and
    then: what fails at once would be idle most, and get most. ``latencies_s``: planned seconds of batches of 1, 2, 3,
    ... by model.
    """

    slots: Sequence[Slot]
    cycle_s: float
    early: bool = True
    last_s: dict[str, float] = field(default_factory=dict[str, float])
    paces: defaultdict[str, Pace] = field(default_factory=lambda: defaultdict(Pace))
    tries: dict[str, Try] = field(default_factory=dict[str, Try])
    latencies_s: Mapping[str, Sequence[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.latencies_s = {slot.model: slot.latency_s for slot in self.slots}

    def leave_out(self, model: str, now_s: float) -> None:
        """Has nothing of a model run but tries; if that is so already, nothing changes."""
        self.tries.setdefault(model, Try(now_s + TRY_S, min(2 * TRY_S, TRY_S_MAX)))

    def take_in(self, model: str) -> None:
        """Has a model run as planned."""
        self.tries.pop(model, None)

    def longest_s(self, slot: Slot) -> float:
        """How long a batch of a model may take without making a cycle longer; no bound where it is alone."""
        if len(self.slots) == 1:
            return math.inf
        return self.cycle_s - sum(one.latency_s[one.batch - 1] for one in self.slots if one is not slot)


# Rounds of all glets that serve a model, by model: a queue is all of theirs.
Beside = Mapping[str, Sequence[GletRound]]
_ALONE: Beside = {}


class Dispatch(NamedTuple):
    """Run the oldest requests of a model now: as many as have at most ``requests`` rows together."""

    model: str
    requests: int


class Wake(NamedTuple):
    """Nothing to run: look again then, or when a request comes."""

    at_s: float


def look(glet: GletRound, queues: Mapping[str, Queue], now_s: float, beside: Beside = _ALONE) -> Dispatch | Wake:
    """What an idle glet does.

    What cannot be answered in time any more is dropped first. How late batches of a model end is reckoned by the glet
    of ``beside`` whose end the least late: one that has fallen behind drops nothing that another one may answer. Then
    the model is chosen whose oldest request can wait least. Its batch runs if it is full, its turn has come, its
    deadline is near, or nothing else would run meanwhile. A try of a model that fails here is of one request alone.
    """
    chosen: tuple[float, Slot, int] | None = None
    wake_s = math.inf
    tries = glet.tries
    for slot in glet.slots:
        is_try = slot.model in tries
        if is_try and now_s < tries[slot.model].at_s:
            continue
        queue = queues[slot.model]
        rounds = beside.get(slot.model) or (glet,)
        late_s = min([one.paces[slot.model].late_s for one in rounds])
        count, is_missed = _in_time(queue, slot, now_s, glet.longest_s(slot), late_s, is_alone=is_try)
        if count == 0:
            for one in rounds if is_missed else ():
                one.paces[slot.model].forget()
            wake_s = min(wake_s, queue.full_s(1))
            continue
        slack_s = queue.deadline_s() - slot.latency_s[count - 1] - late_s - now_s
        if chosen is None or slack_s < chosen[0]:
            chosen = (slack_s, slot, count)
        if not glet.early and not _is_due(glet, slot, queues[slot.model].waiting(now_s), slack_s, now_s):
            due_s = glet.last_s.get(slot.model, -math.inf) + glet.cycle_s
            wake_s = min(wake_s, due_s, now_s + slack_s, queue.full_s(slot.batch))
    if chosen is None:
        return Wake(wake_s)
    slack_s, slot, count = chosen
    if glet.early or _is_due(glet, slot, queues[slot.model].waiting(now_s), slack_s, now_s):
        glet.last_s[slot.model] = now_s
        if slot.model in tries:
            wait_s = tries[slot.model].wait_s
            tries[slot.model] = Try(now_s + wait_s, min(2 * wait_s, TRY_S_MAX))
        return Dispatch(slot.model, count)
    return Wake(wake_s)


def _is_due(glet: GletRound, slot: Slot, waiting: int, slack_s: float, now_s: float) -> bool:
    due_s = glet.last_s.get(slot.model, -math.inf) + glet.cycle_s
    return waiting >= slot.batch or now_s >= due_s - _NEAR_S or slack_s <= _NEAR_S


def _in_time(
    queue: Queue, slot: Slot, now_s: float, longest_s: float, late_s: float, *, is_alone: bool
) -> tuple[int, bool]:
    """Requests of the next batch, after those are dropped that it would answer too late.

    A model catches up by larger batches than planned, as long as its oldest request and the cycle allow them
    [glet §2.1]. Besides: whether one was dropped for ``late_s`` alone, by which batches end later than planned.
    ``is_alone``: The batch is the oldest request by itself.
    """
    is_missed = False
    while True:
        waiting = queue.waiting(now_s)
        if waiting == 0:
            return 0, is_missed
        count = queue.oldest() if is_alone else max(min(waiting, slot.batch), queue.oldest())
        room_s = queue.deadline_s() - now_s + _NEAR_S
        if room_s < slot.latency_s[count - 1] + late_s:
            is_missed = is_missed or room_s >= slot.latency_s[count - 1]
            queue.drop(now_s)
            continue
        if waiting > count and not is_alone:
            most, bound_s = min(waiting, len(slot.latency_s)), min(room_s - late_s, longest_s)
            while count < most and slot.latency_s[count] <= bound_s:
                count += 1
        return count, is_missed
