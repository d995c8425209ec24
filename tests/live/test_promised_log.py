"""Donors die, drain and shrink under a real manager; a checker that shares no code with it reads its log."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from websockets.exceptions import ConnectionClosed, WebSocketException

from farside.agent import messages as m
from farside.errors import FarsideError
from tests.live.fake_agent import FakeNode, FakeSession
from tests.live.manager import Manager, running_manager
from tests.support.promised_log import check, entries, unplaced
from tests.support.waiting import DEADLINE_S, until

GIB = 1 << 30
BORROWERS, DONORS = ("b0", "b1"), ("d0", "d1", "d2")
STEPS, STARTS = 110, 10  # of nodes and jobs; how many jobs start meanwhile, on a slow machine in more steps


def a_donor(name: str, lends_gib: int) -> m.Donor:
    return m.Donor(node=name, control=f"tcp:10.0.0.{name[1:]}:7677", free_bytes=lends_gib * GIB)


class Cluster:
    """Two nodes that borrow, one of which also lends, and three that only lend, each with a connection of its own."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        swaps = {name: m.Swap(size_bytes=64 * GIB, copies=1 + at) for at, name in enumerate(BORROWERS)}
        self.nodes = {name: FakeNode(name, swap=swap) for name, swap in swaps.items()}
        self.nodes["b1"].donor = a_donor("b1", 8)
        self.nodes |= {name: FakeNode(name, gpus=0, donor=a_donor(name, 16)) for name in DONORS}
        self.sessions: dict[str, FakeSession] = {}
        self._present: dict[str, object] = {}  # by node, for whom it is there

    async def connect(self, group: asyncio.TaskGroup, name: str) -> None:
        """In a task of its own, as sessions end in any order."""
        begun, self._present[name] = asyncio.Event(), object()
        group.create_task(self._stay(name, begun))
        await begun.wait()

    async def _stay(self, name: str, begun: asyncio.Event) -> None:
        """Comes again when its connection ends, as an agent does: a busy machine is too late for the manager's pings.

        With this node's timeout the manager waits a quarter of a second for an answer.
        """
        present = self._present[name]
        while self._present.get(name) is present:
            with suppress(WebSocketException, OSError, FarsideError):
                token = self.manager.node_token(name)
                async with self.nodes[name].connected(self.manager.url, token) as session:
                    if self._present.get(name) is present:
                        self.sessions[name] = session
                        await self.report(name)
                        begun.set()
                        await session.over.wait()

    async def report(self, name: str) -> None:
        with suppress(ConnectionClosed):  # it comes again, and says all then
            await self.sessions[name].report()

    def disconnect(self, name: str) -> None:
        del self._present[name]
        self.sessions.pop(name).over.set()

    async def die(self, group: asyncio.TaskGroup, name: str) -> None:
        """Its machine is silent until it is lost, and comes back."""
        self.disconnect(name)
        what = f"{name} to be lost"
        await asyncio.to_thread(lambda: until(lambda: self.is_lost(name), what=what, deadline_s=DEADLINE_S))
        await self.connect(group, name)

    def is_lost(self, name: str) -> bool:
        return any((one["name"], one["state"]) == (name, "lost") for one in self.manager.get("nodes")["nodes"])

    async def lends(self, name: str, lends_gib: int) -> None:
        node = self.nodes[name]
        assert node.donor is not None
        node.donor = structs.replace(node.donor, free_bytes=lends_gib * GIB)
        await self.report(name)

    async def post(self, *path: str, body: Mapping[str, object] | None = None) -> Any:
        try:
            return await asyncio.to_thread(self.manager.post, *path, body=body)
        except FarsideError:  # refused, as its donors lend nothing, or it is over
            return None

    async def submit(self, chance: random.Random) -> None:
        body = {
            # Of the 64 GiB of a node, so that the donor of b1 lends less, or nothing, beside some jobs.
            "argv": ["true"], "gpus": chance.randint(1, 4), "memory_bytes_per_gpu": chance.choice((1, 1, 1, 14)) * GIB,
            "swap_bytes_per_gpu": chance.randint(1, 10) * GIB,
        }  # fmt: skip
        await self.post("jobs", body=body)

    async def has_run_enough(self) -> bool:
        jobs = (await asyncio.to_thread(self.manager.get, "jobs", all="true"))["jobs"]
        return sum(job["starts"] for job in jobs) >= STARTS and any(job["state"] == "done" for job in jobs)

    def end_one(self, chance: random.Random) -> None:
        running = [(node, key) for node in self.nodes.values() for key in node.running]
        if running:
            node, key = chance.choice(running)
            node.end(key)


