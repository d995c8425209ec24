"""Changes of a plan under load, with real executors: nothing is lost, and what fails leaves the old plan."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from farside.agent.serving.handle import ExecutorHandle
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Device, Traits
from farside.agent.serving.partition.whole import WholeDriver, WholePlace
from farside.errors import FarsideError
from farside.scheduler.sharing.glet.change import changes
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion, Refusal
from farside.scheduler.sharing.glet.profile import DeviceProfile, ModelProfile, NoInterference
from farside.scheduler.sharing.glet.rate import RateSettings
from farside.scheduler.sharing.glet.scaling import largest_share
from farside.serve import fleet as fleet_module
from farside.serve import planner as planner_module
from farside.serve.controller import Controller
from farside.serve.fleet import CALM_PCT, Fleet
from farside.serve.planner import Planned, Planner, PlannerError, answered, sizes_of
from farside.serve.pool import Pool
from farside.serve.site import LocalSite, OwnDevices, Site
from tests.serving.executors import children, small_models
from tests.serving.front import in_loop
from tests.serving.test_pool import Client
from tests.support.waiting import DEADLINE_S

SLO_S = 60.0


def profiles(
    names: tuple[str, ...], latency_ms: float = 1.0, memory_mb: float = 1000.0
) -> tuple[dict[str, ModelProfile], DeviceProfile]:
    """Models of 1 MB, of which each executor takes another one."""
    times = {part: tuple(latency_ms * 100 / part * (1 + at / 4) for at in range(4)) for part in (50, 100)}
    found = {
        name: ModelProfile(name=name, slo_ms=1000 * SLO_S, memory_mb=1, latency_ms=times, slowed_ms=times)
        for name in names
    }
    device = DeviceProfile(name="d", cuts=((100,),), memory_mb=memory_mb, process_mb=1, interference=NoInterference())
    return found, device


def glet(gpu: int, *names: str, batch: int = 4) -> Glet:
    models = tuple(Portion(model=name, batch=batch, rate=10.0) for name in names)
    return Glet(gpu=gpu, part_pct=100, cycle_ms=50.0, models=models)


def fleet_of(
    files: tuple[ModelFile, ...],
    driver: WholeDriver | None = None,
    latency_ms: float = 5000.0,
    numbers: tuple[int, ...] = (0, 1),
    prepare_pct: int = 100,
    others: Mapping[int, Site] | None = None,
    memory_mb: float = 1000.0,
    prepare_s: float = 60.0,
) -> tuple[Fleet, Pool]:
    """A fleet on cores. Batches are expected to take long, so that none counts as hung on a busy machine."""
    models = {one.name: one for one in files}
    pool = Pool(asyncio.get_running_loop(), models, dict.fromkeys(models, SLO_S), lambda: 1)
    sizes = partial(sizes_of, *profiles(tuple(models), latency_ms, memory_mb))
    used = driver or WholeDriver()
    sites: dict[int, Site] = {number: LocalSite(used, Device(number=number, cores=(0,))) for number in numbers}
    sites.update(others or {})
    return Fleet(sites, models, sizes, pool, longest_s=SLO_S, prepare_s=prepare_s, prepare_pct=prepare_pct), pool


def send(client: Client, number: int, model: ModelFile) -> None:
    row = np.full((1, *model.inputs[0].shape), number, "f4")
    client.send_rows(number, row, model.name)


@dataclass
class Load:
    """Requests that were sent so far."""

    sent: int = 0


@asynccontextmanager
async def loaded(client: Client, files: Sequence[ModelFile]) -> AsyncIterator[Load]:
    """Asks one model after the other for as long as it is open, and then waits for all answers."""
    load = Load()

    async def ask() -> None:
        while True:
            send(client, load.sent, files[load.sent % len(files)])
            load.sent += 1
            await asyncio.sleep(0.003)

    task = asyncio.ensure_future(ask())
    yield load
    task.cancel()
    await client.all(load.sent)


@in_loop
async def test_a_change_under_load_loses_nothing_and_keeps_what_stays(tmp_path: Path) -> None:
    files = small_models(tmp_path, ("mlp", "lstm"))
    fleet, pool = fleet_of(files)
    client = Client(pool)
    await fleet.change(Plan(glets=(glet(0, "lstm", "mlp"),)), {})
    first = fleet.executors[0][1]
    assert first is not None
    async with loaded(client, files) as load:
        phases = await fleet.change(Plan(glets=(glet(0, "lstm", "mlp", batch=2), glet(1, "mlp"))), {})
        assert (phases.prepared, phases.closed) == (1, 0)
        assert fleet.executors[0][1] is first, "a glet with other batches keeps its process"
        phases = await fleet.change(Plan(glets=(glet(1, "mlp"), glet(0, "lstm"))), {})
        assert (phases.prepared, phases.closed) == (1, 1)
    await fleet.close()

    assert sorted(number for number, _ in client.ends) == list(range(load.sent))
    assert pool.counts["mlp"].met + pool.counts["lstm"].met == load.sent
    assert pool.stray == 0
    assert not first.is_ready


@in_loop
async def test_equal_glets_on_a_device_have_an_executor_each(tmp_path: Path) -> None:
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp",)))

    phases = await fleet.change(Plan(glets=(glet(0, "mlp"), glet(0, "mlp"))), {})
    both = [executor for _, executor in fleet.executors]
    kept = await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    left = [executor for _, executor in fleet.executors]
    await fleet.close()

    assert (phases.prepared, len({id(one) for one in both})) == (2, 2)
    assert (kept.prepared, kept.closed) == (0, 1)
    assert len(left) == 1
    assert left[0] in both


@in_loop
async def test_of_equal_glets_the_one_that_runs_stays(tmp_path: Path) -> None:
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp",)))
    await fleet.change(Plan(glets=(glet(0, "mlp"), glet(0, "mlp"))), {})
    died, runs = fleet._opened
    handle, died.executor = died.executor, None

    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    left = [*fleet._opened]
    await fleet.close()
    assert handle is not None
    await handle.close()

    assert left == [runs]


@in_loop
async def test_a_change_that_can_not_be_prepared_leaves_the_old_plan(tmp_path: Path) -> None:
    (good,) = small_models(tmp_path, ("mlp",))
    bad = msgspec.structs.replace(good, name="bad", path=str(tmp_path / "gone.onnx"))
    fleet, pool = fleet_of((good, bad))
    client = Client(pool)
    plan = Plan(glets=(glet(0, "mlp"),))
    await fleet.change(plan, {})

    with pytest.raises(FarsideError):
        await fleet.change(Plan(glets=(glet(0, "mlp"), glet(1, "bad"))), {})

    assert fleet.plan == plan
    assert not changes(fleet.plan, plan).prepare
    send(client, 1, good)
    await client.all(1)
    assert pool.counts["mlp"].met == 1
    await fleet.close()


@in_loop
async def test_an_executor_that_had_too_little_time_is_told_with_the_setting(tmp_path: Path) -> None:
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp",)), prepare_s=0.001)

    with pytest.raises(FarsideError, match=r"was not ready within 0.001 s; raise prepare_s in serving.toml$"):
        await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    await fleet.close()


class Watching(LocalSite):
    """A device that tells how many executors there are before it starts another one."""

    def __init__(self, number: int) -> None:
        super().__init__(WholeDriver(), Device(number=number, cores=(0,)))
        self.others: list[int] = []
        self._started: list[ExecutorHandle] = []

    async def start(self, *arguments: Any, **said: Any) -> ExecutorHandle:
        self.others.append(sum(one.is_ready for one in self._started))
        self._started.append(await super().start(*arguments, **said))
        return self._started[-1]


@in_loop
async def test_where_memory_does_not_hold_both_plans_what_leaves_a_device_is_closed_first_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    files = small_models(tmp_path, ("mlp", "lstm"))
    sites = [Watching(0), Watching(1)]
    fleet, pool = fleet_of(files, others=dict(enumerate(sites)), memory_mb=4.5)
    client = Client(pool)
    await fleet.change(Plan(glets=(glet(0, "lstm", "mlp"), glet(1, "lstm"))), {})
    async with loaded(client, files) as load:
        tight = await fleet.change(Plan(glets=(glet(0, "mlp"), glet(1, "lstm"))), {})
        roomy = await fleet.change(Plan(glets=(glet(0, "lstm"), glet(1, "mlp"))), {})
    await fleet.close()

    assert (tight.prepared, tight.closed, tight.closed_first) == (1, 1, 1)
    assert (roomy.prepared, roomy.closed, roomy.closed_first) == (2, 2, 0)
    assert [one.others for one in sites] == [[0, 0, 1], [0, 1]]
    assert sorted(number for number, _ in client.ends) == list(range(load.sent))
    assert pool.counts["mlp"].met + pool.counts["lstm"].met == load.sent
    assert (pool.stray, fleet.deaths) == (0, 0)


@in_loop
async def test_what_was_closed_first_serves_again_where_the_new_plan_can_not_be_prepared(tmp_path: Path) -> None:
    (good, other) = small_models(tmp_path, ("mlp", "lstm"))
    bad = msgspec.structs.replace(other, path=str(tmp_path / "gone.onnx"))
    site, blamed = Watching(0), list[int]()
    fleet, pool = fleet_of((good, bad), others={0: site}, memory_mb=3.0)
    fleet.on_failed = lambda gpu, _why: blamed.append(gpu)
    client, plan = Client(pool), Plan(glets=(glet(0, "mlp"),))
    await fleet.change(plan, {})

    with pytest.raises(FarsideError, match="closed first for want of memory, and started again: 1 part"):
        await fleet.change(Plan(glets=(glet(0, "lstm"),)), {})
    send(client, 1, good)
    await client.all(1)

    assert pool.counts["mlp"].met == 1
    assert (fleet.plan, site.others, blamed) == (plan, [0, 0, 0], [])
    assert not changes(fleet.plan, plan).prepare
    assert (await fleet.change(plan, {})).prepared == 0
    await fleet.close()


@in_loop
async def test_a_model_that_takes_longer_than_its_profile_is_planned_with_what_it_takes(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,))
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    (turns,) = pool.turns
    planned_s = turns.round.latencies_s["mlp"][0]

    turns.ratios.extend([("mlp", 1.1)] * 60)
    assert not fleet.correct()
    turns.ratios.extend([("mlp", 2.0)] * 100)
    assert fleet.correct()

    assert fleet.slower == {"mlp": 2.0}
    assert turns.round.latencies_s["mlp"][0] == pytest.approx(2 * planned_s)
    fleet.correct()
    assert fleet.slower == {"mlp": pytest.approx(1.8)}, "no batch ran since"
    turns.ratios.extend([("mlp", 0.5)] * 100)
    assert not fleet.correct(), "that is no reason for another plan"
    assert fleet.slower == {}
    assert turns.round.latencies_s["mlp"][0] == pytest.approx(planned_s)
    await fleet.close()


@in_loop
async def test_a_device_that_is_gone_is_named_once_however_often_it_is_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    sites = {0: LocalSite(WholeDriver(), Device(number=0, cores=(0,)))}
    pool = Pool(asyncio.get_running_loop(), {"mlp": file}, {"mlp": SLO_S}, lambda: 1)
    fleet = Fleet(
        sites, {"mlp": file}, partial(sizes_of, *profiles(("mlp",), 5000.0)), pool, longest_s=SLO_S, prepare_s=60.0
    )
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    executor = fleet.executors[0][1]
    assert executor is not None
    sites.clear()

    executor.kill()
    (opened,) = fleet._opened
    async with asyncio.timeout(DEADLINE_S):
        while len(opened.deaths_s) < 3:  # its own, and two starts
            await asyncio.sleep(0.01)

    assert caplog.text.count("started again") == 1
    await fleet.close()


@in_loop
async def test_an_executor_is_started_again_whatever_its_device_raised_at_the_try_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver(WholeDriver):
        refusals: ClassVar[list[Exception]] = []

        def open(self, device: Device, part_pct: int) -> WholePlace:
            if self.refusals:
                raise self.refusals.pop()
            return super().open(device, part_pct)

    monkeypatch.setattr(fleet_module, "AGAIN_S", 0.0)
    driver = Driver()
    fleet, pool = fleet_of(small_models(tmp_path, ("mlp",)), driver)
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    executor = fleet.executors[0][1]
    assert executor is not None
    driver.refusals.append(OSError(28, "No space left on device"))

    executor.kill()
    async with asyncio.timeout(DEADLINE_S):
        while fleet.deaths == 0 or not pool.is_ready("mlp"):
            await asyncio.sleep(0.01)

    assert driver.refusals == []
    assert "No space left on device" in caplog.text
    assert [fleet.take_missing(), fleet.take_missing()] == [{"mlp"}, frozenset()]
    await fleet.close()


@in_loop
async def test_a_device_on_which_no_executor_can_be_started_again_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver(WholeDriver):
        is_gone = False

        def open(self, device: Device, part_pct: int) -> WholePlace:
            if self.is_gone:
                raise FarsideError("the GPU has fallen off the bus")
            return super().open(device, part_pct)

    monkeypatch.setattr(fleet_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(fleet_module, "LEFT_OUT_S", 0.0)
    driver, told = Driver(), asyncio.Queue[tuple[int, str]]()
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp",)), driver)
    fleet.on_failed = lambda gpu, why: told.put_nowait((gpu, why))
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    executor = fleet.executors[0][1]
    assert executor is not None
    driver.is_gone = True

    executor.kill()
    async with asyncio.timeout(DEADLINE_S):
        found = await told.get()

    assert found == (0, "the GPU has fallen off the bus")
    await fleet.close()


@in_loop
async def test_a_fleet_that_ends_while_an_executor_starts_again_leaves_no_process_and_no_open_part(
    tmp_path: Path,
) -> None:
    opened, closed, is_starting = list[WholePlace](), list[WholePlace](), asyncio.Event()

    class Place(WholePlace):
        def close(self) -> None:
            closed.append(self)

    class Driver(WholeDriver):
        def open(self, device: Device, part_pct: int) -> WholePlace:
            opened.append(Place(device))
            if len(opened) == 2:
                is_starting.set()
            return opened[-1]

    before = children()
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp",)), Driver())
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    executor = fleet.executors[0][1]
    assert executor is not None

    executor.kill()
    async with asyncio.timeout(DEADLINE_S):
        await is_starting.wait()
    await fleet.close()

    assert (children(), closed) == (before, opened)


@pytest.mark.parametrize("lived_s", [0.0, math.inf], ids=["after a long life each", "soon after each start"])
@in_loop
async def test_only_an_executor_that_dies_soon_each_time_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, lived_s: float
) -> None:
    """With one executor for all models, three that were killed within a minute cost ten seconds of all requests."""
    monkeypatch.setattr(fleet_module, "LIVED_S", lived_s)
    monkeypatch.setattr(fleet_module, "LEFT_OUT_S", 0.01)
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp",)))
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    killed = set[int]()
    async with asyncio.timeout(DEADLINE_S):
        while len(killed) < 4:
            executor = fleet.executors[0][1]
            if executor is not None and executor.pid not in killed:
                killed.add(executor.pid)
                executor.kill()
            await asyncio.sleep(0.01)
        while fleet.deaths < 4 or fleet.executors[0][1] is None:
            await asyncio.sleep(0.01)

    assert ("left out" in caplog.text) == (lived_s > 0)
    await fleet.close()


class ResizedPlace(WholePlace):
    """A part in name, whose size may change where its driver agrees."""

    def __init__(self, driver: "ResizingDriver", device: Device, part_pct: int) -> None:
        super().__init__(device)
        self._driver, self.part_pct = driver, part_pct

    def resize(self, part_pct: int) -> bool:
        if self._driver.agrees:
            self.part_pct = part_pct
        return self._driver.agrees


class ResizingDriver(WholeDriver):
    agrees = True
    traits: ClassVar[Traits] = Traits(on_gpu=False, can_resize=True)

    def open(self, device: Device, part_pct: int) -> WholePlace:
        return ResizedPlace(self, device, part_pct)


@in_loop
async def test_a_resized_part_has_its_own_limit_and_one_that_can_not_be_resized_starts_anew(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    driver = ResizingDriver()
    fleet, pool = fleet_of((file,), driver, latency_ms=1000.0)
    sizes = [Plan(glets=(msgspec.structs.replace(glet(0, "mlp"), part_pct=part),)) for part in (100, 50)]
    await fleet.change(sizes[0], {})
    first = fleet.executors[0][1]
    assert first is not None
    assert first.limit_s == {"mlp": pytest.approx(3 * 1.75)}

    await fleet.change(sizes[1], {})
    assert fleet.executors[0][1] is first
    assert first.limit_s == {"mlp": pytest.approx(3 * 3.5)}

    driver.agrees = False
    await fleet.change(sizes[0], {})
    async with asyncio.timeout(60):
        while (second := fleet.executors[0][1]) is None or second is first:
            await asyncio.sleep(0.005)
    assert second.part_pct == 100
    client = Client(pool)
    send(client, 1, file)
    await client.all(1)
    assert pool.counts["mlp"].met == 1
    await fleet.close()


class Gated(LocalSite):
    """A device that starts executors once it is let."""

    def __init__(self, driver: WholeDriver, number: int) -> None:
        super().__init__(driver, Device(number=number, cores=(0,)))
        self.is_asked, self.is_let = asyncio.Event(), asyncio.Event()

    async def start(self, *arguments: Any, **said: Any) -> ExecutorHandle:
        self.is_asked.set()
        await self.is_let.wait()
        return await super().start(*arguments, **said)


@pytest.mark.parametrize("agrees", [True, False], ids=["resized", "started anew"])
@in_loop
async def test_an_executor_that_dies_while_its_part_is_to_change_comes_back_with_the_new_size(
    tmp_path: Path, agrees: bool
) -> None:
    driver = ResizingDriver()
    fleet, _ = fleet_of(small_models(tmp_path, ("mlp", "lstm")), driver)
    await fleet.change(Plan(glets=(glet(0, "mlp"),)), {})
    first = fleet.executors[0][1]
    assert first is not None
    again, beside = Gated(driver, 0), Gated(driver, 1)
    fleet._sites = {0: again, 1: beside}
    small = msgspec.structs.replace(glet(0, "mlp"), part_pct=50)

    async with asyncio.timeout(DEADLINE_S):
        changing = asyncio.ensure_future(fleet.change(Plan(glets=(small, glet(1, "lstm"))), {}))
        await beside.is_asked.wait()
        first.kill()
        await again.is_asked.wait()
        beside.is_let.set()
        await changing
        driver.agrees = agrees
        again.is_let.set()
        while (second := fleet.executors[0][1]) is None:
            await asyncio.sleep(0.005)

    assert (second.is_ready, second.part_pct) == (True, 50)
    await fleet.close()


@in_loop
async def test_the_planner_plans_refuses_and_outlives_its_process() -> None:
    planner = Planner(*profiles(("a", "b"), latency_ms=100.0))

    found = (await planner.plan({"a": 5.0, "b": 5.0}, 4, {})).found
    assert isinstance(found, Plan)
    refused = await planner.plan({"a": 1000.0, "b": 5.0}, 1, {}, is_explained=True)
    assert isinstance(refused.found, Refusal)
    assert refused.enough > 1
    await planner.close()
    assert isinstance((await planner.plan({"a": 5.0}, 4, {"a": 2.0})).found, Plan)
    await planner.close()


class HeldPlace(WholePlace):
    def __init__(self, driver: "HoldingDriver", device: Device, part_pct: int) -> None:
        super().__init__(device)
        self._driver, self._device, self.part_pct = driver, device, part_pct

    def hold(self, prepare_pct: int) -> bool:
        self._driver.held.append((self._device.number, prepare_pct))
        return True

    def let_go(self) -> None:
        self._driver.held.append((self._device.number, 0))


class HoldingDriver(WholeDriver):
    """Notes what its parts are held to; 0: let go."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int]] = []

    def open(self, device: Device, part_pct: int) -> WholePlace:
        return HeldPlace(self, device, part_pct)


