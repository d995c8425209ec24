"""An operator with a store, settings and agents of before upgrades: no job is lost, and what was decided still holds.

What versions before have left on disks was recorded by record_store.py.
"""

import asyncio
import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import JobEnded, JobStarted, NodeJoined, SchedulerTookLead
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store.compact import archive_of, whole_log
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.load import whole_state
from farside.scheduler.manager.store.migrate import upgrade
from tests.agent.node import Node
from tests.live.fake_agent import FakeNode
from tests.live.manager import Manager
from tests.live.record_store import lived, shown
from tests.live.test_manager_process import eventually, with_nodes
from tests.live.world import World, rules

RECORDED = tuple(sorted(file.parent for file in (Path(__file__).parent / "recorded").glob("*/manager.db")))


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what one version left."""
    folder = tmp_path / "before"
    shutil.copytree(request.param, folder)
    return folder


def opened(before: Path) -> EventStore:
    """As a manager of now opens it."""
    store = EventStore(f"sqlite:///{before}/manager.db")
    upgrade(store)
    return store


def as_before(before: Path) -> Any:
    return json.loads((before / "shown.json").read_text())


def plain(told: object) -> Any:
    """As JSON gives it back."""
    return msgspec.json.decode(msgspec.json.encode(told))


def missing(old: Any, new: Any, where: str = "") -> list[str]:
    """What of the old is not in the new, or is another there; the new may say more."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{where}.{key} is gone" for key in old.keys() - new.keys()]
        return gone + [
            line for key in old.keys() & new.keys() for line in missing(old[key], new[key], f"{where}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for at, one in enumerate(old) for line in missing(one, new[at], f"{where}[{at}]")]
    return [] if old == new else [f"{where}: {old!r} was, {new!r} is"]


def test_the_jobs_nodes_and_reservations_of_a_store_of_before_are_as_they_were(before: Path) -> None:
    store = opened(before)

    state = whole_state(store)

    store.close()
    assert missing(as_before(before), plain(shown(state))) == []
    assert {job.phase for job in state.jobs.values()} == set(Phase)


def test_its_archive_and_log_say_the_same_as_its_image_and_hold_what_must_hold_of_any_log(before: Path) -> None:
    store = opened(before)
    entries = list(whole_log(store, archive_of(store.url, Path())))
    known = whole_state(store)
    store.close()
    state = LiveState()

    for entry in entries:
        apply(state, entry)

    assert list(violations(entries)) == []
    assert shown(state) == shown(known)
    assert encode_state(state) == encode_state(known)


def test_an_image_made_now_of_a_store_of_before_says_what_the_old_one_said(before: Path) -> None:
    store = opened(before)

    state = decode_state(encode_state(whole_state(store)))

    store.close()
    assert missing(as_before(before), plain(shown(state))) == []


def test_a_brain_of_now_goes_on_from_a_log_of_before_until_every_job_has_ended(before: Path) -> None:
    store = opened(before)
    world = World(rules("srtf"), nodes=0)
    world.log = list(whole_log(store, archive_of(store.url, Path())))
    store.close()
    was = len(world.log)
    world.now_s = world.log[-1].at_s + 1.0
    world.generation = max(entry.generation for entry in world.log)
    world.lead()
    for name, node in list(world.state.nodes.items()):
        world.join(name, gpus=4, boot_id=node.boot_id if node.is_up else "boot-2")
    waiting = {job.job_id for job in world.state.live_jobs()}

    for job in list(world.state.live_jobs()):
        if job.held_by:
            world.release(job.job_id)
    for _ in range(20):
        for job in list(world.state.live_jobs()):
            if job.tasks and not all(task.is_gone for task in job.tasks):
                world.exits(job.job_id)

    assert {job.job_id for job in world.state.live_jobs()} == set()
    assert list(violations(world.log, is_complete=True)) == []
    new = [entry.event for entry in world.log[was:]]
    assert {event.job_id for event in new if isinstance(event, JobEnded)} == waiting
    assert any(isinstance(event, JobStarted) for event in new)
    assert not any(isinstance(event, NodeJoined) and event.node not in world.state.nodes for event in new)


def test_the_recorder_still_makes_a_world_in_which_everything_has_happened() -> None:
    world, half = lived()

    assert {job.phase for job in world.state.jobs.values()} == set(Phase)
    assert 0 < half < len(world.log)


def test_an_agent_of_now_opens_the_state_folder_of_one_before_and_forgets_no_task(before: Path) -> None:
    node = Node(before / "agent")
    key, over = ("2.0", 1), ("3.0", 1)
    ledger = node.runner.ledger
    states = {name: (task.state.state, task.state.exit_code) for name, task in ledger.tasks.items()}

    node.runner.look()

    assert states == {key: ("running", None), over: ("exited", 3)}
    assert (ledger.generation, ledger.forgotten) == (1, (("1.0", 1),))
    assert [known.memory_bytes for known in ledger.tasks.values()] == [2 << 20, 0]
    told = {state.task_id: (state.state, state.cause) for state in node.told}
    assert told == {"2.0": ("lost", "its task supervisor was killed")}  # with the machine of the recording
    node.start("true", task_id="1.0")
    assert node.told[-1].cause == "this start is over"


def test_a_manager_of_now_goes_on_with_store_and_settings_of_before(before: Path, tmp_path: Path) -> None:
    settings: Mapping[str, object] = tomllib.loads((before / "settings.toml").read_text())
    manager = Manager(tmp_path / "m", store_url=f"sqlite:///{before}/manager.db", **settings)  # type: ignore[arg-type]
    was = {job["id"]: job["state"] for job in as_before(before)["jobs"]}
    unfinished = {job for job, state in was.items() if state not in ("done", "failed", "cancelled", "timed_out")}
    seq, drains = opened(before).extent().last_seq, list[tuple[str, str]]()

    def ended() -> bool:
        now = {job["id"]: job["state"] for job in manager.get("jobs", all="true")["jobs"]}
        assert {job: now[job] for job in was.keys() - unfinished} == {job: was[job] for job in was.keys() - unfinished}
        for job in unfinished:
            if manager.job(job)["state"] == "held":
                manager.post("jobs", job, "release")
        return {now[job] for job in unfinished} <= {"done", "timed_out"}  # years have passed since

    async def act() -> None:
        await eventually(ended, "the end of every job of before")
        drains.extend((one["state"], one["reason"]) for one in manager.get("nodes")["nodes"] if one["name"] == "n5")

    try:
        manager.start()
        # The machines have booted: what ran there is lost, and starts again.
        nodes = [FakeNode(f"n{at}", boot_id="boot-2", ends_after_s=0.05) for at in (0, 1, 2, 5)]
        asyncio.run(with_nodes(manager, nodes, act))
        entries = list(whole_log(store := opened(before), archive_of(manager.store_url, Path())))
        store.close()
    finally:
        manager.stop()

    assert list(violations(entries)) == []
    assert any(isinstance(entry.event, SchedulerTookLead) for entry in entries if entry.seq > seq)
    assert drains == [("drained", "new disks")]
    assert nodes[-1].starts == []
