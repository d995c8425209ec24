"""Node power, live: a real log, a real scheduler process, BMCs in memory; the controller restarts at any moment."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from farside.scheduler.energy.catalog import make_online
from farside.scheduler.energy.policy import Seen, Target
from farside.scheduler.manager.decider.scheduler_process import SchedulerProcess
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import Event, JobSubmitted, PowerChanged, TaskChanged, TaskPhase
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.power.check_setup import PowerSetup
from farside.scheduler.manager.power.controller import LivePower
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.transaction import Draft
from farside.scheduler.manager.view.overview import Sensed
from farside.scheduler.manager.view.power import Energy, energy_of
from farside.scheduler.power.controller import PowerController
from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.power.state import Patience
from farside.scheduler.power.state import Phase as PowerPhase
from tests.live.facts import gpus, joined
from tests.live.store_end import close_after_calls
from tests.live.stores import KINDS, store_url
from tests.live.world import rules
from tests.power.cluster import FakeBmc

LIMIT_S = 120.0


class Few:
    """A policy that wants one node, whatever was busy."""

    def watch(self, seen: Seen) -> None:
        pass

    def target(self, powered: float) -> Target:
        return Target(nodes=1.0, reason="one is enough")


class Plant:
    """Nodes with BMCs in memory; an agent joins whenever its node has booted."""

    def __init__(self, live: LiveLog, folder: Path, *, nodes: int, is_dry_run: bool = False) -> None:
        self.live = live
        self.folder = folder
        self.bmcs = {f"n{at}": FakeBmc() for at in range(nodes)}
        self.stuck: set[str] = set()  # they never boot
        self.never_closes = False
        self.moved: list[str] = []  # nodes whose borrowers have moved
        self._closed: dict[str, int] = {}
        self.loans: dict[str, Mapping[str, int]] = {}
        self.lendable: dict[str, int] = {}  # by node
        self.closes_donors = True  # agents of this version; and borrowers move when they are told to
        drivers: dict[str, PowerDriver] = dict(self.bmcs)
        self.setup = PowerSetup(
            policy="few", is_dry_run=is_dry_run, drivers=drivers, make_policy=lambda _: Few(),
            rules=FleetRules(floor=1, min_on_s=0.0), step_s=0.1, every_s=0.05, idle_w=800.0,
            patience=Patience(answer_s=5.0, poll_s=0.1, silent_s=0.2, lost_s=LIMIT_S, boot_s=LIMIT_S, drain_s=LIMIT_S),
        )  # fmt: skip
        self.power = LivePower(self.setup, live, self, folder)

    def beats(self) -> Mapping[str, str]:
        return {name: bmc.boot_id for name, bmc in self.bmcs.items() if bmc.is_up and name not in self.stuck}

    def sensed(self) -> Mapping[str, Sensed]:
        return {name: self._sensed(name) for name in self.beats()}

    async def power_off(self, node: str) -> None:
        await self.bmcs[node].soft_off()

    def _sensed(self, name: str) -> Sensed:
        """As its agent would tell: the donor is closed a moment after the manager wants it."""
        note = self.live.state.nodes[name].power if name in self.live.state.nodes else None
        closed_by = 0 if note is None else note.drain_number
        told = self._closed.get(name, 0) if self.closes_donors and not self.never_closes else 0
        self._closed[name] = closed_by
        if told and self.loans.get(name):
            self.moved.append(name)
            self.loans.pop(name)
        loans = self.loans.get(name, {})
        return Sensed(
            loans=loans, slabs=len(loans), lends=not told, lendable_bytes=self.lendable.get(name, 0),
            can_close=self.closes_donors, closed_by=told,
        )  # fmt: skip

    async def keep_joining(self) -> None:
        known: dict[str, str] = {}
        while True:
            for name, boot_id in self.beats().items():
                if known.get(name) != boot_id:
                    known[name] = boot_id
                    await self.live.write([joined(name, boot_id=boot_id, gpus=gpus(4))], "test")
            await asyncio.sleep(0.02)

    def state(self, name: str) -> str:
        return self.live.state.nodes[name].state if name in self.live.state.nodes else ""

    def states(self) -> list[str]:
        return sorted(self.state(name) for name in self.bmcs)

    async def until(self, look: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not look():
            assert time.monotonic() < end_s, f"not in time: {what}; {self.states()}"
            await asyncio.sleep(0.02)

    async def controller(self) -> PowerController:
        await self.until(lambda: self.power.controller, "somebody keeps the power")
        assert self.power.controller is not None
        return self.power.controller

    async def submit(self, gpus: int) -> str:
        places = await self.live.write([JobSubmitted(spec=JobSpec(argv=("true",), gpus=gpus), user="ann")], "test")
        return self.live.state.submitted[places[0]][0]

    async def finish(self, job_id: str) -> None:
        for task in self.live.state.jobs[job_id].tasks:
            await self.live.write(
                [TaskChanged(node=task.node, job_id=job_id, rank=task.rank, start=task.start, phase=phase,
                             exit_code=0 if phase is TaskPhase.EXITED else None)
                 for phase in (TaskPhase.RUNNING, TaskPhase.EXITED)], "test",
            )  # fmt: skip

    def commands(self, name: str) -> list[str]:
        """What its BMC was told, without questions."""
        return [call for call in self.bmcs[name].calls if call != "status"]

    def events(self) -> list[Event]:
        return [entry.event for entry in self.live.store.read_all()]


@asynccontextmanager
async def a_plant(
    folder: Path, url: str, *, nodes: int, is_dry_run: bool = False, old_s: float = 0.0
) -> AsyncIterator[Plant]:
    store = EventStore(url)
    upgrade(store)
    if old_s:  # somebody has waited all this time, and no node was busy
        held = JobSubmitted(spec=JobSpec(argv=("true",)), user="ann", is_held=True)
        store.append([Draft(event=held, cause="test")], time.time() - old_s)
    live = LiveLog(store, folder)
    plant = Plant(live, folder, nodes=nodes, is_dry_run=is_dry_run)
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(live.run(ready.set))]
        await ready.wait()
        tasks.append(group.create_task(SchedulerProcess(store, rules(), folder, "test").run()))
        tasks.append(group.create_task(plant.keep_joining()))
        await plant.until(lambda: len(live.state.nodes) == nodes and live.state.generation, "all have joined")
        try:
            yield plant
            assert list(violations(store.read_all())) == []
        finally:
            for task in tasks:
                task.cancel()
    await close_after_calls(store)


@asynccontextmanager
async def keeping(plant: Plant) -> AsyncIterator[None]:
    running = asyncio.ensure_future(plant.power.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def play(
    story: Callable[[Plant], Awaitable[None]], folder: Path, *, nodes: int = 2, is_dry_run: bool = False,
    kind: str = "sqlite", old_s: float = 0.0,
) -> None:  # fmt: skip
    async def main(url: str) -> None:
        async with a_plant(folder, url, nodes=nodes, is_dry_run=is_dry_run, old_s=old_s) as plant:
            await story(plant)

    with store_url(kind, folder) as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("kind", KINDS)
def test_idle_nodes_go_off_and_a_job_that_waits_brings_them_back(kind: str, tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with keeping(plant):
            await plant.until(lambda: plant.states() == ["asleep", "asleep", "idle"], "two are asleep")
            job = await plant.submit(gpus=12)
            await plant.until(lambda: len(plant.live.state.jobs[job].nodes) == 3, "the job has all of them")
            notes = [event for event in plant.events() if isinstance(event, PowerChanged)]

            assert all(event.note.reason for event in notes)
            assert sum(event.note.command == "soft-off" for event in notes) == 2
            assert plant.live.state.slept.node_s(0.0, plant.live.now_s()) > 0

    play(story, tmp_path, nodes=3, kind=kind)


def test_ces_lets_nodes_sleep_at_once_by_what_the_log_says_of_the_days_before_and_a_job_wakes_them(
    tmp_path: Path,
) -> None:
    async def story(plant: Plant) -> None:
        plant.power.setup = replace(
            plant.setup, policy="ces", make_policy=make_online("ces", {"wakeups_per_day": "0.5"}), step_s=600.0
        )
        async with keeping(plant):
            await plant.until(lambda: "asleep" in plant.states(), "one is asleep, long before an interval is over")
            job = await plant.submit(gpus=12)
            await plant.until(lambda: len(plant.live.state.jobs[job].nodes) == 3, "the job has all of them")

    play(story, tmp_path, nodes=3, old_s=3 * 86400.0)


def forecasting(setup: PowerSetup) -> PowerSetup:
    told = {"wakeups_per_day": "0.5", "forecast": "true", "wake_ahead": "true", "forecast_s": "2h"}
    return replace(setup, policy="ces", make_policy=make_online("ces", told), step_s=600.0)


def sleepers(plant: Plant) -> int:
    nodes = {} if plant.power.controller is None else plant.power.controller.nodes
    return sum(node.phase is PowerPhase.OFF for node in nodes.values())


def shown(plant: Plant) -> Energy:
    state, power = plant.live.state, plant.power
    return energy_of(state, plant.live.now_s(), 800.0, power.forecast)


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_with_a_forecast_it_learns_from_the_log_at_each_start_and_keeps_nodes_as_before(
    is_dry_run: bool, tmp_path: Path
) -> None:
    async def story(plant: Plant) -> None:
        plant.power.setup = forecasting(plant.setup)
        for _ in range(2):  # the second is a restart: the past is in the store
            async with keeping(plant):
                await plant.until(lambda: sleepers(plant) == 2, "all but the floor are off")
                assert shown(plant).forecast.startswith("a forecast by trees of 4.8 days")
            assert shown(plant).forecast == ""
        if is_dry_run:
            assert all(plant.commands(name) == [] for name in plant.bmcs)
            return
        async with keeping(plant):
            job = await plant.submit(gpus=12)
            await plant.until(lambda: len(plant.live.state.jobs[job].nodes) == 3, "the job has all of them")

    play(story, tmp_path, nodes=3, old_s=6 * 86400.0, is_dry_run=is_dry_run)


def test_before_enough_is_known_it_keeps_nodes_without_a_forecast_and_says_so(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.power.setup = forecasting(plant.setup)
        async with keeping(plant):
            await plant.until(lambda: "asleep" in plant.states(), "one is asleep")

            assert shown(plant).forecast == "no forecast before 2.7 days are known, 2.0 are; rules alone decide"

    play(story, tmp_path, nodes=2, old_s=2 * 86400.0 + 100.0)


def test_a_node_with_a_job_or_memory_of_others_that_its_agent_can_not_ask_back_stays_on(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.closes_donors = False
        job = await plant.submit(gpus=4)
        await plant.until(lambda: plant.live.state.jobs[job].tasks, "it has started")
        (mine,) = plant.live.state.jobs[job].nodes
        lender = next(name for name in plant.bmcs if name != mine)
        plant.loans[lender] = {"n9": 1 << 30}
        async with keeping(plant):
            await plant.until(lambda: "asleep" in plant.states(), "the third is asleep")
            await asyncio.to_thread(lambda: None)

            assert plant.commands(mine) == []
            assert plant.bmcs[lender].is_up
            plant.loans.clear()
            await plant.until(lambda: plant.state(lender) == "asleep", "what lent is asleep once it lends no more")
            await plant.finish(job)

    play(story, tmp_path, nodes=3)


def test_memory_of_others_moves_off_one_node_after_the_other_before_they_sleep(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.loans = {"n0": {"b": 1 << 30}, "n1": {"b": 1 << 30}}
        plant.lendable = dict.fromkeys(plant.bmcs, 1 << 30)
        async with keeping(plant):
            await plant.until(lambda: plant.states().count("asleep") == 2, "two are asleep")

            assert plant.bmcs["n0"].is_up + plant.bmcs["n1"].is_up == 1  # who lends nothing went first
            assert len(plant.moved) == 1
            assert plant.power.controller is not None
            assert [node.phase for node in plant.power.controller.nodes.values()].count(PowerPhase.OFF) == 2

    play(story, tmp_path, nodes=3)


def test_a_node_stays_on_while_other_donors_have_no_room_for_what_it_lends(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.loans = {"n0": {"b": 2 << 30}, "n1": {"n0": 1 << 30}}
        plant.lendable = {"n0": 1 << 30, "n1": 1 << 30}
        async with keeping(plant):
            controller = await plant.controller()
            await plant.until(lambda: len(controller.stays) == 2, "both stay on")

            assert set(controller.stays.values()) == {"lends memory that other donors have no room for"}
            assert plant.commands("n0") + plant.commands("n1") == []
            plant.lendable["n1"] = 3 << 30
            await plant.until(lambda: plant.state("n0") == "asleep", "what n0 lends has room now")

        assert plant.moved == ["n0"]

    play(story, tmp_path, nodes=2)


def test_a_node_whose_donor_does_not_say_that_it_is_closed_is_not_told_to_stop(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.never_closes = True
        plant.power.setup = replace(plant.setup, patience=replace(plant.setup.patience, drain_s=0.5))
        async with keeping(plant):
            controller = await plant.controller()
            await plant.until(
                lambda: any("not empty after" in node.reason for node in controller.nodes.values()), "given up"
            )

            (node,) = [node for node in controller.nodes.values() if "not empty after" in node.reason]
            assert "its donor may lend" in node.reason
            assert plant.commands(node.name) == []
            await plant.until(lambda: plant.state(node.name) == "idle", "it serves again")

    play(story, tmp_path, nodes=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", ["closing", "booting"])
def test_who_keeps_the_power_is_ended_in_the_middle_of_a_switch_and_the_next_neither_forgets_nor_repeats_it(
    moment: str, kind: str, tmp_path: Path
) -> None:
    async def story(plant: Plant) -> None:
        sleeper = "n0"
        if moment == "closing":
            for bmc in plant.bmcs.values():
                bmc.hangs = True  # it takes the order, and says nothing
            async with keeping(plant):
                await plant.until(lambda: any("soft-off" in bmc.calls for bmc in plant.bmcs.values()), "told to stop")
        else:
            async with keeping(plant):
                await plant.until(lambda: "asleep" in plant.states(), "one is asleep")
                sleeper = next(name for name in plant.bmcs if plant.state(name) == "asleep")
                plant.bmcs[sleeper].hangs = True
                await plant.submit(gpus=8)
                await plant.until(lambda: "on" in plant.bmcs[sleeper].calls, "told to boot")
        sleeper = next(name for name in plant.bmcs if {"soft-off", "on"} & set(plant.bmcs[name].calls))
        before = plant.live.state.nodes[sleeper].power
        assert before is not None
        assert before.command == ("soft-off" if moment == "closing" else "power-on")
        for bmc in plant.bmcs.values():
            bmc.hangs = False
        bmc = plant.bmcs[sleeper]
        bmc.is_up = moment == "booting"  # the order had come through
        bmc.boots += moment == "booting"

        async with keeping(plant):
            wanted = "asleep" if moment == "closing" else "busy"
            await plant.until(lambda: plant.state(sleeper) == wanted, "it is as it was ordered")

        assert plant.commands(sleeper) == (["soft-off"] if moment == "closing" else ["soft-off", "on"])
        power = plant.live.state.nodes[sleeper].power
        assert power is not None
        assert len(power.stops_s) == 1

    play(story, tmp_path, kind=kind)


def test_a_node_that_does_not_boot_is_marked_with_the_reason_and_another_is_woken(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.power.setup = replace(plant.setup, patience=replace(plant.setup.patience, boot_s=6.0))
        async with keeping(plant):
            await plant.until(lambda: plant.states() == ["asleep", "asleep", "idle"], "two are asleep")
            plant.stuck.add(next(name for name in plant.bmcs if plant.state(name) == "asleep"))
            (stuck,) = plant.stuck
            job = await plant.submit(gpus=8)
            await plant.until(lambda: plant.live.state.jobs[job].nodes, "the job has two others")
            await plant.until(lambda: plant.live.state.nodes[stuck].state == "lost", "it is given up")

            assert stuck not in plant.live.state.jobs[job].nodes
            assert "has not booted in" in plant.live.state.nodes[stuck].why_not

    play(story, tmp_path, nodes=3)


def test_a_dry_run_switches_and_closes_nothing(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with keeping(plant):

            def is_said_to_sleep() -> bool:
                controller = plant.power.controller
                return controller is not None and any(node.phase == "off" for node in controller.nodes.values())

            await plant.until(is_said_to_sleep, "one is said to be off")
            job = await plant.submit(gpus=8)
            await plant.until(lambda: len(plant.live.state.jobs[job].nodes) == 2, "the job has all nodes")
            await plant.until(lambda: not is_said_to_sleep(), "the one with a job is said to be woken")

        assert [bmc.calls for bmc in plant.bmcs.values()] == [[], []]
        assert not any(isinstance(event, PowerChanged) for event in plant.events())

    play(story, tmp_path, is_dry_run=True)


def test_without_a_policy_nodes_that_were_closed_serve_again(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with keeping(plant):
            await plant.until(lambda: "asleep" in plant.states(), "one is asleep")
        for bmc in plant.bmcs.values():
            bmc.is_up, bmc.boots = True, bmc.boots + (not bmc.is_up)
        plant.power = LivePower(PowerSetup(policy="none", is_dry_run=False, every_s=0.05), plant.live, plant,
                                plant.folder)  # fmt: skip
        async with keeping(plant):
            await plant.until(lambda: plant.states() == ["idle", "idle"], "both serve")

    play(story, tmp_path)
