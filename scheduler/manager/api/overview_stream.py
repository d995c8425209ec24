"""Overview streams: one survey for each entry of the log, and the event streams that follow it.

How it works
  A stream sends one event with everything, then one for each change, at most one in `PERIOD_S`: who reads slowly gets
  fewer events, not more memory here, because the next one is made only when the last has gone out. So a stream costs
  one overview, whatever happens in the cluster, and there are at most `STREAMS_MAX`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import UNSET

from farside import admin
from farside.agent.messages import ExecutorFacts
from farside.errors import FarsideError
from farside.scheduler.manager.aggregation.show import AggregationReport, report
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.view import groups
from farside.scheduler.manager.view.deployments import Deployments
from farside.scheduler.manager.view.groups import GroupReport
from farside.scheduler.manager.view.listing import NodeRows
from farside.scheduler.manager.view.overview import Glimpse, Overview, Sensed, Survey, show_overview, waiting_ids
from farside.scheduler.manager.view.partition import NOBODYS, Whose
from farside.scheduler.manager.view.power import energy_of
from farside.scheduler.manager.view.sight import Sight
from farside.scheduler.manager.view.view import show_node

STREAMS_MAX = 64
# Of one caller; and of those who are no operators in all.
STREAMS_A_CALLER, USERS_STREAMS_MAX = 4, 56
PERIOD_S = 1.0
# Without news something is sent so often: sensors have moved, and a reader that is gone is noticed.
REFRESH_S = 5.0
# The scheduler process is asked about so many waiting jobs of one person, and about one job so often.
WHY_MAX = 40
WHY_AGE_S = 5.0
WHY_LIMIT_S = 2.0

_ENCODER = msgspec.json.Encoder()


class Whys:
    """Reasons why jobs wait, cached for a moment; the scheduler process gets one question at a time."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._known: dict[str, tuple[float, str]] = {}  # when it was asked, the answer
        self._asking = asyncio.Lock()

    async def of(self, job_ids: list[str]) -> Mapping[str, str]:
        """A line for each job that the scheduler process has a reason for; none if it does not answer here."""
        # One question at a time: the scheduler process answers in its own loop, and whoever waited here finds the
        # answers of the one before in the cache.
        async with self._asking:
            now_s = self._now_s()
            self._known = {job: told for job, told in self._known.items() if now_s - told[0] < WHY_AGE_S}
            unknown = [job for job in job_ids if job not in self._known]
            if unknown:
                found = await self._ask(unknown)
                # No answer is kept too, as "": a scheduler process that does not answer is not asked by every stream in
                # turn.
                self._known |= {job: (now_s, found.get(job, "")) for job in unknown}
        return {job: self._known[job][1] for job in job_ids if self._known[job][1]}

    async def _ask(self, job_ids: list[str]) -> Mapping[str, str]:
        try:
            return dict(await admin.ask(self._folder / ASK, "whys", timeout_s=WHY_LIMIT_S, job_ids=job_ids))
        except FarsideError:
            return {}  # it starts, or leads elsewhere: the page shows what the log says


class OverviewStreams:
    """Makes overviews: one survey for each entry of the log, whoever asks."""

    def __init__(
        self,
        log: LiveLog,
        folder: Path,
        sensed: Callable[[], Mapping[str, Sensed]],
        idle_w: float = 0.0,
        forecast: Callable[[], str] = str,
        deployments: Deployments | None = None,
        whose: Callable[[LiveNode], Whose] = lambda node: NOBODYS,
    ) -> None:
        self._log, self._sensed, self._idle_w, self._forecast = log, sensed, idle_w, forecast
        self._deployments = deployments or Deployments()
        self._whys = Whys(folder, log.clock.now_s)
        self._survey: Survey | None = None
        self._nodes = NodeRows(lambda node, sight: show_node(node, whose=whose(node), memory=UNSET, sight=sight))
        self._follow: Counter[str] = Counter()
        self._users_streams = 0

    async def of(self, caller: Caller) -> Overview:
        """The overview that this caller may see now."""
        # All readers of one entry share the survey, which looks at every job.
        if self._survey is None or self._survey.seq != self._log.state.seq:
            self._survey = Survey(self._log.state)
        overview = self._survey.overview(None if caller.is_operator else caller.name)
        lines = await self._whys.of(waiting_ids(overview, WHY_MAX))
        words = self.sight_of(caller).words
        why = {job_id: words(line) for job_id, line in lines.items()}
        energy = energy_of(self._log.state, self._log.now_s(), self._idle_w, self._forecast())
        sensed, shared = self._sensed(), self.aggregation(caller)
        shown = self.groups(caller).groups
        deployments = self._deployments.of(None if caller.is_operator else caller.name, time.monotonic())
        return replace(
            overview, why=why, sensed=sensed, energy=energy, aggregation=shared, groups=shown, deployments=deployments
        )

    def aggregation(self, caller: Caller) -> AggregationReport:
        """The Aggregators, and those jobs on them that this caller may see."""
        said = {name: one.aggregator for name, one in self._sensed().items() if one.aggregator is not None}
        sight = self.sight_of(caller)
        return report(self._log.state.aggregation, said, sight.has, sight.words)

    def groups(self, caller: Caller) -> GroupReport:
        """The jobs that take turns on a node, as far as this caller may see them."""
        sight = self.sight_of(caller)
        return groups.report(self.turns(), sight.has, self._log.state.colocation, sight.may_read)

    def turns(self) -> Mapping[str, ExecutorFacts]:
        """What agents that are connected here said last of the executor of their node."""
        return {name: one.executor for name, one in self._sensed().items() if one.executor is not None}

    def sight_of(self, caller: Caller) -> Sight:
        """What this caller sees of jobs."""
        return Sight(jobs=self._log.state.jobs, user=None if caller.is_operator else caller.name)

    def show(self, overview: Overview, caller: Caller, before: Overview | None = None) -> Glimpse:
        """An overview as the API answers it to this caller, whose it is; see `show_overview`."""
        sight = self.sight_of(caller)
        return show_overview(overview, self._log.now_s(), before, lambda node: self._nodes.row(node, sight), sight)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._follow.total()

    def enter(self, caller: Caller) -> str:
        """Takes a place among those who follow, until `leave`; or why there is none."""
        if self._follow[caller.told] >= STREAMS_A_CALLER:
            return f"{STREAMS_A_CALLER} of yours follow already; close one"
        if self.streams >= STREAMS_MAX or (not caller.is_operator and self._users_streams >= USERS_STREAMS_MAX):
            return f"{self.streams} follow already; come again"
        self._follow[caller.told] += 1
        self._users_streams += not caller.is_operator
        return ""

    def leave(self, caller: Caller) -> None:
        """Gives the place back."""
        self._follow[caller.told] -= 1
        self._follow += Counter()  # keeps those alone that are more than none
        self._users_streams -= not caller.is_operator

    async def follow(self, caller: Caller, is_valid: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Events for one reader, until it goes or is not valid any more."""
        changed = asyncio.Event()
        self._log.watch(changed)
        before: Overview | None = None
        try:
            while is_valid():
                # Cleared before the state is read, so a change during the send is seen in the next round.
                changed.clear()
                now = await self.of(caller)
                shown = self.show(now, caller, before)
                yield b"event: %b\ndata: %b\n\n" % (b"all" if before is None else b"change", _ENCODER.encode(shown))
                before = now
                # First the shortest time between two events, whatever happens; then the wait for news.
                await asyncio.sleep(PERIOD_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S - PERIOD_S):
                        await changed.wait()
            yield b"event: over\ndata: {}\n\n"
        finally:
            self._log.unwatch(changed)
