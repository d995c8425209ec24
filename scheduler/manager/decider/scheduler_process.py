"""The scheduler process: it reads the log, decides, and writes its decisions; it talks only to the log.

One page: lead, read all, then read on, decide, write, wake the API, sleep until there is news or it is time.

What follows from a decision at once is written with it, such as the starts of jobs that were given a place; the cycle
is run between transactions, so that nobody who writes waits for it. While the database waits for its disk the event
loop turns, so that who asks why a job waits is not kept waiting.

A cycle that fails by a fault of ours has written nothing. It is tried again with a mind made anew from the log: half of
what it was about to decide may stand in the old one.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from farside import admin
from farside.errors import FarsideError
from farside.log import get_log
from farside.scheduler.admission.idle_gpus import NO_IDLE_RULES, IdleRules
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.domain import Rules
from farside.scheduler.explain import nobody_knows
from farside.scheduler.manager.aggregation.decide import AggregationRules
from farside.scheduler.manager.colocation.outlook import NO_RULES, ColocationRules
from farside.scheduler.manager.decider.adapter import DEFAULT_RULES
from farside.scheduler.manager.decider.cycle_failures import CycleFailures
from farside.scheduler.manager.decider.decide import Decider
from farside.scheduler.manager.decider.expectation import expected_of
from farside.scheduler.manager.log_wakeup import sleeping_at, wake
from farside.scheduler.manager.model.draft import Draft
from farside.scheduler.manager.model.event import (
    AllocationReleased,
    DrainRequested,
    Event,
    JobStarted,
    LendingOrdered,
    MemoryRecalled,
    NodeChanged,
    NodeJoined,
    NodeLost,
    PowerChanged,
)
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store.event_store import EventStore, StoreError
from farside.scheduler.manager.store.leadership import leading
from farside.scheduler.manager.store.load import whole_state
from farside.scheduler.manager.store.transaction import PAGE, LeadLost
from farside.scheduler.manager.view.view import NOTHING_EXPECTED
from farside.scheduler.manager.wall_clock import WallClock
from farside.scheduler.predict.fit_process import Fitter
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.units import format_bytes, format_moment

WAKE, API_WAKE, ASK = "brain.wake", "api.wake", "brain.sock"
# A cycle that takes longer than this is told in the log of the process.
SLOW_S = 1.0
# Upper bounds of what cycles are counted by; one more has the rest.
CYCLE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# What may change what donors lend.
_LENDING = NodeJoined | NodeChanged | NodeLost | DrainRequested | PowerChanged | LendingOrdered
# A transaction keeps the API's from being written; after so long nothing more is decided in it.
HOLD_S = 0.05
# So long at a time is spent on saying why many jobs wait.
WHYS_LIMIT_S = 0.05

Entered = TypeVar("Entered")

_log = get_log("manager.scheduler")


class SchedulerProcess:
    """Decides for one store; at most one leads, see `EventStore.take_lead`."""

    def __init__(
        self,
        store: EventStore,
        rules: Rules,
        folder: Path,
        holder: str,
        *,
        aggregation: AggregationRules = DEFAULT_RULES,
        colocation: ColocationRules = NO_RULES,
        make_times: Callable[[], LearnedTimes | None] = lambda: None,
        partitions: Partitions = NO_PARTITIONS,
        idle: IdleRules = NO_IDLE_RULES,
        recall_s: float = 0.0,
    ) -> None:
        """``make_times``: an estimator for policies that go by run times, which knows no live job yet."""
        self._store = store
        self._make_times = make_times
        self._fitter = Fitter()
        self._taught: Decider | None = None  # whose jobs the present fit is to
        self._rules = rules
        self._aggregation, self._colocation, self._partitions = aggregation, colocation, partitions
        self._idle, self._recall_s = idle, recall_s
        self._folder = folder
        self._holder = holder
        self._clock = WallClock(folder)
        self._cycles = 0
        self._slowest_s = 0.0
        self._spent_s = 0.0
        self._by_bucket = [0] * (len(CYCLE_BUCKETS_S) + 1)
        self._read_state: LiveState | None = None  # what a mind is made of next; None: it has to be read
        self._decider: Decider | None = None
        self._is_spoilt = False  # a cycle failed in the middle of it
        self._next_wake_s = math.inf
        self._failures = CycleFailures()

    async def run(self) -> None:
        """Leads until it is cancelled.

        Raises:
            CyclesFail: Whatever it tries.
            LeadLost: Another scheduler process leads.
            StoreError: The store can't be read or written.
        """
        # Observe, decide, act and record are one turn of the loop below: `_decide` reads on (1), asks the decider (2),
        # writes its decisions (3), and wakes the API (4); then the loop sleeps (5).
        async with leading(self._store):
            with sleeping_at(self._folder / WAKE) as sleeper:
                self._lead()
                handlers = {
                    "explain": self._on_explain, "whys": self._on_whys, "status": self._on_status,
                    "expected": self._on_expected, "promised": self._on_promised,
                }  # fmt: skip
                async with self._fitter, admin.serve(self._folder / ASK, handlers):
                    while True:
                        # After a decision there may be another at once, so it sleeps only when nothing was decided.
                        if not await self._try_to_decide():
                            await sleeper.sleep(self._next_wake_s - self._clock.now_s())

    def _lead(self) -> None:
        state = whole_state(self._store)
        self._clock.not_before(state.at_s)
        # What others write between this read and the new generation is read by the first cycle.
        self._generation = self._store.take_lead(self._holder, self._clock.now_s())
        self._read_state = state
        _log.info(
            "the scheduler process took the lead",
            generation=self._generation,
            entries=state.seq,
            unfinished=len(state.unfinished),
        )

    def _now_s(self, state: LiveState) -> float:
        return max(self._clock.now_s(), state.at_s)

    async def _try_to_decide(self) -> bool:
        """Runs `_decide`; if that fails by a program error, returns True after a pause."""
        failures = self._failures
        try:
            is_more = await self._decide()
        # Neither is repaired by a new try with the same state: the process ends, and its successor reads the log anew.
        except (LeadLost, StoreError):
            raise
        except Exception as error:  # a policy's fault, or one job that nobody has foreseen
            self._is_spoilt = True
            failures.note(error, self._clock.now_s())
            pause_s = failures.pause_s
            _log.error("a cycle failed", reason=failures.last, in_a_row=failures.in_a_row, again_in_s=pause_s)
            _log.debug("where it failed", cause=error)
            # After the note and the log line, so the last failure is reported too before the process ends.
            failures.refuse_more()
            await asyncio.sleep(pause_s)
            return True
        failures.note_success()
        return is_more

    def _sound_decider(self) -> Decider:
        if self._decider is None or self._is_spoilt:
            # The state that was read at the start is used once; after a failure all is read again, as the decider
            # changes it.
            state, self._read_state = self._read_state or whole_state(self._store), None
            self._decider = Decider(
                self._rules, state, self._now_s(state), aggregation=self._aggregation, colocation=self._colocation,
                times=self._make_times(), partitions=self._partitions, idle=self._idle, recall_s=self._recall_s,
            )  # fmt: skip
            self._is_spoilt = False
        return self._decider

    async def _decide(self) -> bool:
        """Reads on, decides, and writes that; False: there was nothing to decide."""
        begun_s, decider = time.monotonic(), self._sound_decider()
        self._read(decider)
        self._fit(decider)
        drafts = decider.next_events(self._now_s(decider.state))
        for job_id, why in decider.take_waits().items():
            _log.warning("a job has its GPUs and waits", job=job_id, reason=why)
        if drafts:
            await self._write(decider, drafts)
            self._cycles += 1
            wake(self._folder / API_WAKE)
        spent_s = time.monotonic() - begun_s
        self._slowest_s = max(self._slowest_s, spent_s)
        self._spent_s += spent_s
        self._by_bucket[bisect_left(CYCLE_BUCKETS_S, spent_s)] += 1
        if spent_s > SLOW_S:
            _log.warning("a scheduling cycle was slow", seconds=spent_s, unfinished=len(decider.state.unfinished))
        self._next_wake_s = decider.next_wake_s()
        return bool(drafts)

    def _fit(self, decider: Decider) -> None:
        """Takes the model of a fit that has ended, and begins one that is due; nothing waits for it."""
        if decider.times is None:
            return
        fitted = self._fitter.take()
        # What was learned from another decider's jobs numbers their users otherwise.
        if fitted is not None and self._taught is decider:
            decider.take(fitted)
            _log.info(
                "a model of run times was fitted", jobs=fitted.trained_on, off_by=math.exp(fitted.found.log_error),
                goes_by=decider.times.service.source,
            )  # fmt: skip
        if not self._fitter.is_fitting and (lesson := decider.times.lesson(self._now_s(decider.state))) is not None:
            self._taught = decider
            self._fitter.begin(lesson)

    async def _write(self, decider: Decider, drafts: Sequence[Draft]) -> None:
        """Writes what was decided, and what follows from it."""
        async with _in_threads(self._store.turn(self._generation, decider.state.seq)) as turn:
            begun_s = time.monotonic()
            # Other writers' entries that came after `_read` are heard first, in the order of the log: the log's lock is
            # held, so these are all.
            for entry in turn.unread:
                decider.hear(entry)
            # A start promises what its nodes' agents said last, donors' memory among it: it is decided again by that.
            if any(isinstance(entry.event, _LENDING) for entry in turn.unread):
                others = tuple(draft for draft in drafts if not isinstance(draft.event, JobStarted))
                drafts = others or decider.next_events(self._now_s(decider.state), may_plan=False)
            while drafts:
                for entry in turn.add(drafts, self._clock.now_s()):
                    decider.hear(entry)
                    _tell_of(entry.event)
                # Only cheap consequences are added here: `may_plan=False` keeps a whole cycle out of the transaction.
                is_long = time.monotonic() - begun_s > HOLD_S
                drafts = () if is_long else decider.next_events(self._now_s(decider.state), may_plan=False)

    def _read(self, decider: Decider) -> None:
        while True:
            entries = self._store.read(decider.state.seq)
            for entry in entries:
                decider.hear(entry)
            if len(entries) < PAGE:
                return

    # ------------------------------------------------------------------ asked by the API

    def _asked_decider(self) -> Decider:
        if self._decider is None or self._is_spoilt:
            raise FarsideError(f"the last cycle failed, by {self._failures.last}; it is tried again")
        return self._decider

    async def _on_explain(self, told: Mapping[str, object]) -> object:
        decider = self._asked_decider()
        job_id, now_s = str(told.get("job_id", "")), self._now_s(decider.state)
        lines = decider.why(job_id, now_s, format_moment)
        if not lines:
            raise FarsideError(f"job {told.get('job_id')}: not known")
        foreseen, limit = decider.foresee(job_id, now_s), decider.packlimit_of(job_id)
        if foreseen is None:
            return {"lines": list(lines), "expected_start_s": None, "packlimit": limit}
        if foreseen.at_s == math.inf:
            said = [*lines, nobody_knows(decider.domain_of(job_id), foreseen)]
            return {"lines": said, "expected_start_s": None, "packlimit": limit}
        when = f"expected to start by {format_moment(foreseen.at_s)}, by the time limits of those before it"
        return {"lines": [*lines, when], "expected_start_s": foreseen.at_s, "packlimit": limit}

    async def _on_expected(self, told: Mapping[str, object]) -> object:
        decider = self._asked_decider()
        job = decider.state.jobs.get(str(told.get("job_id", "")))
        return NOTHING_EXPECTED if job is None else expected_of(decider.times, job)

    async def _on_promised(self, told: Mapping[str, object]) -> object:
        return {"job": self._asked_decider().promised_to(str(told.get("job_id", "")))}

    async def _on_whys(self, told: Mapping[str, object]) -> object:
        """The first line about each job, as far as it gets in a moment: the cycle must not wait for who looks on."""
        decider, found = self._asked_decider(), dict[str, str]()
        end_s = time.monotonic() + WHYS_LIMIT_S
        job_ids = told.get("job_ids")
        for job_id in job_ids if isinstance(job_ids, list) else ():
            lines = decider.why(str(job_id), self._now_s(decider.state), format_moment)
            found |= {str(job_id): lines[0]} if lines else {}
            if time.monotonic() > end_s:
                break
        return found

    async def _on_status(self, _: Mapping[str, object]) -> object:
        state, failures = None if self._decider is None else self._decider.state, self._failures
        return {
            "generation": self._generation,
            "seq": 0 if state is None else state.seq,
            "unfinished": 0 if state is None else len(state.unfinished),
            "cycle_failures": failures.count,
            "cycle_failures_in_a_row": failures.in_a_row,
            "cycle_failed_s": failures.last_s if failures.count else None,
            "cycle_failure": failures.last,
            "cycles": self._cycles,
            "slowest_s": self._slowest_s,
            "spent_s": self._spent_s,
            "cycles_by_bucket": self._by_bucket,
            "policy": self._rules.order.name,
            "placement": self._rules.placement.name,
            "packlimits": () if self._decider is None else self._decider.packlimits(),
        }


def _tell_of(event: Event) -> None:
    if isinstance(event, AllocationReleased) and event.is_held:
        _log.error("a job is held", job=event.job_id, reason=event.reason, hint=f"farside release {event.job_id}")
    if isinstance(event, MemoryRecalled):
        _log.info(
            "memory is recalled before a job starts", job=event.job_id, node=event.node,
            recalled=format_bytes(event.recalled_bytes), expected_s=event.expected_s, samples=event.samples,
        )  # fmt: skip


@asynccontextmanager
async def _in_threads(context: AbstractContextManager[Entered]) -> AsyncIterator[Entered]:
    """A context whose beginning and end block; both in threads, and what is done in it is done here."""
    # SQLite's lock and the commit's sync block; the work inside stays in the event loop, as the decider is not
    # thread-safe.
    entered = await asyncio.to_thread(context.__enter__)
    try:
        yield entered
    except BaseException as error:
        await asyncio.to_thread(context.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(context.__exit__, None, None, None)
