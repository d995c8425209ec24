"""Devices that come and go: plans move to those that are there, and serve a share where they are too few."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from farside.agent.serving.handle import ExecutorHandle, ServeError
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.partition.whole import WholeDriver, WholePlace
from farside.errors import ConfigError, FarsideError
from farside.scheduler.sharing.glet.change import placed
from farside.scheduler.sharing.glet.plan import Plan, Portion, Refusal
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.scaling import RATE_MIN
from farside.serve import fleet as fleet_module
from farside.serve.controller import Controller
from farside.serve.failures import LEFT_OUT_S
from farside.serve.fleet import Fleet
from farside.serve.planner import Planned, PlannerError
from farside.serve.pool import Pool
from farside.serve.site import OwnDevices
from tests.serving.executors import small_models
from tests.serving.front import in_loop
from tests.serving.test_fleet import ONE, SETTINGS, TWO, fleet_of, glet, send
from tests.serving.test_pool import Client


class Leased:
    """Devices as a test says."""

    are_leased = True
    lacking = "`farside explain JOB` says what a lease waits for"
    most = 2

    def __init__(self) -> None:
        self.usable: frozenset[int] = frozenset()
        self.wanted = 0

    def want(self, count: int) -> None:
        self.wanted = count

    def failed(self, number: int, why: str) -> None:
        self.usable -= {number}


class TwoGpus:
    """A planner whose plan for all rates has two GPUs; for half of them one will do."""

    def __init__(self) -> None:
        self.most = 0.0

    async def plan(
        self, rates: Mapping[str, float], gpus: int, slower: Mapping[str, float], *, is_explained: bool = False
    ) -> Planned:
        self.most = max(self.most, rates["mlp"])
        if gpus >= 2:
            return Planned(found=TWO)
        fits = rates["mlp"] <= self.most / 2
        return Planned(found=ONE if fits else Refusal(model="mlp", left=1.0, why="too much"))


async def until_so(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.01)


async def pressed_until(pool: Pool, file: ModelFile, look: Callable[[], bool]) -> None:
    """Sends far more requests than two devices are said to serve, until it is so; each has to be answered."""
    client, sent = Client(pool), 0
    async with asyncio.timeout(60):
        while not look():
            for _ in range(20):
                send(client, sent, file)
                sent += 1
            await asyncio.sleep(0.02)
    await client.all(sent)


def gpus(plan: Plan) -> set[int]:
    return {one.gpu for one in plan.glets}


@in_loop
async def test_what_runs_moves_to_the_devices_that_are_there_and_less_is_served_on_too_few(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(0, 3, 5))
    devices = Leased()
    controller = Controller(fleet, pool, TwoGpus(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    assert (devices.wanted, fleet.plan.glets) == (2, ())
    watching = asyncio.ensure_future(controller.run())

    devices.usable = frozenset({3})
    await until_so(lambda: gpus(fleet.plan) == {3})
    assert devices.wanted == 2, "a share is served meanwhile"
    devices.usable = frozenset({0, 3})
    await until_so(lambda: gpus(fleet.plan) == {0, 3})
    kept = [executor for one, executor in fleet.executors if one.gpu == 3]
    devices.usable = frozenset({3, 5})
    await until_so(lambda: gpus(fleet.plan) == {3, 5} and fleet.in_use == {3, 5})
    assert [executor for one, executor in fleet.executors if one.gpu == 3] == kept
    devices.usable = frozenset({5})
    await until_so(lambda: gpus(fleet.plan) == {5})

    assert {one.cause for one in controller.records} == {"devices"}
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


class Broken:
    """A device on which no executor starts."""

    def can_resize(self, from_pct: int, to_pct: int) -> bool:
        return False

    async def start(self, *_: object, **_said: object) -> ExecutorHandle:
        raise ServeError("a library is missing")


@in_loop
async def test_a_device_on_which_no_executor_starts_is_left_out_and_another_one_serves(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(3,), others={0: Broken()})
    devices, planner = Leased(), TwoGpus()
    controller = Controller(fleet, pool, planner, devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    watching = asyncio.ensure_future(controller.run())

    devices.usable = frozenset({0, 3})
    await until_so(lambda: gpus(fleet.plan) == {3})

    assert [one.problem for one in controller.records if one.problem] == ["the old plan stays: a library is missing"]
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


@pytest.fixture
def tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that can't be started is tried again without a pause."""
    monkeypatch.setattr(fleet_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(fleet_module, "LEFT_OUT_S", 0.0)


class Failing(WholeDriver):
    """Its parts can't be opened on devices that have fallen off the bus."""

    def __init__(self) -> None:
        self.gone = set[int]()

    def open(self, device: Device, part_pct: int) -> WholePlace:
        if device.number in self.gone:
            raise FarsideError(f"GPU {device.number} is lost")
        return super().open(device, part_pct)

    def lose(self, fleet: Fleet, number: int) -> None:
        """Loses a device with the executors that run there."""
        self.gone.add(number)
        for one, executor in fleet.executors:
            if one.gpu == number and executor is not None:
                executor.kill()


@pytest.mark.usefixtures("tried_again_at_once")
@in_loop
async def test_a_device_of_this_machine_on_which_no_executor_starts_is_planned_without_for_a_while(
    tmp_path: Path,
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    driver, now_s = Failing(), 0.0
    fleet, pool = fleet_of((file,), driver, numbers=(0, 1, 2))
    devices = OwnDevices(3, fleet.serves, lambda: now_s)
    controller = Controller(fleet, pool, TwoGpus(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    assert gpus(fleet.plan) == {0, 1}
    watching = asyncio.ensure_future(controller.run())

    driver.lose(fleet, 1)
    await until_so(lambda: gpus(fleet.plan) == {0, 2})
    assert controller.problem == ""
    driver.lose(fleet, 2)
    await until_so(lambda: gpus(fleet.plan) == {0})
    lost = "no executor starts on device 1: GPU 1 is lost; no executor starts on device 2: GPU 2 is lost"
    assert controller.problem == f"1 of 2 devices can be used; {lost}"
    driver.gone.remove(1)
    now_s += LEFT_OUT_S
    await until_so(lambda: gpus(fleet.plan) == {0, 1})

    assert controller.problem == ""
    assert {one.cause for one in controller.records} == {"start", "devices"}
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


@pytest.mark.usefixtures("tried_again_at_once")
@in_loop
async def test_where_the_only_device_of_this_machine_fails_that_is_said_and_its_executor_is_tried_on(
    tmp_path: Path,
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    driver = Failing()
    fleet, pool = fleet_of((file,), driver, numbers=(0,))
    devices = OwnDevices(1, fleet.serves, lambda: 0.0)
    controller = Controller(fleet, pool, HundredEach(), devices, {"mlp": 0.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    first = fleet.plan
    watching = asyncio.ensure_future(controller.run())

    driver.lose(fleet, 0)
    said = "0 of 1 devices can be used; no executor starts on device 0: GPU 0 is lost"
    await until_so(lambda: controller.problem == said)
    driver.gone.clear()
    await until_so(lambda: controller.problem == "")

    assert pool.is_ready("mlp")
    assert fleet.plan == first
    assert [one.cause for one in controller.records] == ["start"], "nothing else was planned"
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


@in_loop
async def test_a_device_of_this_machine_that_fails_again_is_left_out_for_twice_as_long() -> None:
    now_s, left_out_s = 0.0, list[float]()
    devices = OwnDevices(2, clock_s=lambda: now_s)

    for _ in range(3):
        devices.failed(1, "a library is missing")
        devices.failed(1, "it is left out already")
        began_s = now_s
        while 1 not in devices.usable:
            assert set(devices.usable) == {0}
            now_s += LEFT_OUT_S
        left_out_s.append(now_s - began_s)

    assert left_out_s == [LEFT_OUT_S, 2 * LEFT_OUT_S, 4 * LEFT_OUT_S]
    assert devices.lacking == ""


@in_loop
async def test_a_device_on_which_an_executor_runs_is_not_to_blame_for_another_one(tmp_path: Path) -> None:
    (file, other) = small_models(tmp_path, ("mlp", "lstm"))
    fleet, _ = fleet_of((file, msgspec.structs.replace(other, path=f"{tmp_path}/gone.onnx")))
    blamed = list[int]()
    fleet.on_failed = lambda gpu, _why: blamed.append(gpu)
    await fleet.change(ONE, {})

    for number in (0, 1):
        with pytest.raises(FarsideError):
            await fleet.change(Plan(glets=(*ONE.glets, glet(number, "lstm"))), {})

    assert blamed == [1]
    await fleet.close()


@in_loop
async def test_where_no_device_is_there_that_is_said_and_what_runs_stays(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,))
    devices = Leased()
    controller = Controller(fleet, pool, TwoGpus(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    watching = asyncio.ensure_future(controller.run())
    devices.usable = frozenset({0, 1})
    await until_so(lambda: gpus(fleet.plan) == {0, 1})

    devices.usable = frozenset()
    await until_so(lambda: controller.problem.startswith("0 of 2 devices are there"))

    assert gpus(fleet.plan) == {0, 1}
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


@in_loop
async def test_a_share_that_is_served_on_too_few_devices_is_told_until_the_others_are_there(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,))
    devices = Leased()
    controller = Controller(fleet, pool, TwoGpus(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    assert controller.problem.startswith("0 of 2 devices are there; ")
    watching = asyncio.ensure_future(controller.run())
    devices.usable = frozenset({1})

    await until_so(lambda: gpus(fleet.plan) == {1})
    assert controller.problem.startswith("1 of 2 devices are there; ")
    devices.usable = frozenset({0, 1})
    await until_so(lambda: gpus(fleet.plan) == {0, 1})

    assert controller.problem == ""
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


class HundredEach:
    """A planner of devices that serve a hundred requests a second each."""

    async def plan(
        self, rates: Mapping[str, float], gpus: int, slower: Mapping[str, float], *, is_explained: bool = False
    ) -> Planned:
        count = max(1, -(-int(rates["mlp"]) // 100))
        if count > gpus:
            return Planned(found=Refusal(model="mlp", left=1.0, why="too much"))
        one = Portion(model="mlp", batch=1, rate=rates["mlp"] / count)
        glets = (msgspec.structs.replace(glet(gpu, "mlp"), models=(one,)) for gpu in range(count))
        return Planned(found=Plan(glets=tuple(glets)))


@in_loop
async def test_rates_beyond_all_leases_ask_for_all_of_them_and_take_them_as_they_come(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(0, 3))
    devices = Leased()
    controller = Controller(fleet, pool, HundredEach(), devices, {"mlp": 50.0}, SETTINGS)  # type: ignore[arg-type]
    await controller.start(None)
    devices.usable = frozenset({3})
    watching = asyncio.ensure_future(controller.run())
    await until_so(lambda: gpus(fleet.plan) == {3})
    assert devices.wanted == 1
    pressing = asyncio.ensure_future(pressed_until(pool, file, lambda: gpus(fleet.plan) == {0, 3}))

    await until_so(lambda: devices.wanted == 2)
    devices.usable = frozenset({0, 3})
    await pressing

    refused = [one.problem for one in controller.records if one.problem]
    assert any(one.startswith("mlp does not fit: too much; a plan follows, for ") for one in refused)
    assert controller.problem == "mlp does not fit on 2 devices: too much; raise gpus_max, or send less"
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


@in_loop
async def test_a_front_goes_on_with_the_plan_of_the_one_before_where_its_devices_are_there(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(0, 3, 5))
    devices, routed = Leased(), list[Plan]()
    planner = TwoGpus()
    controller = Controller(
        fleet, pool, planner, devices, {"mlp": 100.0}, SETTINGS, on_plan=routed.append  # type: ignore[arg-type]
    )  # fmt: skip
    before = placed(Plan(glets=()), TWO, {3, 5})
    assert before is not None
    assert not await controller.resume(before), "none of its devices is there"

    devices.usable = frozenset({0, 5})
    assert await controller.resume(before)
    assert (devices.wanted, gpus(fleet.plan), planner.most) == (2, {5}, 0.0)
    kept = [executor for _, executor in fleet.executors]
    watching = asyncio.ensure_future(controller.run())
    await until_so(lambda: gpus(fleet.plan) == {0, 5})

    assert [executor for one, executor in fleet.executors if one.gpu == 5] == kept
    assert [gpus(plan) for plan in routed] == [{5}, {0, 5}]
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


class Stuck:
    """A device on which an executor neither starts nor fails."""

    def can_resize(self, from_pct: int, to_pct: int) -> bool:
        return False

    async def start(self, *_: object, **_said: object) -> ExecutorHandle:
        await asyncio.Event().wait()
        raise AssertionError


@in_loop
async def test_an_executor_that_does_not_come_back_to_a_new_front_does_not_hold_up_those_that_do(
    tmp_path: Path,
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(1,), others={0: Stuck()})
    devices, client = Leased(), Client(pool)
    devices.usable = frozenset({0, 1})
    controller = Controller(fleet, pool, TwoGpus(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]

    async with asyncio.timeout(60):
        assert await controller.resume(TWO)
    await until_so(lambda: pool.is_ready("mlp"))
    send(client, 1, file)
    await client.all(1)

    assert pool.counts["mlp"].met == 1
    assert [(one.gpu, executor is not None) for one, executor in fleet.executors] == [(0, False), (1, True)]
    await fleet.close()


@pytest.mark.usefixtures("tried_again_at_once")
@in_loop
async def test_an_executor_that_fails_as_a_new_front_takes_it_over_starts_again_and_does_not_close_those_that_run(
    tmp_path: Path,
) -> None:
    files = small_models(tmp_path, ("mlp", "lstm"))
    driver, devices = Failing(), Leased()
    driver.gone, devices.usable = {1}, frozenset({0, 1})
    fleet, pool = fleet_of(files, driver)
    rates = {"mlp": 10.0, "lstm": 10.0}
    controller = Controller(fleet, pool, TwoGpus(), devices, rates, SETTINGS)  # type: ignore[arg-type]
    before = Plan(glets=(glet(0, "mlp"), glet(1, "lstm")))

    assert await controller.resume(before)
    await until_so(lambda: pool.is_ready("mlp") and devices.usable == {0})
    runs = fleet.executors[0][1]
    driver.gone.clear()
    await until_so(lambda: pool.is_ready("lstm"))

    assert fleet.plan == before
    assert fleet.executors[0][1] is runs
    await fleet.close()


@pytest.mark.usefixtures("tried_again_at_once")
@in_loop
async def test_a_new_front_plans_round_a_device_on_which_none_of_the_executors_of_the_one_before_comes(
    tmp_path: Path,
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(1, 3), others={0: Broken()})
    devices = Leased()
    devices.usable = frozenset({0, 1})
    controller = Controller(fleet, pool, TwoGpus(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]

    assert await controller.resume(TWO)
    await until_so(lambda: pool.is_ready("mlp") and devices.usable == {1})
    runs = fleet.executors[1][1]
    watching = asyncio.ensure_future(controller.run())
    devices.usable = frozenset({1, 3})
    await until_so(lambda: gpus(fleet.plan) == {1, 3})

    assert [executor for one, executor in fleet.executors if one.gpu == 1] == [runs]
    assert [one.problem for one in controller.records if one.problem] == []
    watching.cancel()
    await asyncio.wait([watching])
    await fleet.close()


@in_loop
async def test_a_front_after_another_whose_rates_are_too_much_plans_for_a_share_and_its_own_rates_end_a_start(
    tmp_path: Path,
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(0,))
    devices, planner = Leased(), TwoGpus()
    devices.most = 1
    controller = Controller(fleet, pool, planner, devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="mlp does not fit on 1 device"):
        await controller.start(None)
    await controller.start(None, own_rates={"mlp": 1.0})

    assert devices.wanted == 1
    await fleet.close()


class Silent(TwoGpus):
    """Has no answer but for the deployment's own rates."""

    async def plan(
        self, rates: Mapping[str, float], gpus: int, slower: Mapping[str, float], *, is_explained: bool = False
    ) -> Planned:
        if rates["mlp"] > planned_rate(RATE_MIN):
            raise PlannerError("no plan within 10 s")
        return Planned(found=ONE)


@in_loop
async def test_a_planner_without_an_answer_for_the_rates_of_the_front_before_plans_for_the_files(
    tmp_path: Path,
) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    fleet, pool = fleet_of((file,), numbers=(0,))
    devices = Leased()
    controller = Controller(fleet, pool, Silent(), devices, {"mlp": 100.0}, SETTINGS)  # type: ignore[arg-type]

    await controller.start(None, own_rates={"mlp": 0.0})

    assert devices.wanted == 1
    await fleet.close()
