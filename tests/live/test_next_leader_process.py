"""A manager that is killed, and the one that takes over: what it has learned, and which job it starts next.

The managers are real processes over one store. Nodes are fakes that speak the real protocol; they are connected to the
manager that is left, so that only the leader is lost.
"""

import asyncio
import os
import pwd
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from farside.config.manager import ManagerConfig, PartitionRow
from farside.errors import RefusedError
from farside.scheduler.configured_rules import partitions_of, rules_of
from farside.scheduler.manager.decider.decide import Decider
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import Entry, JobAllocated, JobEnded, NodesWanted, SchedulerTookLead
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.transaction import Draft
from farside.scheduler.sim.learned_before import learned_before
from tests.live.fake_agent import FakeNode, Key
from tests.live.manager import Manager, running_manager
from tests.live.stores import store_url
from tests.live.test_manager_process import eventually, with_nodes
from tests.live.world import World, rules

PARTITIONS = (PartitionRow(name="a", nodes="n0"), PartitionRow(name="b", nodes="n1,n2"))
TOLD = '[{name = "a", nodes = "n0"}, {name = "b", nodes = "n1,n2"}]'
DAY_S, STEP_S = 86400.0, 600.0
OF_NOBODY = "as nobody had decided"


class Two:
    """The manager that leads first, the one that takes over, and the nodes, by name."""

    def __init__(self, stack: ExitStack, folder: Path, url: str, nodes: Iterable[str], **settings: object) -> None:
        self.first = stack.enter_context(running_manager(folder / "a", store_url=url, **settings))
        self.second = stack.enter_context(running_manager(folder / "b", store_url=url, **settings))
        self.nodes = {name: FakeNode(name) for name in nodes}

    async def play(self, act: Callable[[], Awaitable[None]]) -> None:
        """The act, once all nodes have joined."""

        async def joined() -> None:
            await eventually(lambda: len(self.first.get("nodes")["nodes"]) == len(self.nodes), "all nodes joined")
            await act()

        await with_nodes(self.second, list(self.nodes.values()), joined)

    async def submit(self, name: str, **more: object) -> str:
        return await asyncio.to_thread(self.second.submit, "true", gpus=4, name=name, **more)

    async def begun(self, node: str, name: str, **more: object) -> Key:
        """A job that runs on a node, which it fills."""
        key = f"{await self.submit(name, **more)}.0", 1
        await eventually(lambda: self.nodes[node].running == [key], f"{name} runs on {node}")
        return key

    async def ended(self, node: str, key: Key) -> None:
        self.nodes[node].end(key)
        await eventually(lambda: self.second.job(job_of(key))["state"] == "done", "its end is in the log")

    async def expected(self, manager: Manager, *jobs: str) -> list[tuple[float, float, int]]:
        """What the leader expects of jobs, as its manager tells it."""
        await eventually(lambda: is_expected(manager, jobs[-1]), "the leader expects something of the newest job")
        told = [await asyncio.to_thread(manager.job, job) for job in jobs]
        return [(one["expected_s"], one["expected_error"], one["expected_from_jobs"]) for one in told]

    async def takes_over(self) -> None:
        await asyncio.to_thread(self.first.kill_all)
        await eventually(lambda: self.second.get("health")["generation"] == 2, "the second one leads")


def is_expected(manager: Manager, job: str) -> bool:
    try:
        return manager.job(job)["expected_s"] is not None
    except RefusedError:  # submitted to the other one a moment ago
        return False


def job_of(key: Key) -> str:
    return key[0].removesuffix(".0")


