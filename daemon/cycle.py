"""Cycle of the donor: in each sample period it reads memory, decides, and acts.

A new limit of what is lent is kept at once: a job may wait for that memory.
"""

from collections.abc import Sequence

from farside.clock import Clock
from farside.daemon.headroom import Action, Grow, Hasten, Recall, ReleaseUnmapped, decide
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.recall import Recaller
from farside.daemon.slab.sessions import Loan
from farside.daemon.tasks import Tasks
from farside.errors import Unavailable
from farside.log import get_log
from farside.memory_sense import MemorySense
from farside.own_task import wait_first

_log = get_log("daemon.cycle")

UNSETTLED_MAX = 3
"""Samples skipped in a row because our own slabs came and went around them; then one is taken all the same."""


class Cycle:
    """The loop over one donor. ``run`` it as a task."""

    def __init__(
        self,
        *,
        lender: Lender,
        recaller: Recaller,
        sense: MemorySense,
        clock: Clock,
        period_s: float,
        tasks: Tasks,
    ) -> None:
        """``tasks`` is where recalls run their course."""
        self._lender = lender
        self._recaller = recaller
        self._sense = sense
        self._clock = clock
        self._period_s = period_s
        self._tasks = tasks
        self._unsettled = 0
        self._is_sensing = True

    async def run(self) -> None:
        """Steps once a period, until cancelled."""
        next_s = self._clock.now_s()
        while True:
            # Never more than one step behind: after a suspend there is nothing to catch up with.
            next_s = max(next_s + self._period_s, self._clock.now_s())
            # A slab that came or went within the last half of a period makes the sample doubtful: /proc/meminfo and our
            # own count may be of different moments.
            await self._wait_until_s(next_s - self._period_s / 2)
            before = self._lender.pool.changes
            await self._wait_until_s(next_s)
            try:
                await self.step(is_settled=before == self._lender.pool.changes)
            # Whatever goes wrong in one round, the next must come: it is what gives programs their memory back.
            except Exception as error:
                _log.error("unexpected fault", cause=error, work="memory")

    async def _wait_until_s(self, at_s: float) -> None:
        """Keeps a limit that is set meanwhile. In this task, so that no two rounds choose slabs for one limit."""
        is_over = False
        while not is_over:
            await wait_first(self._lender.limit_set.wait(), self._clock.sleep_until_s(at_s))
            is_over = self._clock.now_s() >= at_s
            if self._lender.limit_set.is_set():
                self._lender.limit_set.clear()
                try:
                    await self._keep_limit()
                except Exception as error:
                    _log.error("unexpected fault", cause=error, work="limit")

    async def step(self, *, is_settled: bool = True) -> None:
        """Do one round. ``is_settled``: no slab came or went just before, so that meminfo and our own count agree."""
        # 1. Silent borrowers lose what they have: it may be all that is needed.
        self._lender.expire()
        # 2. Observe.
        self._observe(is_settled=is_settled)
        if self._lender.is_closing:
            return
        # 3. Decide.
        actions = decide(self._lender.snapshot(), self._lender.memory.params)
        # 4. Act.
        for action in actions:
            # A donor that is drained has recalled everything; only the time for that may have to end sooner.
            if self._lender.lends or isinstance(action, Hasten):
                await self._act(action)
        # 5. What is lent, or ready, beyond the limit goes back, whatever memory there is.
        await self._keep_limit()

    def _observe(self, *, is_settled: bool) -> None:
        self._unsettled = 0 if is_settled else self._unsettled + 1
        # Bounded, as slabs may come and go without end, and programs must get their memory then, too.
        if 0 < self._unsettled <= UNSETTLED_MAX:
            return
        try:
            reading = self._sense.read()
        except Unavailable as error:
            self._lender.counters.bad_samples += 1
            # Logged once for each time that it fails, not in each period.
            if self._is_sensing:
                _log.error("memory use cannot be read; the last sample is used", error=error)
            self._is_sensing = False
            return
        self._is_sensing = True
        self._lender.memory.note(reading, slabs_bytes=self._lender.pool.slabs_bytes)

    async def _act(self, action: Action) -> None:
        _log.debug("memory", action=repr(action))
        match action:
            case Hasten():
                count = self._recaller.hasten()
                _log.warning("no time left to move recalled slabs", count=count, reason=action.reason)
            case Grow():
                pool = self._lender.pool
                await pool.grow(max(0, self._lender.within_limit(pool.ready + action.count) - pool.ready))
            case ReleaseUnmapped():
                await self._lender.pool.release_ready(action.count)
            case Recall():
                self._recall(await self._recaller.choose(action.count), action.deadline_s, action.reason)

    async def _keep_limit(self) -> None:
        lender = self._lender
        if lender.is_closing:
            return
        ready = lender.pool.ready
        if (spare := ready - lender.within_limit(ready)) > 0:
            await lender.pool.release_ready(spare)
        if lender.excess_slabs:
            loans = await self._recaller.choose(lender.excess_slabs, lender.lent)
            self._recall(loans, lender.limit_deadline_s, "more is lent than the limit allows")

    def _recall(self, loans: Sequence[Loan], deadline_s: float, reason: str) -> None:
        _log.info("slabs recalled", count=len(loans), deadline_s=deadline_s, reason=reason)
        self._recaller.begin(loans, deadline_s)
        # In a task of its own: borrowers get seconds, and the next sample must not wait for them.
        self._tasks.start(self._recaller.finish(loans), "recalling slabs")