async def upheaval(cluster: Cluster, chance: random.Random) -> None:
    """Jobs come and go, and so do donors; in between the scheduler process is killed once."""
    async with asyncio.TaskGroup() as group:
        for name in cluster.nodes:
            await cluster.connect(group, name)
        for step in range(STEPS):
            await one_step(cluster, group, chance)
            if step == STEPS // 2:
                cluster.manager.kill("brain")
        while not await cluster.has_run_enough():
            await one_step(cluster, group, chance)
        for name in cluster.nodes:
            cluster.disconnect(name)


async def one_step(cluster: Cluster, group: asyncio.TaskGroup, chance: random.Random) -> None:
    name = chance.choice((*DONORS, "b1"))
    match chance.choice(("submit", "submit", "submit", "end", "end", "shrink", "die", "drain", "bound")):
        case "submit":
            await cluster.submit(chance)
        case "end":
            cluster.end_one(chance)
        case "shrink":
            await cluster.lends(name, chance.randint(0, 24))
        case "die" if name in DONORS:
            await cluster.die(group, name)
        case "drain" if name in DONORS:
            await cluster.post("nodes", name, chance.choice(("drain", "undrain")), body={"reason": "a test"})
        case _:
            await cluster.post("nodes", name, "lend", body={"at_most_bytes": chance.choice((None, 4 * GIB))})


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_no_start_promises_more_than_donors_lend_though_they_die_drain_and_shrink(tmp_path: Path, seed: int) -> None:
    with running_manager(tmp_path / "m", node_timeout_s=1) as manager:
        asyncio.run(asyncio.wait_for(upheaval(Cluster(manager), random.Random(seed)), 10 * DEADLINE_S))

    log = list(entries(tmp_path / "m/manager.db"))
    wrong, starts = check(iter(log))
    kinds = {kind for _, kind, _ in log}

    assert wrong == []
    assert starts >= STARTS
    assert {"NodeLost", "DrainRequested", "LendingOrdered", "JobEnded"} <= kinds


def test_the_checker_finds_a_log_in_which_donors_lend_less() -> None:
    def log(lends: int, copies: int) -> Any:
        swap = {"size_bytes": 100, "copies": copies}
        yield 1, "NodeJoined", {"node": "n", "swap": swap}
        yield 2, "NodeJoined", {"node": "d1", "donor": {"capacity_bytes": lends}}
        yield 3, "NodeJoined", {"node": "d2", "donor": {"capacity_bytes": 10}}
        yield 4, "JobSubmitted", {"spec": {"swap_bytes_per_gpu": 20.0}}
        yield 5, "JobPlaced", {"job_id": "1", "places": [{"node": "n", "gpus": 1}]}
        yield 6, "JobStarted", {"job_id": "1"}

    assert check(log(10, 1)) == ([], 1)
    assert [line.partition(";")[0] for line in check(log(9, 1))[0]] == ["entry 6: job 1: 1 bytes have no place"]
    assert [line.partition(";")[0] for line in check(log(90, 2))[0]] == ["entry 6: job 1: 10 bytes have no place"]


def test_pages_have_no_room_with_their_own_nodes_donor_nor_twice_with_another() -> None:
    assert unplaced({"n": 50, "d": 10}, {"n": 20}, {}) == 10
    assert unplaced({"d1": 20, "d2": 20}, {"n": 20}, {"n": 2}) == 0
    assert unplaced({"d1": 40, "d2": 10}, {"n": 20}, {"n": 2}) == 10
