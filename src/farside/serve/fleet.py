"""The executors of a deployment: one for each glet, started, restarted, resized and ended as plans change.

A change comes in phases: new executors start and warm up beside the old ones; one assignment of routes switches; what
leaves ends its batches; then it is closed. Until the switch the old plan serves, and a change that can't be prepared
leaves it as it is. Where a device's memory does not hold both, what leaves it is closed before others start there.
"""

import asyncio
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from farside.agent.serving.handle import BatchDone, ExecutorEnded, ExecutorHandle, ServeError
from farside.agent.serving.model_file import ModelFile
from farside.errors import FarsideError
from farside.log import get_log
from farside.own_task import in_own_task
from farside.scheduler.sharing.glet.change import changes, closed_first
from farside.scheduler.sharing.glet.plan import Glet, Plan
from farside.scheduler.sharing.glet.profile import WHOLE_PCT
from farside.scheduler.sharing.glet.round import GletRound, Slot
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.pool import Pool, Turns
from farside.serve.site import Site
from farside.units import format_count

SLOWER_MIN, SLOWER_MAX, FASTER_MAX, FORGOTTEN, RATIOS_LEAST = 1.15, 4.0, 0.7, 0.9, 50
DEATHS_MAX, DEATHS_WITHIN_S, LEFT_OUT_S = 3, 60.0, 10.0
AGAIN_S = 1.0  # after a start that failed
# One that ran for so long has not died of its start, nor of its first batches.
LIVED_S = 10.0
# An executor has so long to end after its batches; longer where others need its memory, as a kill frees none at once.
CLOSE_S, FREE_S = 0.5, 5.0
# A front that takes executors over waits so long for those that do not come.
TAKE_OVER_S = 2.0
_REASONS_MAX = 16
# Of a device, for what prepares in a calm change, if that is ready so soon: a burst meanwhile has to wait for its end.
CALM_PCT, CALM_S = 20, 15.0

_log = get_log("serve.fleet")


