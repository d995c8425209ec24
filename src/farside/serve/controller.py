"""Epochs: rates are observed, a plan is made where they or the devices have changed, and the fleet is led to it.

    observe -> plan -> change -> act -> record

Counting goes on while a change is under way; there is one at a time.

Where the rates are too much for all devices that may be had, the plan is one for as large a share of all rates as these
can serve. Devices may come and go: leases (serve/lease/), and those of this machine on which no executor starts. Then
that plan says how many are needed, and what runs is that plan on the devices that are there, or again one for as large
a share as they can serve.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from farside.errors import ConfigError, FarsideError
from farside.log import get_log
from farside.own_task import in_own_task
from farside.scheduler.sharing.glet.change import placed
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.rate import (
    RateSettings,
    Tracked,
    kept,
    measured_rates,
    planned,
    planned_rate,
    tick,
    tracked,
)
from farside.scheduler.sharing.glet.scaling import RATE_MIN, Scale, deciding, largest_share, served_share, serves_all
from farside.serve.failures import Failures
from farside.serve.fleet import NOTHING_CHANGED, Fleet, Phases
from farside.serve.planner import Planner, PlannerError, answered
from farside.serve.pool import Pool
from farside.serve.site import Devices
from farside.serve.status import STARTED, TAKEN_OVER, ChangeRecord
from farside.units import format_count

RECORDS_KEPT = 60
# The time between epochs that fail is doubled so often at most: others may be at fault by then, and rates go on.
_DOUBLED_MAX = 3
# Causes of plans before which next to nothing was dropped.
_CALM = frozenset({"period", "rise"})

_log = get_log("serve.controller")


class Controller:
    """Plans of a deployment over time.

    Args:
        fleet: Is led from plan to plan.
        pool: Counts requests.
        planner: None where the plan is given, and stays.
        devices: Those that plans may have.
        rates: Requests a second by model, expected at the start.
        on_plan: Called with each plan once it is routed.
    """

    def __init__(
        self, fleet: Fleet, pool: Pool, planner: Planner | None, devices: Devices, rates: Mapping[str, float],
        settings: RateSettings | None = None, *, on_plan: Callable[[Plan], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._on_plan = on_plan
        self._fleet, self._pool, self._planner, self._devices = fleet, pool, planner, devices
        self._settings = settings or RateSettings()
        self._loop = asyncio.get_running_loop()
        self._tracked: Tracked = tracked(rates, self._loop.time())
        self._scale = Scale()
        self._under_way: asyncio.Task[None] | None = None
        self.records = deque[ChangeRecord](maxlen=RECORDS_KEPT)
        self._refused = ""
        self._needed = 0
        # Until then drops of a model do not count, as its executor has died.
        self._excused_s = dict[str, float]()
        # An epoch that failed is tried again: `early_every_s` later at first, then less and less often.
        self._is_owed = False
        self._failed = Failures()
        # What runs was planned with latencies from which others have been learned.
        self._is_stale = False
        # The devices of the last epoch, and whether it would have had more.
        self._seen: frozenset[int] = frozenset()
        self._is_short = False
        fleet.on_failed = devices.failed

    @property
    def rates(self) -> Mapping[str, float]:
        """Measured requests a second."""
        return measured_rates(self._tracked, self._settings)

    @property
    def problem(self) -> str:
        """Why not all is served: the rates are too much for all devices, or devices are lacking; empty where all is."""
        there = len(self._devices.usable)
        if not self._is_short or there >= self._needed:
            return self._refused
        so_many = f"{there} of {self._needed} devices {'are there' if self._devices.are_leased else 'can be used'}"
        return "; ".join(filter(None, (self._refused, so_many, self._devices.lacking)))

    async def start(
        self, plan: Plan | None, *, found: Plan | None = None, own_rates: Mapping[str, float] | None = None
    ) -> None:
        """Starts the first plan: the given one, or one for the expected rates.

        Where they are leased it asks for as many as are needed, and starts nothing: `run` does, as they come.

        Args:
            plan: To be served as it is; None: it is planned here.
            found: By `first_plan` for the expected rates, where these were planned for already.
            own_rates: After another front, whose measured rates are the expected ones: a share of them is planned for
                where they are too much, and these of the deployment's file where no share is found.

        Raises:
            ConfigError: The rates have no plan; with how many devices would do.
            FarsideError: An executor could not be started.
        """
        began_s = self._loop.time()
        wanted = self._wanted() if plan is None else plan.served()
        if plan is None:
            assert self._planner is not None
            if own_rates is not None:
                plan = await self._share_of(self._planner, wanted)
                wanted = wanted if plan is not None else wanted_of(own_rates)
            plan = plan or found or await first_plan(self._planner, wanted, self._devices.most)
            self._scale = Scale(plan=plan, gpus=plan.gpus)
            if self._devices.are_leased:
                self._want(plan.gpus)
                self._is_short = True
                return
        planned_s = self._loop.time()
        self._seen = frozenset(self._devices.usable)
        phases = await self._fleet.change(plan, wanted)
        self._record(STARTED, plan, planned_s - began_s, phases)
        self._on_plan(plan)

    async def _share_of(self, planner: Planner, wanted: Mapping[str, float]) -> Plan | None:
        try:
            found = await answered(planner, largest_share(wanted), self._devices.most, {})
        except PlannerError as error:
            _log.warning("no plan for what the front before had measured", why=str(error))
            return None
        return found if isinstance(found, Plan) else None

    async def resume(self, plan: Plan) -> bool:
        """Goes on with what the front before had routed, on those of its devices that are there; False: there are none.

        An executor that does not come holds up no other one. Which devices are missing, and whether the rates want
        another plan, the first epoch sees to, which follows at once then.
        """
        self._want(plan.gpus)
        usable = frozenset(self._devices.usable)
        left = Plan(glets=tuple(glet for glet in plan.glets if glet.gpu in usable))
        if not left.glets:
            return False
        self._seen = usable
        phases = await self._fleet.take_over(left, self._wanted())
        self._scale = Scale(plan=plan, gpus=plan.gpus)
        self._is_short = left != plan
        # Also where all is there: of the GPUs that are kept some may not be needed.
        self._is_owed = True
        self._record(TAKEN_OVER, left, 0.0, phases)
        self._on_plan(left)
        return True

    async def run(self) -> None:
        """Observes until it is cancelled."""
        tick_s = self._settings.tick_s
        at_s = self._loop.time()
        periods_at_s = at_s
        self._pool.take_counts()  # what came while the front waited for its manager is no burst of now
        try:
            while True:
                at_s = max(at_s + tick_s, self._loop.time())
                await asyncio.sleep(at_s - self._loop.time())
                came, violated = self._pool.take_counts()
                drops = self._by_load(violated, at_s)
                self._tracked, seen = tick(self._tracked, came, drops, at_s, self._settings)
                cause: str | None = seen
                is_period = at_s - periods_at_s >= self._settings.period_s
                if self._planner is None or self._under_way is not None or self._is_held(at_s):
                    continue
                if is_period:
                    periods_at_s = at_s
                if self._have_devices_changed():
                    cause = cause or "devices"
                if self._is_owed and at_s - self._tracked.planned_s >= self._settings.early_every_s:
                    cause = cause or "again"
                if cause is not None or (is_period and self._scale.is_above):
                    self._tracked = planned(self._tracked, at_s, self._settings, cause or "period")
                    epoch = self._epoch(self._planner, cause or "period", is_period=is_period)
                    self._under_way = asyncio.ensure_future(in_own_task(epoch))
                    self._under_way.add_done_callback(self._has_ended)
        finally:
            if self._under_way is not None:
                self._under_way.cancel()
                with suppress(asyncio.CancelledError, FarsideError):
                    await self._under_way

    async def close(self) -> None:
        """Ends its planner."""
        if self._planner is not None:
            await self._planner.close()

    def _by_load(self, violated: Mapping[str, int], now_s: float) -> Mapping[str, int]:
        """Drops because the plan is too small.

        Not those of a model whose executor has died, until it has been back for as long as drops are remembered: it
        starts anew sooner than another plan would serve, whose executors would start beside it.
        """
        until_s = now_s + self._settings.tick_s * self._settings.fast_ticks
        self._excused_s |= dict.fromkeys(self._fleet.take_missing(), until_s)
        return {name: 0 if now_s < self._excused_s.get(name, 0.0) else count for name, count in violated.items()}

    def _have_devices_changed(self) -> bool:
        """Whether the plan has one that it has to leave, or those are there that it lacks."""
        usable = frozenset(self._devices.usable)
        in_use = {glet.gpu for glet in self._fleet.plan.glets}
        return usable != self._seen and (not in_use <= usable or (self._is_short and not usable <= self._seen))

    def _is_held(self, now_s: float) -> bool:
        """Whether the last epochs failed, and another one would be so again: it has the same devices, and starts anew.

        What it is due to counts once it is over, as an epoch is owed.
        """
        return now_s < self._failed.until_s and frozenset(self._devices.usable) == self._seen

    def _has_ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way = None
        now_s, first_s = self._loop.time(), self._settings.early_every_s
        self._failed = self._failed.and_one(now_s, first_s, doubled_max=_DOUBLED_MAX) if self._is_owed else Failures()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an epoch failed", cause=error)

    async def _epoch(self, planner: Planner, cause: str, *, is_period: bool) -> None:
        wanted, began_s = self._wanted(), self._loop.time()
        current = self._fleet.plan
        self._is_owed, self._seen = True, frozenset(self._devices.usable)
        # By the latencies of before the plan that runs may be enough; by those of now it need not be, until another one
        # is there.
        self._is_stale = self._fleet.correct() or self._is_stale
        asking = deciding(self._scale, current, wanted, is_period=is_period, is_stale=self._is_stale)
        try:
            decided = await answered(planner, asking, self._devices.most, self._fleet.slower)
        except FarsideError as error:
            self._record(cause, current, self._loop.time() - began_s, problem=str(error))
            return
        self._scale = decided.scale
        plan_s = self._loop.time() - began_s
        plan, refusal = decided.plan, decided.refusal
        self._refused = self._refusal_line(refusal) if refusal is not None else ""
        try:
            plan = await self._on_devices(planner, plan, decided.scale, wanted)
            if refusal is not None:
                why = f"{refusal.model} does not fit: {refusal.why}; {_said(current, plan, wanted)}"
                self._record(cause, current, plan_s, problem=why)
            if plan is None:
                self._is_owed = False
                if refusal is None:
                    self._tracked = kept(self._tracked, self._loop.time(), self._settings)
                return
            phases = await self._fleet.change(plan, wanted, is_calm=cause in _CALM)
        except FarsideError as error:
            self._record(cause, current, plan_s, problem=f"the old plan stays: {error}")
            return
        self._is_owed = self._is_stale = False
        self._record(cause, plan, plan_s, phases)
        self._on_plan(plan)

    async def _on_devices(
        self, planner: Planner, plan: Plan | None, scale: Scale, wanted: Mapping[str, float]
    ) -> Plan | None:
        """A plan on the devices that are there; None: the one that runs stays.

        Args:
            planner: Plans for a share of all rates where the devices are too few.
            plan: To go to; None: the one that runs stays, as far as its devices are there.
            scale: How many devices are to be kept.
            wanted: Planned requests a second by model.
        """
        current, usable = self._fleet.plan, self._seen
        is_intact = bool(current.glets) and {glet.gpu for glet in current.glets} <= usable
        aim = plan or (scale.plan if not current.glets else None) or current
        self._want(max(scale.gpus, aim.gpus))
        self._is_short = False
        if plan is None and is_intact:
            return None
        found = placed(current, aim, usable)
        if found is not None and found.glets:
            return found
        self._is_short = True
        served = served_share(current, wanted) if is_intact and not self._is_stale else 0.0
        if usable:
            asking = largest_share(wanted, served)
            answer = await answered(planner, asking, len(usable), self._fleet.slower)
            if isinstance(answer, Plan):
                self._is_short = not serves_all(answer, wanted)
                return placed(current, answer, usable)
        return None

    def _want(self, count: int) -> None:
        self._needed = count
        self._devices.want(count)

    def _refusal_line(self, refusal: Refusal) -> str:
        most = format_count(self._devices.most, "device")
        more = "raise gpus_max" if self._devices.are_leased else "give it more devices"
        return f"{refusal.model} does not fit on {most}: {refusal.why}; {more}, or send less"

    def _wanted(self) -> dict[str, float]:
        return wanted_of(self._tracked.targets)

    def _record(
        self, cause: str, plan: Plan, plan_s: float, phases: Phases = NOTHING_CHANGED, *, problem: str = ""
    ) -> None:
        record = ChangeRecord(
            at_s=time.time(), cause=cause, gpus=plan.gpus, part_pct=plan.part_pct, prepared=phases.prepared,
            resized=phases.resized, closed=phases.closed, closed_first=phases.closed_first, plan_s=plan_s,
            prepare_s=phases.prepare_s, drain_s=phases.drain_s, problem=problem,
        )  # fmt: skip
        self.records.append(record)
        told: Callable[..., None] = _log.warning if problem else _log.info
        told(
            "plan", cause=cause, devices=plan.gpus, part_pct=plan.part_pct, prepared=phases.prepared,
            resized=phases.resized, closed=phases.closed, closed_first=phases.closed_first,
            plan_s=round(plan_s, 3), prepare_s=round(phases.prepare_s, 3), drain_s=round(phases.drain_s, 3),
            problem=problem,
        )  # fmt: skip


def _said(current: Plan, plan: Plan | None, wanted: Mapping[str, float]) -> str:
    """What is served of rates that do not fit: by the plan to go to, or where there is none by the one that stays."""
    share = served_share(current if plan is None else plan, wanted)
    which = "what runs stays" if plan is None else "a plan follows"
    return f"{which}, for {int(100 * share + 1e-6)} % of each planned rate at least"


def wanted_of(rates: Mapping[str, float]) -> dict[str, float]:
    """Requests a second to plan for, by model; ``rates`` are those measured or expected."""
    return {name: planned_rate(max(RATE_MIN, rate)) for name, rate in rates.items()}


async def first_plan(planner: Planner, wanted: Mapping[str, float], gpus: int) -> Plan:
    """The plan of a start, for ``wanted`` requests a second on at most ``gpus`` devices.

    Raises:
        ConfigError: There is none; with how many devices would do.
        PlannerError: The planner did not answer.
    """
    answer = await planner.plan(wanted, gpus, {}, is_explained=True)
    if isinstance(answer.found, Refusal):
        raise _no_plan(answer.found, wanted, gpus, answer.enough)
    return answer.found


def _no_plan(refusal: Refusal, wanted: Mapping[str, float], gpus: int, enough: int) -> ConfigError:
    """The line for rates that do not fit at the start."""
    return ConfigError(
        f"{refusal.model} does not fit on {gpus} device{'s' if gpus > 1 else ''}: {refusal.left:.1f} of "
        f"{wanted[refusal.model]:g} planned requests/s are left; {refusal.why}",
        hint=f"{enough} devices would do" if enough else "lower rates, or give more devices",
    )
