"""Records what this version leaves on disks: `python -m tests.live.record_store FOLDER`, run once with each version.

FOLDER is `tests/live/recorded/COMMIT`, beside what `record_version.py` has left there. It gets

* ``manager.db`` and ``manager.db.archive``: a store with an image, entries behind it and older ones in the archive;
  jobs in every phase, nodes with every fact that an agent can tell, drained, asleep, lost, reserved
* ``shown.json``: what the manager showed of it
* ``settings.toml``: the manager's
* ``agent``: the state folder of an agent that was killed with a task that runs and one whose end nobody has heard of

`test_upgrade.py` goes on from them.
"""

import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import structs

from farside.agent import messages as m
from farside.scheduler.manager.model.event import (
    CancelRequested,
    DrainRequested,
    Entry,
    HoldRequested,
    JobSubmitted,
    NodeLost,
    NodesReserved,
    NodesWanted,
    PowerChanged,
    ReservationCancelled,
    SchedulerTookLead,
)
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.role import Role, gpus_of
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.store.archive import Archive
from farside.scheduler.manager.store.compact import compact
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.load import whole_state
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.transaction import Draft
from farside.scheduler.manager.view.view import show_job_in_full, show_node, show_reservation
from farside.scheduler.power.state import Phase as PowerPhase
from tests.agent.process import agent, kill, until_connected, write_config
from tests.live.manager import running_manager
from tests.live.world import World, rules
from tests.support.waiting import until

BEGIN_S, DAY_S = 1_700_000_000.0, 86_400.0
KEEP_S = 90 * DAY_S
POLICY = "srtf"
SETTINGS = f"""\
policy = "{POLICY}"
min_run_s = 0
node_timeout_s = 5
keep_history_s = 0
run_as = "starter"
"""
WORKERS = Role(name="worker", argv=("work",), count=2, cpus=1.0)
SERVERS = Role(name="ps", argv=("serve",), count=1, gpus=0, cpus=2.0, memory_bytes=1e9, is_service=True)


def hello(node: str, *, gpus: int = 4, ill: bool = False, **more: object) -> m.Hello:
    told = tuple(m.Gpu(index=at, model="H200", healthy=True, power_w=70.0) for at in range(gpus))
    if ill:
        told = (*told[:-1], m.Gpu(index=gpus - 1, model="H200", healthy=False, reason="XID 79"))
    facts: dict[str, object] = {
        "boot_id": "boot-1", "incarnation": "one", "version": "0.9", "cpus": 16, "memory_bytes": 1 << 36,
        "headroom_bytes": 1 << 35, "tasks": (), "can": ("probe", "lending"), "agent": f"agent-{node}", **more,
    }  # fmt: skip
    return m.Hello(node=node, gpus=told, **facts)  # type: ignore[arg-type]


def joins(world: World, told: m.Hello) -> None:
    for event in AgentLine(told, "10.0.0.7").joined(world.state):
        world.tell(event)
    world.settle()


def submits(world: World, spec: JobSpec, *, user: str = "ann", count: int = 1, **more: Any) -> str:
    """Its number. ``more``: ``key`` and ``is_held``."""
    number = world.state.next_number
    world.does(JobSubmitted(spec=spec, user=user, uid=1000, count=count, **more))
    return str(number)


def job(gpus: int = 1, **more: object) -> JobSpec:
    return structs.replace(JobSpec(argv=("train", "--fast"), gpus=gpus, cwd="/home/ann"), **more)


def lived() -> tuple[World, int]:
    """A world in which everything has happened, and after how many entries of it the image is made."""
    world = World(rules(POLICY), nodes=0)
    world.now_s = BEGIN_S
    donor = m.Donor(node="far-n1", control="tcp:0.0.0.0:7900", has_rdma=True, free_bytes=1 << 33, lent_bytes=1 << 30)
    joins(world, hello("n0", swap=m.Swap(size_bytes=1 << 35, used_bytes=1 << 30, own_bytes=1 << 29)))
    joins(world, hello("n1", donor=donor))
    joins(world, hello("n2"))
    old = submits(world, job(2), count=2)
    for one in (f"{old}_0", f"{old}_1"):
        world.runs(one)
        world.pass_s(60.0)
        world.exits(one)
    world.pass_s(100 * DAY_S)  # so long that they are forgotten, and their entries stand in the archive
    well = submits(world, job(1, env={"A": "b"}, name="well"), key="once")
    world.runs(well)
    world.pass_s(30.0)
    world.exits(well)
    badly = submits(world, job(2, ranks=JobSpec(argv=()).ranks))
    world.runs(badly)
    world.exits(badly, 3, "exit code 3")
    late = submits(world, job(1, time_limit_s=10.0))
    world.runs(late)
    world.pass_s(20.0)
    world.exits(late, 143, "time_limit")
    half = len(world.log)

    joins(world, hello("n3", users=("bob",)))
    joins(world, hello("n4", ill=True))
    joins(world, hello("n5", gpus=2))
    joins(world, hello("n6", gpus=2))
    joins(world, hello("n7", gpus=2))
    world.does(DrainRequested(node="n5", reason="new disks", by="root"))
    world.does(NodesWanted(nodes=6, needed=4, reason="2 above what jobs need"))
    note = NodePowerRecord(
        phase=PowerPhase.OFF, since_s=world.now_s, reason="idle", drain_number=3, number=7, past_boots=("boot-0",),
        stops_s=(world.now_s - 60.0,), tries=1, stop_s=world.now_s - 60.0, stay_until_s=world.now_s + 600.0,
    )  # fmt: skip
    world.does(PowerChanged(node="n6", generation=world.generation, note=note))
    lost = submits(
        world, job(2, gpu_model="H200", retries=3, time_limit_s=5e3), user="cid"
    )  # on n7, the fullest that fits
    world.runs(lost)
    running = submits(world, job(4, time_limit_s=1e8, checkpoint_dir="/shared/ann"))
    world.runs(running)
    roles = (WORKERS, SERVERS)
    many = submits(world, job(gpus_of(roles), roles=roles, argv=WORKERS.argv, time_limit_s=1e8))
    world.runs(many)
    beaten = submits(world, job(4, time_limit_s=2e8), user="bob")
    world.runs(beaten)
    world.pass_s(30.0)
    winner = submits(world, job(4, time_limit_s=1e4))
    victim = next(one for one in world.state.live_jobs() if one.phase is Phase.STOPPING)
    world.exits(victim.job_id, 143, "preempted")
    world.runs(winner)
    submits(world, job(1), is_held=True)
    world.does(HoldRequested(job_id=winner, by="ann"))
    submits(world, job(1, after=(running,)))
    submits(world, job(8, time_limit_s=1e9, name="sweep"), count=3, key="again")
    gone = submits(world, job(1, account="physics"), is_held=True)
    world.does(CancelRequested(job_id=gone, by="ann"))
    planned = NodesReserved(
        nodes=("n2",), reason="disks", by="root", key="once", begin_s=world.now_s + 1e8, end_s=world.now_s + 2e8
    )
    world.does(planned)
    world.does(structs.replace(planned, nodes=("n1",), reason="thought better of", key=""))
    world.does(ReservationCancelled(reservation_id="m2", by="root"))
    away = world.job(lost).tasks[0].node
    world.does(NodeLost(node=away, reason="silent for 60 s"))
    submits(world, job(1), user="bob")  # on n3, where others' jobs don't run
    submits(world, job(2, time_limit_s=100.0))
    phases = {one.phase for one in world.state.jobs.values()}

    assert phases == {*Phase}, f"no job is {set(Phase) - phases}"
    return world, half


