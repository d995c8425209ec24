"""Epochs in order: learned latencies count until a plan has followed, and devices go when none needs them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from farside.errors import FarsideError
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion, Refusal
from farside.scheduler.sharing.glet.rate import RateSettings
from farside.serve.controller import Controller
from farside.serve.fleet import NOTHING_CHANGED, Phases
from farside.serve.planner import Planned
from farside.serve.status import TAKEN_OVER
from tests.serving.front import in_loop
from tests.serving.test_changing_devices import Leased

SETTINGS = RateSettings(tick_s=0.01, early_every_s=0.05, period_s=0.1)
DEVICE_RATE = 1000.0
"""Requests a second of model `a` that a device serves by its profile."""


def on(gpus: int, rate: float) -> Plan:
    """A plan of devices that share the rate evenly."""
    models = (Portion(model="a", batch=1, rate=rate / gpus),)
    glets = (Glet(gpu=gpu, part_pct=100, cycle_ms=10.0, models=models) for gpu in range(gpus))
    return Plan(glets=tuple(glets))


class ThousandEach:
    """A planner of devices that serve `DEVICE_RATE` each, less where batches take longer."""

    def __init__(self) -> None:
        self.on_asked: Callable[[], None] = lambda: None

    async def plan(
        self, rates: Mapping[str, float], gpus: int, slower: Mapping[str, float], *, is_explained: bool = False
    ) -> Planned:
        self.on_asked()
        count = max(1, -(-int(rates["a"] * slower.get("a", 1.0)) // int(DEVICE_RATE)))
        if count > gpus:
            return Planned(found=Refusal(model="a", left=1.0, why="too much"))
        return Planned(found=on(count, rates["a"]))


class Fleet:
    """Goes to each plan at once, but where it is told to fail; learns once that batches take longer."""

    def __init__(self) -> None:
        self.plan = Plan(glets=())
        self.slower: dict[str, float] = {}
        self.learns: dict[str, float] = {}
        self.fails = 0
        self.failed_s: list[float] = []
        self.phases = NOTHING_CHANGED
        self.was_calm = False
        self.missing = frozenset[str]()
        self.on_failed: Callable[[int, str], None] = lambda _gpu, _why: None

    def take_missing(self) -> frozenset[str]:
        return self.missing

    def correct(self) -> bool:
        learned, self.learns = self.learns, {}
        self.slower |= learned
        return bool(learned)

    async def change(self, plan: Plan, rates: Mapping[str, float], *, is_calm: bool = False) -> Phases:
        self.was_calm = is_calm
        if self.fails:
            self.fails -= 1
            self.failed_s.append(asyncio.get_running_loop().time())
            raise FarsideError("an executor did not start")
        self.plan = plan
        return self.phases

    take_over = change


class Pool:
    """Counts the same in each tick."""

    def __init__(self, rate: float, drop_rate: float = 0.0) -> None:
        self.came, self._dropped = round(rate * SETTINGS.tick_s), round(drop_rate * SETTINGS.tick_s)

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        return {"a": self.came}, {"a": self._dropped}


class Crowded(Pool):
    """Ten thousand came before it was asked for the first time."""

    before = 10_000

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        before, self.before = self.before, 0
        return {"a": self.came + before}, {"a": before}


def leased(*numbers: int) -> Leased:
    """Four devices at most, of which these are there."""
    devices = Leased()
    devices.most, devices.usable = 4, frozenset(numbers)
    return devices


def controller_of(
    fleet: Fleet, pool: Pool, devices: Leased, rate: float, settings: RateSettings = SETTINGS,
    planner: ThousandEach | None = None,
) -> Controller:  # fmt: skip
    return Controller(fleet, pool, planner or ThousandEach(), devices, {"a": rate}, settings)  # type: ignore[arg-type]


async def run_until(controller: Controller, look: Callable[[], bool]) -> None:
    watching = asyncio.ensure_future(controller.run())
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.wait([watching])


@in_loop
async def test_slower_batches_are_planned_for_although_the_first_plan_for_them_could_not_be_started() -> None:
    fleet, devices = Fleet(), leased(0, 1, 2, 3)
    controller = controller_of(fleet, Pool(400.0, drop_rate=100.0), devices, 400.0)
    await controller.resume(on(1, 900.0))
    fleet.learns, fleet.fails = {"a": 2.5}, 1

    await run_until(controller, lambda: fleet.plan.gpus == 2)

    assert [one.problem for one in controller.records if one.problem] == [
        "the old plan stays: an executor did not start"
    ]


@in_loop
async def test_the_record_of_a_change_says_how_many_parts_were_closed_first() -> None:
    fleet = Fleet()
    controller = controller_of(fleet, Pool(400.0), leased(0, 1), 400.0)
    fleet.phases = replace(NOTHING_CHANGED, closed=3, closed_first=2)

    await controller.start(on(1, 400.0))
    fleet.phases = replace(NOTHING_CHANGED, closed=1)
    await controller.resume(on(2, 400.0))

    assert [one.closed_words for one in controller.records] == ["3, 2 first", "1"]


@in_loop
async def test_a_plan_that_can_not_be_started_is_tried_again_less_and_less_often() -> None:
    """Also where requests are dropped: each try takes time from what serves."""
    fleet, devices = Fleet(), leased(0, 1, 2, 3)
    controller = controller_of(fleet, Pool(1600.0, drop_rate=100.0), devices, 1600.0)
    await controller.resume(on(1, 900.0))
    fleet.fails = 4

    await run_until(controller, lambda: fleet.plan.gpus == 2)

    waits_s = [later - earlier for earlier, later in pairwise(fleet.failed_s)]
    assert all(wait_s >= SETTINGS.early_every_s * 2**at for at, wait_s in enumerate(waits_s))
    assert len(waits_s) == 3


@in_loop
async def test_on_other_devices_a_plan_is_tried_at_once() -> None:
    fleet, devices = Fleet(), leased(0, 1, 2)
    settings = replace(SETTINGS, early_every_s=600.0, period_s=6000.0)
    controller = controller_of(fleet, Pool(400.0), devices, 400.0, settings)
    await controller.resume(on(2, 900.0))
    fleet.fails = 1
    devices.usable = frozenset({1, 2})

    await run_until(controller, lambda: bool(fleet.failed_s))
    devices.usable = frozenset({2, 3})

    await run_until(controller, lambda: {one.gpu for one in fleet.plan.glets} <= {2, 3})


@in_loop
async def test_a_plan_for_slower_batches_is_taken_on_drops_although_it_has_less_of_the_devices() -> None:
    fleet, devices = Fleet(), leased(0, 1, 2, 3)
    controller = controller_of(fleet, Pool(400.0, drop_rate=100.0), devices, 400.0)
    await controller.resume(on(3, 2500.0))
    before = fleet.plan
    fleet.learns = {"a": 1.2}

    await run_until(controller, lambda: fleet.plan != before)

    assert fleet.plan.served()["a"] < DEVICE_RATE / 1.2
    assert not fleet.was_calm, "requests are dropped until it has come"
    assert devices.wanted == 3, "they are not given back at once"


@in_loop
async def test_a_front_that_goes_on_with_more_devices_than_it_needs_gives_them_back() -> None:
    fleet, devices = Fleet(), leased(0, 1, 2)
    controller = controller_of(fleet, Pool(400.0), devices, 400.0)
    await controller.resume(on(3, 2500.0))
    first = fleet.plan

    await run_until(controller, lambda: fleet.plan.gpus == 1)

    assert devices.wanted == 1
    assert set(fleet.plan.glets) < set(first.glets), "what is left goes on as it was"


@in_loop
async def test_a_device_that_leaves_and_is_not_needed_is_no_problem() -> None:
    fleet, devices = Fleet(), leased(0, 1)
    controller = controller_of(fleet, Pool(400.0), devices, 400.0)
    await controller.resume(on(2, 1600.0))
    devices.usable = frozenset({1})

    await run_until(controller, lambda: {one.gpu for one in fleet.plan.glets} == {1})

    assert controller.problem == ""


@in_loop
async def test_drops_that_changed_nothing_are_followed_by_a_plan_for_all_of_the_step() -> None:
    """By a rise: as soon as the mean has all of it, and not only when drops may ask for a plan again."""
    fleet, devices, pool, planner = Fleet(), leased(0, 1, 2, 3), Pool(400.0, drop_rate=100.0), ThousandEach()
    settings = replace(SETTINGS, early_every_s=2.0, period_s=60.0)
    controller = controller_of(fleet, pool, devices, 400.0, settings, planner)
    await controller.resume(on(1, DEVICE_RATE))
    planner.on_asked = lambda: setattr(pool, "came", 16)

    await run_until(controller, lambda: fleet.plan.gpus == 2)

    assert [one.cause for one in controller.records] == [TAKEN_OVER, "rise"]
    assert fleet.was_calm, "nothing is dropped before a rise is told"


@in_loop
async def test_drops_while_an_executor_starts_again_lead_to_no_other_plan() -> None:
    fleet, devices, pool, planner = Fleet(), leased(0, 1, 2, 3), Pool(400.0, drop_rate=100.0), ThousandEach()
    asked = asyncio.Event()
    planner.on_asked = asked.set
    controller = controller_of(fleet, pool, devices, 400.0, replace(SETTINGS, early_every_s=0.0), planner)
    await controller.start(on(1, DEVICE_RATE))
    fleet.missing = frozenset({"a"})
    ticks = iter(range(40))

    await run_until(controller, lambda: next(ticks, None) is None)
    assert not asked.is_set()
    fleet.missing = frozenset()

    await run_until(controller, asked.is_set)


@in_loop
async def test_requests_that_were_refused_before_it_runs_are_no_burst() -> None:
    fleet, devices, planner = Fleet(), leased(0, 1, 2, 3), ThousandEach()
    asked = asyncio.Event()
    planner.on_asked = asked.set
    controller = controller_of(fleet, Crowded(400.0), devices, 400.0, planner=planner)
    await controller.start(on(1, DEVICE_RATE))
    ticks = iter(range(40))

    await run_until(controller, lambda: next(ticks, None) is None)

    assert not asked.is_set()