@dataclass(slots=True, eq=False)
class _Opened:
    """A glet's executor; ``turns`` is None while it is not routed.

    ``deaths_s``: its last deaths, each soon after its start; ``ready_s``: when it was ready last. ``is_closed_first``:
    its executor has made room for another one, and comes again only if the change fails.
    """

    glet: Glet
    executor: ExecutorHandle | None = None
    turns: Turns | None = None
    deaths_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=DEATHS_MAX))
    ready_s: float = 0.0
    is_leaving: bool = False
    is_closed_first: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds that the phases of a change took, and how many glets were prepared, resized and closed.

    ``closed_first``: those of the closed ones that were so before others were prepared, for want of memory.
    """

    prepare_s: float
    drain_s: float
    prepared: int
    resized: int
    closed: int
    closed_first: int = 0


NOTHING_CHANGED = Phases(prepare_s=0.0, drain_s=0.0, prepared=0, resized=0, closed=0)


class Fleet:
    """Executors by glet.

    Args:
        sites: Devices, by the number of a plan's GPU; they may come and go.
        models: By name.
        sizes: Latencies by which rounds decide, for models that take so many times as long as in their profiles.
        pool: What they serve.
        longest_s: The longest SLO, which a glet that leaves has to end its batches.
        prepare_s: Seconds for an executor to be ready.
        prepare_pct: Of a device on which others serve, what one that prepares gets at most.
    """

    def __init__(
        self, sites: Mapping[int, Site], models: Mapping[str, ModelFile],
        sizes: Callable[[Mapping[str, float]], Sizes], pool: Pool,
        *, longest_s: float, prepare_s: float, prepare_pct: int = 100,
    ) -> None:  # fmt: skip
        self._sites, self._models = sites, models
        self._sizes_of, self._sizes, self._slower = sizes, sizes({}), dict[str, float]()
        self._pool, self._longest_s, self._prepare_s = pool, longest_s, prepare_s
        self._prepare_pct = prepare_pct
        # The longest that an executor took to be ready on a device on which no other one served.
        self._alone_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._opened: list[_Opened] = []
        # What is prepared or drained by the change that is under way.
        self._moving: list[_Opened] = []
        self._plan = Plan(glets=())
        self._rates: Mapping[str, float] = {}
        self.deaths = 0
        self._have_died = set[str]()
        # Is told of a device on which none runs and none can be started, and why.
        self.on_failed: Callable[[int, str], None] = lambda _gpu, _why: None
        pool.on_dead = self._died

    @property
    def plan(self) -> Plan:
        """What is routed."""
        return self._plan

    @property
    def executors(self) -> Sequence[tuple[Glet, ExecutorHandle | None]]:
        """Each glet of the plan with its executor; None: it has died, and comes again."""
        return [(one.glet, one.executor) for one in self._opened if not one.is_leaving]

    def take_missing(self) -> frozenset[str]:
        """Models of which an executor has died since the last call, or is not there."""
        missing = {name for one in self._opened if one.executor is None for name in _names(one.glet)}
        found, self._have_died = frozenset(missing | self._have_died), set()
        return found

    @property
    def in_use(self) -> frozenset[int]:
        """Devices that have executors, also those that are prepared or leave."""
        return frozenset(one.glet.gpu for one in (*self._opened, *self._moving))

    @property
    def slower(self) -> Mapping[str, float]:
        """How many times as long as in its profile each model takes that takes longer."""
        return self._slower

    def correct(self) -> bool:
        """Compares what batches took with what was planned, and decides by that from now on; whether any got slower.

        A median beyond SLOWER_MIN of what is planned with now, over RATIOS_LEAST batches at least, corrects it, and so
        does one below FASTER_MAX of it; never below the profile, whose latencies are those of slow batches. A model of
        which too few batches ran is believed a bit faster each time: else one of which all is dropped stayed so.
        """
        ratios: dict[str, list[float]] = {}
        for turns in self._pool.turns:
            for model, ratio in turns.ratios:
                ratios.setdefault(model, []).append(ratio)
        found = dict(self._slower)
        for model, taken in ratios.items():
            middle = statistics.median(taken)
            if len(taken) >= RATIOS_LEAST and not FASTER_MAX <= middle <= SLOWER_MIN:
                found[model] = min(SLOWER_MAX, found.get(model, 1.0) * middle)
        for model in self._slower:
            if len(ratios.get(model, ())) < RATIOS_LEAST:
                found[model] *= FORGOTTEN
        found = {model: times for model, times in found.items() if times > SLOWER_MIN}
        if found == self._slower:
            return False
        before, self._slower, self._sizes = self._slower, found, self._sizes_of(found)
        for turns in self._pool.turns:
            turns.ratios.clear()
        _log.warning(
            "batches take longer than in the profile" if found else "batches take as long as in the profile again",
            times=", ".join(f"{model} {times:.2f}" for model, times in sorted(found.items())),
        )  # fmt: skip
        self._route()
        return any(times > before.get(model, 1.0) for model, times in found.items())

    async def change(self, plan: Plan, rates: Mapping[str, float], *, is_calm: bool = False) -> Phases:
        """Leads from the plan that runs to another one.

        Args:
            plan: Its GPUs are numbered so that most stays.
            rates: Planned requests a second by model.
            is_calm: Nobody waits for it, so what prepares leaves the devices to what serves.

        Raises:
            FarsideError: An executor did not become ready; nothing has changed, but that what was closed first starts
                again.
        """
        began_s = self._loop.time()
        kept, resized, fresh = self._matched(plan)
        staying = [one for one, _ in (*kept, *resized)]
        self._moving = list(fresh)
        try:
            await self._prepare(fresh, self._calm_pct(fresh) if is_calm else self._prepare_pct, staying)
            for one, glet in resized:
                slowest_s = self._slowest_s(glet)
                if one.executor is not None and not await one.executor.resize(glet.part_pct, slowest_s):
                    _log.warning(
                        "a part could not be resized; its executor starts anew", gpu=glet.gpu, part_pct=glet.part_pct
                    )
        except BaseException as error:
            count = await self._put_back()
            if count and isinstance(error, FarsideError):
                room = f"closed first for want of memory, and started again: {format_count(count, 'part')}"
                raise ServeError(f"{error}; {room}") from error
            raise
        # Switch: no waiting in here.
        switched_s = self._loop.time()
        for one, glet in (*kept, *resized):
            one.glet = glet
            executor = one.executor
            if executor is not None and executor.part_pct != glet.part_pct:
                executor.kill()
        leaving = [one for one in self._opened if one not in staying]
        self._opened, self._plan, self._rates = [*staying, *fresh], plan, rates
        self._route()
        # Drain, then close.
        self._moving = leaving
        for one in leaving:
            one.is_leaving = True
        await asyncio.gather(*(self._drain(one) for one in leaving))
        self._moving = []
        return Phases(
            prepare_s=switched_s - began_s, drain_s=self._loop.time() - switched_s, prepared=len(fresh),
            resized=len(resized), closed=len(leaving), closed_first=sum(one.is_closed_first for one in leaving),
        )  # fmt: skip

    async def take_over(self, plan: Plan, rates: Mapping[str, float]) -> Phases:
        """Goes on with what another front had routed: each executor serves as soon as it is there, whatever others do.

        One that does not come is started as one that has died. Returns once all are there, or TAKE_OVER_S later: those
        that run are there within a moment.

        Args:
            plan: What was routed, on devices that are there; nothing runs here yet.
            rates: Planned requests a second by model.
        """
        began_s = self._loop.time()
        self._opened, self._plan, self._rates = [_Opened(glet) for glet in plan.glets], plan, rates
        coming = [asyncio.ensure_future(in_own_task(self._restart(one))) for one in self._opened]
        for one, task in zip(self._opened, coming, strict=True):
            one.task = task
        await asyncio.wait(coming, timeout=TAKE_OVER_S)
        there = sum(one.executor is not None for one in self._opened)
        return replace(NOTHING_CHANGED, prepare_s=self._loop.time() - began_s, prepared=there)

    async def close(self) -> None:
        """Ends all executors."""
        self._pool.switch((), {})
        opened, self._opened, self._moving = [*self._opened, *self._moving], [], []
        for one in opened:
            one.is_leaving = True
        await self._close_all(opened)

    # ---- a change

    def _matched(self, plan: Plan) -> tuple[list[tuple[_Opened, Glet]], list[tuple[_Opened, Glet]], list[_Opened]]:
        """Executors that keep their part, executors that get another size, and glets that need a new one."""
        change = changes(self._plan, plan)
        free = list(self._opened)
        kept: list[tuple[_Opened, Glet]] = []
        for glet in (*change.stay, *change.retime):
            here = [one for one in free if _place(one.glet) == _place(glet)]
            # Of equal parts the one that runs stays.
            one = min(here, key=lambda one: (one.executor is None, one.glet != glet))
            free.remove(one)
            kept.append((one, glet))
        resized: list[tuple[_Opened, Glet]] = []
        fresh: list[_Opened] = []
        for glet in change.prepare:
            found = next((one for one in free if self._can_resize(one, glet)), None)
            if found is None:
                fresh.append(_Opened(glet))
            else:
                free.remove(found)
                resized.append((found, glet))
        # What shrinks goes first, so that a device is never promised twice.
        resized.sort(key=lambda pair: pair[1].part_pct - pair[0].glet.part_pct)
        return kept, resized, fresh

    def _can_resize(self, one: _Opened, glet: Glet) -> bool:
        if one.glet.gpu != glet.gpu or _names(one.glet) != _names(glet) or one.executor is None:
            return False
        site = self._sites.get(glet.gpu)
        return site is not None and site.can_resize(one.executor.part_pct, glet.part_pct)

    def serves(self, gpu: int) -> bool:
        """Whether an executor runs on a device, other than one that is prepared or leaves."""
        return any(one.glet.gpu == gpu and one.executor is not None for one in self._opened)

    def _calm_pct(self, fresh: Sequence[_Opened]) -> int:
        """As in any change where with so little of a device it would take too long."""
        longest_s = sum(self.serves(one.glet.gpu) for one in fresh) * self._alone_s * WHOLE_PCT / CALM_PCT
        is_soon = 0 < longest_s <= min(CALM_S, self._prepare_s)
        return min(CALM_PCT, self._prepare_pct) if is_soon else self._prepare_pct

    async def _prepare(self, fresh: Sequence[_Opened], prepare_pct: int, staying: Sequence[_Opened]) -> None:
        leaving = [one for one in self._opened if one not in staying]
        closed = closed_first(
            _glets(self._opened), _glets(leaving), _glets(fresh), self._sizes.models, self._sizes.device
        )
        # Device after device: those that warm up on one disturb no other, and what is to be closed serves so long.
        for gpu in sorted({one.glet.gpu for one in fresh}, key=lambda gpu: (gpu in closed, gpu)):
            if gpu in closed:
                await self._close_first([one for one in leaving if one.glet.gpu == gpu])
            is_shared = self.serves(gpu)
            for one in fresh:
                if one.glet.gpu != gpu:
                    continue
                began_s = self._loop.time()
                try:
                    one.executor = await self._start(one, prepare_pct if is_shared else WHOLE_PCT)
                except Exception as error:  # whatever it is, the device is not to be planned with
                    if gpu not in closed:
                        self._failed(gpu, str(error) or type(error).__name__)
                    raise
                if not is_shared:
                    self._alone_s = max(self._alone_s, one.ready_s - began_s)

    async def _close_first(self, leaving: Sequence[_Opened]) -> None:
        """Closes executors of a device before the switch; requests of their models wait as for one that has died."""
        gpu = leaving[0].glet.gpu
        _log.warning("a device is closed first: its memory does not hold both plans", gpu=gpu, parts=len(leaving))
        places = {one: _Opened(one.glet, is_closed_first=True) for one in leaving}
        self._opened = [places.get(one, one) for one in self._opened]
        self._moving += leaving
        for one in leaving:
            one.is_leaving = True
        self._route()
        await asyncio.gather(*(self._drain(one, FREE_S) for one in leaving))

    async def _put_back(self) -> int:
        """After a change that failed: closes what was prepared, and starts what was closed first again; how many."""
        moving, self._moving = self._moving, []
        await self._close_all(moving)
        again = [one for one in self._opened if one.is_closed_first]
        for one in again:
            one.is_closed_first = False
            one.task = asyncio.ensure_future(in_own_task(self._restart(one)))
        return len(again)

    def _failed(self, gpu: int, why: str) -> None:
        # A device on which another one runs is not to blame.
        if not self.serves(gpu):
            self.on_failed(gpu, why)

    async def _start(self, one: _Opened, prepare_pct: int = WHOLE_PCT) -> ExecutorHandle:
        glet = one.glet
        site = self._sites.get(glet.gpu)
        if site is None:
            raise ServeError(f"device {glet.gpu} is gone")
        try:
            executor = await site.start(
                glet.part_pct, [self._models[name] for name in _names(glet)], lambda done: self._done(one, done),
                lambda ended: self._ended(one, ended), p99_s=self._slowest_s(glet), prepare_s=self._prepare_s,
                prepare_pct=prepare_pct,
            )  # fmt: skip
        except ServeError as error:
            # Of an executor elsewhere nothing but its line is known.
            if f"not ready within {self._prepare_s:g} s" in str(error):
                raise ServeError(str(error), hint="raise prepare_s in serving.toml") from error
            raise
        one.ready_s = self._loop.time()
        return executor

    def _slowest_s(self, glet: Glet) -> dict[str, float]:
        return {name: self._sizes.latencies(name, glet.part_pct, None)[-1] / 1000 for name in _names(glet)}

    def _route(self) -> None:
        turns: list[Turns] = []
        awaited: set[str] = set()
        for one in self._opened:
            if one.executor is not None and not one.executor.is_ready and one.turns is None:
                # It ended between its start and the switch, when nobody was told.
                one.executor = None
                one.task = asyncio.ensure_future(in_own_task(self._restart(one)))
            if one.executor is None:
                awaited.update(_names(one.glet))
                continue
            one.executor.expect(self._slowest_s(one.glet))
            rounds = GletRound(slots=self._slots(one.glet), cycle_s=one.glet.cycle_ms / 1000)
            if one.turns is None or one.turns.is_dead:
                one.turns = Turns(glet=one.glet, round=rounds, executor=one.executor)
            else:
                rounds.last_s = one.turns.round.last_s
                if rounds.slots == one.turns.round.slots:
                    rounds.paces = one.turns.round.paces
                one.turns.glet, one.turns.round = one.glet, rounds
            turns.append(one.turns)
        self._pool.switch(turns, self._rates, frozenset(awaited))

    def _slots(self, glet: Glet) -> list[Slot]:
        others = [other for other in self._plan.glets if other.gpu == glet.gpu and other is not glet]
        pressure = None
        if others:
            pressure = self._sizes.pressure(others[0].part_pct, [(one.model, one.batch) for one in others[0].models])
        return [
            Slot(p.model, p.batch, [ms / 1000 for ms in self._sizes.latencies(p.model, glet.part_pct, pressure)])
            for p in glet.models
        ]

    async def _drain(self, one: _Opened, within_s: float = CLOSE_S) -> None:
        turns = one.turns
        if turns is not None and turns.batches:
            idle = asyncio.Event()
            turns.on_idle = idle.set
            with suppress(TimeoutError):
                async with asyncio.timeout(self._longest_s):
                    await idle.wait()
        await self._close_all([one], within_s)

    async def _close_all(self, opened: Sequence[_Opened], within_s: float = CLOSE_S) -> None:
        for one in opened:
            one.is_leaving = True
        starting = [one.task for one in opened if one.task is not None]
        for task in starting:
            task.cancel()
        if starting:
            await asyncio.wait(starting)
        for one in opened:
            if one.executor is not None:
                await one.executor.close(within_s)

    # ---- what executors tell

    def _done(self, one: _Opened, done: BatchDone) -> None:
        if one.turns is not None:
            self._pool.ended(one.turns, done.batch, done.problem, done.started_ns, done.ended_ns)

    def _ended(self, one: _Opened, ended: ExecutorEnded) -> None:
        turns = one.turns
        # Also of one that leaves what it had not ended is queued again.
        if turns is not None and (turns.batches or not one.is_leaving):
            self._pool.died(turns, ended.line or "it was closed")

    def _died(self, turns: Turns, line: str) -> None:
        one = next((one for one in self._opened if one.turns is turns), None)
        if one is None or one.is_leaving:
            return
        self.deaths += 1
        self._have_died.update(_names(one.glet))
        one.executor = None
        now_s = self._loop.time()
        if now_s - one.ready_s >= LIVED_S:
            one.deaths_s.clear()
        else:
            one.deaths_s.append(now_s)
        one.task = asyncio.ensure_future(in_own_task(self._restart(one)))

    async def _restart(self, one: _Opened) -> None:
        """Starts it in place; one that dies soon each time is left out for a while. Each reason is said once."""
        said: deque[str] = deque(maxlen=_REASONS_MAX)
        failures = 0
        while not one.is_leaving:
            deaths = one.deaths_s
            if len(deaths) == DEATHS_MAX and self._loop.time() - deaths[0] < DEATHS_WITHIN_S:
                if not said:
                    _log.error(
                        f"an executor died at its start {DEATHS_MAX} times; it is left out for {LEFT_OUT_S:g} s",
                        models=", ".join(_names(one.glet)), gpu=one.glet.gpu, part_pct=one.glet.part_pct,
                    )  # fmt: skip
                await asyncio.sleep(LEFT_OUT_S)
                deaths.clear()
            try:
                executor = await self._start(one)
                if not await _is_fit(one, executor):
                    continue
            except Exception as error:  # the top of this task: whatever it is, the glet needs its executor
                why = str(error) or type(error).__name__
                if why not in said:
                    said.append(why)
                    fault = None if isinstance(error, FarsideError) else error
                    _log.error(
                        "an executor can't be started again; it is tried on", cause=fault, gpu=one.glet.gpu, why=why
                    )
                deaths.append(self._loop.time())
                failures += 1
                if failures % DEATHS_MAX == 0:
                    self._failed(one.glet.gpu, why)
                await asyncio.sleep(AGAIN_S)
                continue
            one.executor = executor
            self._route()
            _log.info("an executor runs again", models=", ".join(_names(one.glet)), gpu=one.glet.gpu)
            return


async def _is_fit(one: _Opened, executor: ExecutorHandle) -> bool:
    """Whether an executor runs in the size of its glet, which a change may have set while it started.

    One that can't be given that size is ended.
    """
    try:
        while executor.part_pct != one.glet.part_pct:
            if not await executor.resize(one.glet.part_pct):
                await executor.close(0)
                return False
    except asyncio.CancelledError:
        await executor.close(0)
        raise
    return executor.is_ready


def _glets(opened: Sequence[_Opened]) -> list[Glet]:
    return [one.glet for one in opened]


def _names(glet: Glet) -> list[str]:
    return sorted(one.model for one in glet.models)


def _place(glet: Glet) -> tuple[object, ...]:
    return (glet.gpu, glet.part_pct, tuple(_names(glet)))