def next_without_a_kill(entries: Sequence[Entry], config: ManagerConfig, ended: str) -> list[str]:
    """The jobs that get their places when a job has ended, from a scheduler process that lived through all before."""
    by = rules_of(config)
    times, partitions = learned_before(config).times(), partitions_of(config)
    decider = Decider(by, LiveState(), entries[0].at_s, times=times, partitions=partitions)
    for entry in entries:
        decider.hear(entry)
        if isinstance(entry.event, JobEnded) and entry.event.job_id == ended:
            drafts = decider.next_events(entry.at_s)
            return [draft.event.job_id for draft in drafts if isinstance(draft.event, JobAllocated)]
    raise AssertionError(f"job {ended} has not ended")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_next_leader_expects_the_same_uses_a_node_that_joins_and_starts_the_job_that_the_killed_one_would_have(
    kind: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(store_url(kind, tmp_path))
        two = Two(stack, tmp_path, url, ("n0", "n1"), policy="qssf", partition=TOLD)
        chosen: list[str] = []

        async def act() -> None:
            long = await two.begun("n1", "train", partition="b")
            for _ in range(3):  # one after the other, while the long one runs
                await two.ended("n0", await two.begun("n0", "test", partition="a"))
            await two.ended("n1", long)
            blocker = await two.begun("n0", "blocker", partition="a")
            await two.begun("n1", "blocker", partition="b")
            waiting = [await two.submit("train", partition="a"), await two.submit("test", partition="a")]
            other = await two.submit("test", partition="b")
            before = await two.expected(two.first, *waiting, other)

            await two.takes_over()
            after = await two.expected(two.second, *waiting, other)
            async with FakeNode("n2").connected(two.second.url, two.second.node_token("n2")):
                await eventually(lambda: two.second.job(other)["state"] == "running", "b's job on the node that joined")
                joined = await two.expected(two.second, *waiting)
                states = [two.second.job(job)["state"] for job in waiting]
                assert two.second.job(other)["nodes"] == ["n2"]
                two.nodes["n0"].end(blocker)
                await eventually(lambda: two.nodes["n0"].running, "the next job of a")

            assert before[0][0] > before[1][0]
            assert [known[2] for known in before] == [1, 3, 3]
            assert after == before
            assert joined == before[:2]
            assert states == ["waiting", "waiting"]
            assert two.nodes["n0"].running == [(f"{waiting[1]}.0", 1)]
            chosen.extend((waiting[1], job_of(blocker)))

        asyncio.run(two.play(act))

        entries = two.second.entries()
        assert list(violations(entries)) == []
        config = ManagerConfig(node="m", policy="qssf", min_run_s=0.0, partition=PARTITIONS)
        assert next_without_a_kill(entries, config, chosen[1]) == [chosen[0]]


def past_that_only_trees_tell_apart(path: Path) -> None:
    """Jobs of one user, name and size: those with one CPU for each GPU ran 2000 s, those with two 5 s."""
    dice, user = random.Random(1), pwd.getpwuid(os.geteuid()).pw_name
    rows = []
    for at in range(3200):
        cpus = dice.choice((1, 2))
        rows.append(f"{at},{at * 10_000},{user},train,4,{cpus},{2000 if cpus == 1 else 5}")
    path.write_text("\n".join(["job_id,submit_s,user,name,gpus,cpus_per_gpu,duration_s", *rows]) + "\n")


def hurry_fit(manager: Manager) -> None:
    """Lets a fit compute beside others: it takes idle time only, of which a machine full of tests has none."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        for fit in psutil.Process(manager.pids()["brain"]).children():
            os.sched_setscheduler(fit.pid, os.SCHED_OTHER, os.sched_param(0))
            fit.nice(0)  # the class alone leaves it the lowest niceness: half a percent beside three others


@pytest.mark.long
def test_the_next_leader_fits_the_same_model_and_starts_the_job_that_it_expects_to_be_short(tmp_path: Path) -> None:
    past = tmp_path / "past.csv"
    past_that_only_trees_tell_apart(past)

    def has_fitted(manager: Manager) -> bool:
        hurry_fit(manager)
        return manager.log().count("a model of run times was fitted") == 1

    async def fitted(manager: Manager) -> None:
        await eventually(lambda: has_fitted(manager), "a model")

    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/shared.db"
        two = Two(stack, tmp_path, url, ("n0",), policy="qssf", policy_history=past)

        async def act() -> None:
            await fitted(two.first)
            blocker = await two.begun("n0", "blocker")
            waiting = [await two.submit("train", cpus_per_gpu=cpus) for cpus in (1, 2)]
            before = await two.expected(two.first, *waiting)

            await two.takes_over()
            await fitted(two.second)
            after = await two.expected(two.second, *waiting)
            two.nodes["n0"].end(blocker)
            await eventually(lambda: two.nodes["n0"].running, "the next job")

            assert before[0][0] > 100 * before[1][0]
            assert [known[0] for known in after] == pytest.approx([known[0] for known in before])
            assert [known[2] for known in after] == [known[2] for known in before]
            assert two.nodes["n0"].running == [(f"{waiting[1]}.0", 1)]

        asyncio.run(two.play(act))
        assert list(violations(two.second.entries())) == []


def write_days(url: str, now_s: float) -> None:
    """A log of six days, in each of which two of four nodes were busy for eight hours.

    Jobs begin and end within intervals that are counted back from now, so that a few minutes more change none.
    """
    world = World(rules(), nodes=4)
    begin_s = now_s - 6 * DAY_S - 5.0
    for day in range(6):
        world.pass_s(begin_s + day * DAY_S - world.now_s)
        job = world.submit(8)
        world.runs(job)
        world.pass_s(48 * STEP_S)
        world.exits(job)
    store = EventStore(url)
    upgrade(store)
    for entry in world.log:
        if isinstance(entry.event, SchedulerTookLead):
            store.take_lead("test", entry.at_s)
        else:
            store.append([Draft(event=entry.event, cause=entry.cause)], entry.at_s, generation=entry.generation)
    store.close()


@pytest.mark.long
def test_the_next_leader_has_the_same_forecast_of_busy_nodes_and_wants_as_many(tmp_path: Path) -> None:
    url, drivers = f"sqlite:///{tmp_path}/manager.db", tmp_path / "power.toml"
    drivers.write_text("".join(f'[node.n{at}]\ndriver = "dry-run"\n' for at in range(4)))
    write_days(url, time.time())
    settings: dict[str, object] = {
        "power": "ces", "power_drivers": drivers, "power_floor": 4, "power_poll_s": 0.5, "power_step_s": STEP_S,
        "power_settings": "wakeups_per_day=0.5; forecast=true; wake_ahead=true; forecast_s=2h",
    }  # fmt: skip

    def wanted(manager: Manager) -> tuple[int, str, str] | None:
        """What the leader wants of its own, with the forecast that it goes by."""
        told = manager.get("power")
        is_own = told["wanted_reason"] not in ("", OF_NOBODY) and not told["wanted_reason"].startswith("jobs need")
        return (told["nodes_wanted"], told["wanted_reason"], told["forecast"]) if is_own else None

    with running_manager(tmp_path / "m", store_url=url, **settings) as manager:

        async def decided() -> tuple[int, str, str]:
            async with AsyncExitStack() as stack:
                for node in [FakeNode(f"n{at}") for at in range(4)]:
                    token = manager.node_token(node.name)
                    session = await stack.enter_async_context(node.connected(manager.url, token))
                    await session.report()  # that nothing runs there
                await eventually(lambda: wanted(manager), "what the leader wants")
                found = wanted(manager)
            assert found is not None
            return found

        before = asyncio.run(decided())
        manager.kill_all()
        store = EventStore(url)
        other = NodesWanted(nodes=before[0] + 1, needed=0, reason=OF_NOBODY)
        store.append([Draft(event=other, cause="test")], time.time())
        store.close()
        manager.start()

        assert before[2].startswith("a forecast by trees of 4.8 days")
        assert asyncio.run(decided()) == before
        assert manager.get("health")["generation"] == 3