@in_loop
async def test_executors_that_prepare_are_held_to_a_part_only_where_others_serve(tmp_path: Path) -> None:
    files = small_models(tmp_path, ("mlp", "lstm"))
    driver = HoldingDriver()
    fleet, _ = fleet_of(files, driver, prepare_pct=20)
    part = msgspec.structs.replace(glet(0, "mlp"), part_pct=50)
    await fleet.change(Plan(glets=(part,)), {})
    assert driver.held == []

    beside = msgspec.structs.replace(glet(0, "lstm"), part_pct=50)
    await fleet.change(Plan(glets=(part, beside, glet(1, "lstm"))), {})
    assert driver.held == [(0, 20), (0, 0)]
    await fleet.close()


@pytest.mark.parametrize(("took_s", "held"), [(2.0, [(0, CALM_PCT), (0, 0)]), (4.0, [])])
@in_loop
async def test_for_a_calm_change_executors_are_held_to_little_where_that_is_soon_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, held: list[tuple[int, int]]
) -> None:
    """They need five times as long as where no other one serves, and a burst would have to wait."""
    files = small_models(tmp_path, ("mlp", "lstm"))
    driver = HoldingDriver()
    fleet, _ = fleet_of(files, driver)
    part, beside = (msgspec.structs.replace(glet(0, name), part_pct=50) for name in ("mlp", "lstm"))
    await fleet.change(Plan(glets=(part,)), {}, is_calm=True)
    assert driver.held == [], "nothing else serves there"

    monkeypatch.setattr(fleet, "_alone_s", took_s)
    await fleet.change(Plan(glets=(part, beside)), {}, is_calm=True)

    assert driver.held == held
    await fleet.close()