def shown(state: LiveState) -> Mapping[str, object]:
    """What the manager shows of it, at the time of its last entry."""
    return {
        "jobs": [show_job_in_full(one, state.at_s) for one in state.jobs.values()],
        "nodes": [show_node(node) for node in state.nodes.values()],
        "reservations": [show_reservation(one, state, state.at_s) for one in state.maintenance.values()],
        "free": {node.name: [device.gpu for device in node.free_devices] for node in state.nodes.values()},
        "stale": [list(key) for key in state.stale],
        "next_number": state.next_number,
        "requests": sorted([key.kind, key.user, key.key, seq] for key, seq in state.requests.items()),
        "power": {name: node.power is not None and node.power.number for name, node in state.nodes.items()},
    }


def record_store(target: Path, folder: Path) -> None:
    """The world in a store."""
    world, half = lived()
    store = EventStore(f"sqlite:///{folder}/manager.db")
    upgrade(store)

    def write(entries: list[Entry]) -> None:
        for (at_s, generation, is_lead), group in groupby(entries, key=_of_one_write):
            drafts = [Draft(event=entry.event, cause="test") for entry in group]
            if is_lead:
                store.take_lead("test:1", at_s)
            else:
                store.append(drafts, at_s, generation=generation)

    write(world.log[:half])
    done = compact(store, Archive(folder / "manager.db.archive"), world.log[half].at_s, KEEP_S)
    assert done.archived
    assert done.forgotten
    write(world.log[half:])
    state = whole_state(store)
    store.close()
    _join_wal(folder / "manager.db")
    shutil.copy(folder / "manager.db", target / "manager.db")
    shutil.copytree(folder / "manager.db.archive", target / "manager.db.archive", dirs_exist_ok=True)
    (target / "shown.json").write_text(json.dumps(shown(state), indent=1) + "\n")
    (target / "settings.toml").write_text(SETTINGS)


def _of_one_write(entry: Entry) -> tuple[float, int, bool]:
    return entry.at_s, entry.generation, isinstance(entry.event, SchedulerTookLead)


def _join_wal(file: Path) -> None:
    """One file is all of it."""
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
    connection.close()


def record_agent(target: Path, folder: Path) -> None:
    """An agent that has seen a task to its end, has one that runs and one whose end no manager has heard of."""
    (folder / "a").mkdir()
    with running_manager(folder / "m", token_submit="true") as manager:
        config = write_config(folder / "a", manager.url, token=manager.node_token("n1"), declared_gpus=4)
        with agent(config) as process:
            until_connected(folder / "a")
            there = str(folder)
            first = manager.submit("true", cwd=there)
            until(lambda: manager.job(first)["state"] == "done", what="a job that ends", deadline_s=60)
            forgotten = folder / "a/state/tasks" / f"{first}.0-1"
            until(lambda: not forgotten.exists(), what="its files gone", deadline_s=60)
            long = manager.submit("sleep", "600", cwd=there, gpus=2, memory_bytes_per_gpu=1 << 20)
            short = manager.submit("sh", "-c", "until test -e end; do sleep 0.05; done; exit 3", cwd=there)
            for one in (long, short):
                until(lambda: manager.job(one)["state"] == "running", what="both running", deadline_s=60)  # noqa: B023
            manager.stop()
            (folder / "end").touch()
            ended = folder / "a/state/tasks" / f"{short}.0-1" / "state.json"
            until(lambda: '"exited"' in ended.read_text(), what="its end", deadline_s=60)
            kill(process)
            shutil.rmtree(target / "agent", ignore_errors=True)
            shutil.copytree(folder / "a/state", target / "agent", ignore=shutil.ignore_patterns("*.notify"))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        record_store(Path(sys.argv[1]), Path(made))
        record_agent(Path(sys.argv[1]), Path(made))
