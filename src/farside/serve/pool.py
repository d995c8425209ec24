"""The pool: requests of all models, the glets that take turns at them, and what is in flight.

How it works
  A request waits in its model's queue until a glet's turn takes it (scheduler/sharing/glet/round.py): so a late or
  dead executor holds nothing but the batch that it runs and the one that is staged behind that. A batch's rows are
  copied into a slot of the executor's memory; when it is done each request is answered from there. Batches have
  numbers of their own: an answer to a batch that is not in flight is dropped and counted. Where a model raises on a
  batch of several requests, each half of them runs again, until the one is alone that is to blame. A glet on which a
  model raises each time is left out for it while another one serves it, but for a try now and then, whose request the
  other one gets.

  All is called from one event loop. Times are seconds of its clock, which is CLOCK_MONOTONIC.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farside.agent.serving.model_file import ModelFile
from farside.log import Rarely, get_log
from farside.scheduler.sharing.glet.gate import Gate
from farside.scheduler.sharing.glet.plan import Glet
from farside.scheduler.sharing.glet.round import Dispatch, GletRound, Pace, look
from farside.serve.description import Duration, ModelCounts
from farside.serve.inference import Array, InferenceError, Kind
from farside.serve.queues import RequestQueue, Waiting

STAGE_S = 0.002  # so long before a batch is expected to end the next one is chosen and copied
QUEUE_ROWS_MIN = 64
KEPT_LATENCIES = 4096
KEPT_RATIOS = 200
SLOTS = 2
LAG_S_MAX = 0.05
ROWS_GAIN = 1 / 16  # of the last request in the mean of their rows
SOUND_GAIN = 1 / 64  # of the last request that was read in the share of sound ones

_log = get_log("serve.pool")


class Executor(Protocol):
    """What runs batches: one at a time, and one staged behind it."""

    @property
    def failing(self) -> frozenset[str]:
        """Models that raised on each of their last batches, also on requests that were alone."""
        ...

    def slot_inputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """A slot's inputs by name, each of as many rows as a batch may have."""
        ...

    def slot_outputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """A slot's outputs by name; the first rows are of the batch that ended last there."""
        ...

    def run(self, batch: int, model: str, rows: int, slot: int, *, is_one: bool) -> None:
        """Runs the first rows of a slot, which are of one request, or of several.

        `Pool.ended` is called when that has ended, in the order of the calls.
        """
        ...


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch in flight. ``begun_s``: when it was the next to run; `expected_s` later, as planned, it is answered."""

    number: int
    model: str
    rows: int
    slot: int
    requests: list[Waiting]
    expected_s: float
    begun_s: float
    ends_s: float
    copied_s: float


@dataclass(slots=True, eq=False, kw_only=True)
class Turns:
    """A glet at work: its round, its executor, what it runs and has staged.

    ``failing``: models that raised on each of their last batches. ``ratios``: model, and real by planned seconds, of
    its last batches that ended well. ``on_idle`` is called once it is closed and empty.
    """

    glet: Glet
    round: GletRound
    executor: Executor
    batches: deque[_Batch] = field(default_factory=deque[_Batch])
    failing: frozenset[str] = frozenset()
    ratios: deque[tuple[str, float]] = field(default_factory=lambda: deque[tuple[str, float]](maxlen=KEPT_RATIOS))
    timer: asyncio.TimerHandle | None = None
    is_closed: bool = False
    is_dead: bool = False
    on_idle: Callable[[], None] | None = None

    def takes_s(self, model: str, rows: int) -> float:
        """Seconds of a batch as planned, and what the last ones took longer than that."""
        return self.round.latencies_s[model][rows - 1] + max(0.0, self.round.paces[model].mean_s)


class Pool:
    """Queues and glets of a deployment.

    Args:
        loop: Whose clock and timers are used.
        models: By name.
        slo_s: Seconds by model.
        wall_ms: Milliseconds since 1970, for the time of a model's last request.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, models: Mapping[str, ModelFile], slo_s: Mapping[str, float],
        wall_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._loop, self._models, self._slo_s, self._wall_ms = loop, models, slo_s, wall_ms
        self.counts = {name: ModelCounts() for name in models}
        self.latencies_s = {name: deque[float](maxlen=KEPT_LATENCIES) for name in models}
        self.queues = {name: RequestQueue(self._drop, Gate(slo_s=slo_s[name])) for name in models}
        self.turns: tuple[Turns, ...] = ()
        self.stray = 0
        self.on_dead: Callable[[Turns, str], None] = lambda turns, line: None
        self._by_model: dict[str, tuple[Turns, ...]] = dict.fromkeys(models, ())
        self._beside: dict[str, Sequence[GletRound]] = {}
        self._least_s: dict[str, Sequence[float]] = {}
        self._awaited: frozenset[str] = frozenset()
        self._bounds: dict[str, int] = dict.fromkeys(models, QUEUE_ROWS_MIN)
        self._came: dict[str, int] = dict.fromkeys(models, 0)
        self._violated: dict[str, int] = dict.fromkeys(models, 0)
        # Requests that were turned away unread. They are reckoned to be like those that are read: of as many rows, and
        # as many of them sound. So what is no request does not count as demand, and moves no plan.
        self._unread, self._unread_late = Counter[str](), Counter[str]()
        self._rows_mean: dict[str, float] = dict.fromkeys(models, 1.0)
        self._sound: dict[str, float] = dict.fromkeys(models, 1.0)
        self._number = 0
        self._rarely = Rarely()
        # How late this process gets to what it is to do at a time, and so to requests that have come.
        self._lag = Pace()
        self._lag_known_s = 0.0

    @property
    def lag_s(self) -> float:
        """How late requests are read, at worst as far as is known."""
        return self._lag.late_s

    # ---- routes

    def is_ready(self, model: str) -> bool:
        """Whether a glet serves it."""
        return any(model not in turns.executor.failing for turns in self._by_model[model])

    def batches_of(self, model: str) -> tuple[int, ...]:
        """Planned batches of a model."""
        return tuple(s.batch for turns in self._by_model[model] for s in turns.round.slots if s.model == model)

    def switch(self, turns: Sequence[Turns], rates: Mapping[str, float], awaited: frozenset[str] = frozenset()) -> None:
        """These glets take turns from now on, and no others: those end what they have.

        Args:
            turns: The glets.
            rates: Planned requests a second, which bound the queues to what comes in an SLO.
            awaited: Models of a glet that has died and comes again: their requests wait for it.
        """
        self._awaited = awaited
        before, self.turns = self.turns, tuple(turns)
        for one in before:
            if one not in self.turns:
                self._close(one)
        for name in self._models:
            self._serve(name, [one for one in self.turns if name in one.round.latencies_s])
            self._bounds[name] = max(QUEUE_ROWS_MIN, math.ceil(rates.get(name, 0.0) * self._slo_s[name]))
        for one in self.turns:
            self._look(one)

    def without(self, turns: Turns) -> None:
        """Takes one glet out."""
        serving = [one for one in self.turns if one is not turns]
        self.turns = tuple(serving)
        self._close(turns)
        for name in turns.round.latencies_s:
            self._serve(name, [one for one in self._by_model[name] if one is not turns])

    def _serve(self, name: str, serving: Sequence[Turns]) -> None:
        """These glets serve a model. Without any its last latencies stay, by which requests that wait are judged.

        Those on which it fails come first, where it has their tries; where it fails on all, each serves as planned.
        """
        failing = [one for one in serving if name in one.failing]
        sound = [one for one in serving if name not in one.failing]
        left_out, counted = (failing, sound) if sound else ([], failing)
        for one in counted:
            one.round.take_in(name)
        for one in left_out:
            one.round.leave_out(name, self._loop.time())
        self._by_model[name] = (*left_out, *counted)
        self._beside[name] = [one.round for one in counted]
        rates = [p.rate for one in counted for p in one.glet.models if p.model == name]
        self.queues[name].gate.plan(math.fsum(rates))
        if counted:
            self._least_s[name] = _least_of(counted, name)

    def _close(self, turns: Turns) -> None:
        turns.is_closed = True
        if turns.timer is not None:
            turns.timer.cancel()
        if not turns.batches and turns.on_idle is not None:
            turns.on_idle()

    # ---- requests

    def turned_away(self, model: str) -> InferenceError | None:
        """Why a request of a model that has just come is not read: its queue is full or would give it up.

        It is counted then. None: it is read, and comes to `submit`.
        """
        queue = self.queues[model]
        gate, counts = queue.gate, self.counts[model]
        if queue.rows >= self._bounds[model]:
            counts.rejected += 1
            gate.refused(self._rows_mean[model])
            error = self._full(model)
        elif gate.rate < math.inf and not gate.is_open(self._loop.time(), self._rows_mean[model]):
            counts.dropped += 1
            self._unread_late[model] += 1
            error = self._late(model, self._slo_s[model])
        else:
            self._sound[model] *= 1 - SOUND_GAIN  # until it comes to `submit`
            return None
        self._unread[model] += 1
        counts.fail.add(0.0)
        return error

    def submit(self, one: Waiting) -> None:
        """Takes a request in; it may be answered at once by an error.

        It is to be answered earlier by the time for which it may have lain unread, as far as that can be known.
        """
        name, now_s = one.model, self._loop.time()
        self._came[name] += one.rows
        self._rows_mean[name] += ROWS_GAIN * (one.rows - self._rows_mean[name])
        self._sound[name] = min(1.0, self._sound[name] + SOUND_GAIN)
        serving = self._by_model[name]
        # A model that was never routed has no latency yet by which to judge.
        if not serving and (name not in self._awaited or name not in self._least_s):
            self._fail(one, _unserved(name))
            return
        lag_s, left_s = self._lag.late_s, one.deadline_s - now_s - self._least_s[name][one.rows - 1]
        if left_s < lag_s:
            if left_s >= 0:
                self._lag.forget()
            self._drop(one)
            return
        queue = self.queues[name]
        if queue.rows >= self._bounds[name]:
            self._fail(one, self._full(name))
            return
        queue.add(one, lag_s)
        for turns in serving:
            if not turns.batches:
                self._look(turns)
                if not queue.rows:
                    return
        for turns in serving:
            if len(turns.batches) == 1 and turns.timer is None:
                self._look(turns)

    def cancel(self, one: Waiting) -> None:
        """Forgets a request whose client has gone."""
        if not one.is_cancelled:
            one.is_cancelled = True
            self.counts[one.model].cancelled += 1
            self.queues[one.model].remove(one)

    def refuse(self, model: str, kind: Kind) -> None:
        """Counts a request that is answered by an error and never comes to `submit`; of an unknown model: nothing."""
        if model in self.counts:
            self._count(model, kind, 0.0)

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Rows that came, and rows that were dropped or late, since the last call, by model."""
        now_s = self._loop.time()
        for queue in self.queues.values():
            queue.drop_late(now_s)
        came, violated = self._came, self._violated
        for name, rows in self._rows_mean.items():
            rows *= self._sound[name]
            came[name] += round(rows * self._unread[name])
            violated[name] += round(rows * self._unread_late[name])
        self._unread.clear()
        self._unread_late.clear()
        self._came, self._violated = dict.fromkeys(came, 0), dict.fromkeys(violated, 0)
        return came, violated

    # ---- batches

    def ended(self, turns: Turns, number: int, raised: str, started_ns: int, ended_ns: int) -> None:
        """An executor has ended a batch; ``raised`` is the line of the model's error, empty without one."""
        if not turns.batches or turns.batches[0].number != number:
            self.stray += 1
            return
        batch = turns.batches.popleft()
        if raised or turns.failing:
            self._judge(turns, batch.model, raised)
        now_s = self._loop.time()
        if turns.batches:
            turns.batches[0].begun_s = now_s
            turns.batches[0].ends_s = now_s + turns.takes_s(turns.batches[0].model, turns.batches[0].rows)
        elif not raised and not turns.is_closed:
            self._look(turns, batch)
        took_s = (ended_ns - started_ns) / 1e9
        if raised:
            self._raised(turns, batch, raised)
        else:
            turns.ratios.append((batch.model, took_s / batch.expected_s))
            self._answer(turns, batch, started_ns / 1e9, took_s)
            turns.round.paces[batch.model].ended(batch.expected_s, self._loop.time() - batch.begun_s)
        if not turns.is_closed:
            self._look(turns)
        elif not turns.batches and turns.on_idle is not None:
            turns.on_idle()

    def _judge(self, turns: Turns, model: str, raised: str) -> None:
        """Leaves a glet out for a model that has just begun to fail there, or takes it in again."""
        was_failing, turns.failing = model in turns.failing, turns.executor.failing
        is_failing = model in turns.failing
        if turns.is_closed or not (was_failing or is_failing):
            return
        # Behind the others: where it fails on all, each is tried.
        self._serve(model, [*(one for one in self._by_model[model] if one is not turns), turns])
        glet = turns.glet
        if is_failing and not was_failing and self._rarely.may((model, glet.gpu, glet.part_pct)) is not None:
            others = len(self._by_model[model]) - 1
            used = "; others that serve it are used meanwhile" if others else ""
            _log.warning(
                f"a model raises each time on a part{used}", model=model, gpu=glet.gpu, part_pct=glet.part_pct,
                others=others, why=raised,
            )  # fmt: skip

    def _raised(self, turns: Turns, batch: _Batch, why: str) -> None:
        """Fails a request that was alone; where its model is left out, other glets get it first.

        Of several requests one may be to blame for all: each half runs again, in its turn and while there is time.
        """
        again = [one for one in batch.requests if not one.is_cancelled]
        if len(batch.requests) > 1:
            half = (len(again) + 1) // 2
            for group in (again[:half], again[half:]):
                self._number += 1
                for one in group:
                    one.group = self._number
        elif batch.model not in turns.round.tries or not self._is_tried_again(batch.requests[0], self._loop.time()):
            self._fail(batch.requests[0], InferenceError(Kind.RAISED, f"{batch.model} raised: {why}"[:500]))
            return
        if not self._by_model[batch.model] and batch.model not in self._awaited:
            for one in again:
                self._fail(one, _unserved(batch.model))
            return
        self.queues[batch.model].put_back(again)
        for other in self._by_model[batch.model]:
            if other is not turns:
                self._look(other)

    def died(self, turns: Turns, line: str) -> None:
        """An executor has ended: what it ran is queued again once, what was staged as if nothing had been."""
        if turns.is_dead:
            return
        turns.is_dead = True
        batches = list(turns.batches)
        turns.batches.clear()
        self.without(turns)
        self._awaited |= turns.round.latencies_s.keys()
        _log.warning("an executor died", gpu=turns.glet.gpu, part_pct=turns.glet.part_pct, why=line)
        now_s = self._loop.time()
        for at, batch in reversed(list(enumerate(batches))):
            kept = list[Waiting]()
            for one in batch.requests:
                if one.is_cancelled:
                    continue
                if at == 0 and not self._is_tried_again(one, now_s):
                    why = "and this was another try already" if one.is_again else "and there is no time for another try"
                    self._fail(one, InferenceError(Kind.DIED, f"the process that ran {one.model} died, {why}"))
                else:
                    kept.append(one)
            self.queues[batch.model].put_back(kept)
        self.on_dead(turns, line)
        for other in self.turns:
            self._look(other)

    def _is_tried_again(self, one: Waiting, now_s: float) -> bool:
        """Whether a request goes back to its queue: once, if there is time, and its client has not gone."""
        if one.is_cancelled or one.is_again or one.deadline_s < now_s + self._least_s[one.model][one.rows - 1]:
            return False
        self._number += 1
        one.is_again, one.group = True, self._number
        self.counts[one.model].again += 1
        return True

    def _look(self, turns: Turns, leaving: _Batch | None = None) -> None:
        if turns.timer is not None:
            turns.timer.cancel()
            turns.timer = None
        if turns.is_closed or len(turns.batches) >= SLOTS:
            return
        now_s = begins_s = self._loop.time()
        if turns.batches:
            ends_s = turns.batches[0].ends_s
            if ends_s - now_s > STAGE_S:
                self._look_at(turns, ends_s - STAGE_S)
                return
            begins_s = max(now_s, ends_s)
        found = look(turns.round, self.queues, begins_s, self._beside)
        if isinstance(found, Dispatch):
            self._stage(turns, found, begins_s, leaving)
        elif found.at_s < math.inf:
            self._look_at(turns, max(found.at_s, now_s))

    def _look_at(self, turns: Turns, at_s: float) -> None:
        turns.timer = self._loop.call_at(at_s, self._due, turns, at_s)

    def _due(self, turns: Turns, at_s: float) -> None:
        now_s = self._loop.time()
        if at_s > self._lag_known_s:  # others that were due before are late by the same stall
            self._lag_known_s = now_s
            self._lag.ended(LAG_S_MAX, LAG_S_MAX + now_s - at_s)
        self._look(turns)

    def _stage(self, turns: Turns, found: Dispatch, begins_s: float, leaving: _Batch | None) -> None:
        """Copies a batch into a free slot and has it run."""
        name = found.model
        requests = self.queues[name].take(found.requests)
        began_s = self._loop.time()
        # The slot of a batch that has just ended is read still.
        used = {one.slot for one in (*turns.batches, leaving) if one is not None and one.model == name}
        slot = next(number for number in range(SLOTS) if number not in used)
        views = list(turns.executor.slot_inputs(name, slot).values())
        at = 0
        for one in requests:
            one.staged_s = began_s
            for view, array in zip(views, one.inputs, strict=True):
                view[at : at + one.rows] = array
            at += one.rows
        self._number += 1
        ends_s = begins_s + turns.takes_s(name, at)
        turns.batches.append(
            _Batch(
                number=self._number, model=name, rows=at, slot=slot, requests=requests,
                expected_s=turns.round.latencies_s[name][at - 1], begun_s=begins_s, ends_s=ends_s,
                copied_s=self._loop.time() - began_s,
            )
        )  # fmt: skip
        turns.executor.run(self._number, name, at, slot, is_one=len(requests) == 1)
        if len(turns.batches) == 1 and self.queues[name].rows:
            self._look_at(turns, max(self._loop.time(), ends_s - STAGE_S))

    # ---- outcomes

    def _answer(self, turns: Turns, batch: _Batch, started_s: float, took_s: float) -> None:
        counts = self.counts[batch.model]
        views = list(turns.executor.slot_outputs(batch.model, batch.slot).values())
        began_s = self._loop.time()
        at = 0
        for one in batch.requests:
            rows = [view[at : at + one.rows] for view in views]
            at += one.rows
            if one.is_cancelled:
                continue
            one.answer(one.encode(rows))
            now_s = self._loop.time()
            if now_s <= one.deadline_s:
                counts.met += 1
            else:
                counts.late += 1
                self._violated[one.model] += one.rows
            self.latencies_s[batch.model].append(now_s - one.arrived_s)
            counts.success.add(now_s - one.arrived_s)
            counts.queue.add(max(0.0, min(started_s, one.staged_s) - one.arrived_s))
        copied_out_s = self._loop.time() - began_s
        counts.last_ms = self._wall_ms()
        counts.rows += batch.rows
        counts.batches += 1
        sized = counts.by_batch.setdefault(batch.rows, (Duration(), Duration(), Duration()))
        for kept, took in zip(
            ((counts.copied_in, sized[0]), (counts.ran, sized[1]), (counts.copied_out, sized[2])),
            (batch.copied_s, took_s, copied_out_s),
            strict=True,
        ):
            kept[0].add(took, len(batch.requests))
            kept[1].add(took)

    def _drop(self, one: Waiting) -> None:
        self._violated[one.model] += one.rows
        self._fail(one, self._late(one.model, one.deadline_s - one.arrived_s))

    def _full(self, model: str) -> InferenceError:
        line = f"{self.queues[model].rows} rows of requests for {model} wait already"
        return InferenceError(Kind.FULL, line, hint="try again later")

    def _late(self, model: str, within_s: float) -> InferenceError:
        return InferenceError(Kind.LATE, f"{model} can not answer within {1000 * within_s:.0f} ms now")

    def _fail(self, one: Waiting, error: InferenceError) -> None:
        if not one.is_cancelled:  # else it is counted already
            self._count(one.model, error.kind, self._loop.time() - one.arrived_s)
            one.fail(error)

    def _count(self, model: str, kind: Kind, took_s: float) -> None:
        counts, counted = self.counts[model], kind.counted
        if counted == "refused":
            counts.refused += 1
            return
        if counted == "dropped":
            counts.dropped += 1
        elif counted == "rejected":
            counts.rejected += 1
        else:
            counts.failed += 1
        counts.fail.add(took_s)


def _unserved(model: str) -> InferenceError:
    return InferenceError(Kind.FULL, f"no part of a device serves {model} now", hint="try again later")


def _least_of(serving: Sequence[Turns], model: str) -> Sequence[float]:
    """The least seconds of batches of 1, 2, 3, ... on any of these glets."""
    return [min(each) for each in zip(*(one.round.latencies_s[model] for one in serving), strict=True)]