class StubPlanner:
    """Answers with plans in turn; an exception among them is raised."""

    def __init__(self, *answers: Plan | Refusal | FarsideError) -> None:
        self._answers = list(answers)

    async def plan(
        self, rates: Mapping[str, float], gpus: int, slower: Mapping[str, float], *, is_explained: bool = False
    ) -> Planned:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, FarsideError):
            raise answer
        return Planned(found=answer)


async def pressed(pool: Pool, file: ModelFile, controller: Controller, *, records: int) -> None:
    """Sends more and more requests until so many epochs were recorded; each has to be answered."""
    watching = asyncio.ensure_future(controller.run())
    client, sent = Client(pool), 0
    async with asyncio.timeout(60):
        while len(controller.records) < records:
            for _ in range(20):
                send(client, sent, file)
                sent += 1
            await asyncio.sleep(0.02)
    await client.all(sent)
    watching.cancel()
    await asyncio.wait([watching])


SETTINGS = RateSettings(tick_s=0.05, early_every_s=0.2, period_s=1000.0)
ONE, TWO = Plan(glets=(glet(0, "mlp"),)), Plan(glets=(glet(0, "mlp"), glet(1, "mlp")))


@in_loop
async def test_a_burst_is_planned_for_and_a_planner_that_fails_is_asked_again(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,))
    planner = StubPlanner(ONE, PlannerError("no plan within 10 s"), TWO)
    controller = Controller(fleet, pool, planner, OwnDevices(2), {"mlp": 1.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)

    await pressed(pool, file, controller, records=3)

    begun, failed, asked_again, *_ = controller.records
    assert [(one.cause, one.problem) for one in (begun, failed)] == [("start", ""), ("burst", "no plan within 10 s")]
    # Where the rate is seen to rise further meanwhile, that is the cause.
    assert (asked_again.cause in ("again", "rise", "burst"), asked_again.problem) == (True, "")
    assert fleet.plan == TWO
    await fleet.close()


@in_loop
async def test_queues_have_the_length_that_a_given_plan_needs_whatever_rates_are_expected(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,))
    part = glet(0, "mlp")
    plan = Plan(glets=(msgspec.structs.replace(part, models=(Portion(model="mlp", batch=4, rate=100.0),)),))
    controller = Controller(fleet, pool, None, OwnDevices(1), {"mlp": 0.0}, SETTINGS)
    client = Client(pool)

    await controller.start(plan)
    for number in range(400):  # less than the plan serves within an SLO
        send(client, number, file)

    await client.all(400)
    assert (pool.counts["mlp"].met, pool.counts["mlp"].rejected) == (400, 0)
    await fleet.close()


@in_loop
async def test_what_was_found_counts_where_a_later_question_has_no_answer_and_the_first_has_to_have_one() -> None:
    refusal, failed = Refusal(model="mlp", left=1.0, why="too much"), PlannerError("no plan within 10 s")

    planner = StubPlanner(refusal, ONE, failed)
    assert await answered(planner, largest_share({"mlp": 100.0}), 1, {}) == ONE  # type: ignore[arg-type]
    with pytest.raises(PlannerError):
        await answered(StubPlanner(failed), largest_share({"mlp": 100.0}), 1, {})  # type: ignore[arg-type]


@in_loop
async def test_a_decision_that_takes_long_makes_no_more_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "PLAN_LIMIT_S", 0.0)
    planner = StubPlanner(Refusal(model="mlp", left=1.0, why="too much"), ONE)

    found = await answered(planner, largest_share({"mlp": 100.0}), 1, {})  # type: ignore[arg-type]

    assert isinstance(found, Refusal)
    assert found.why == "too much"


@in_loop
async def test_rates_without_a_plan_leave_the_last_one_and_are_named(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,))
    planner = StubPlanner(ONE, Refusal(model="mlp", left=1.0, why="too much"))
    controller = Controller(fleet, pool, planner, OwnDevices(1), {"mlp": 1.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)

    await pressed(pool, file, controller, records=2)

    assert controller.records[1].problem.startswith("mlp does not fit: too much; what runs stays, for ")
    assert controller.problem == "mlp does not fit on 1 device: too much; give it more devices, or send less"
    assert fleet.plan == ONE
    await fleet.close()
