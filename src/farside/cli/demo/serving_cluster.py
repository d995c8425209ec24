"""The demo's serving scene on a cluster: the deployment's GPUs are leases of a manager, beside a training job.

The nodes' GPUs are declared ones without a device; parts of this machine's cores are served in their place. While
Poisson requests come the lease's node is drained, the manager is killed and started again, a lease ends that a
reservation of its node keeps from going on, and its successor goes on. Then the load steps up, for which another lease
is needed, and an executor is killed, as in the scene without a manager (serving.py).
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farside.cli.demo.serving import Course, ServingScene, measured, serve_load
from farside.cli.demo.serving import scene_faults as load_faults
from farside.cli.demo.serving_rig import Mix, Running
from farside.cli.demo.show import Show
from farside.cli.keygen import make_key
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.sandbox import control
from farside.sandbox.session import open_sandbox
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import LimitExtended
from farside.scheduler.manager.store.event_store import EventStore
from farside.serve.profile.folder import read_header

SANDBOX = ("--cluster", "5x1", "--donors", "1", "--size", "64MiB")
NAME = "demo"
# A GPU is half a core: manager, agents, front and client need the rest. What comes from the step on needs two.
LEASES_MAX, CAPACITY_PCT = 2, 50
COURSE = Course(share=0.2, times=3.0, step_s=75.0, kill_s=100.0, end_s=117.0, back_after_step_s=15.0)
LEASE_S, REPLACE_BEFORE_S = 50.0, 25.0
# Seconds of the load, all before the step: the drain, the reservation, the manager's death, its return.
DRAIN_S, RESERVE_S, KILL_S, BACK_S = 12.0, 20.0, 24.0, 29.0
# From then on the node of the lease that follows the drain is reserved: after that one's end, before another `LEASE_S`.
RESERVED_IN_S = 60.0
_TRAINING = {"argv": ["/bin/sleep", "600"], "gpus": 1, "name": "train", "output": "/dev/null", "cwd": "/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScene:
    """What happened.

    Attributes:
        served: What came of the load.
        drained: The node that was drained.
        reserved: The node that was reserved.
        extended: Times that the manager let a lease go on.
        leases: Nodes by the job of each lease that there was, in their order.
        gpu_hours: That the manager has counted for the deployment.
        training: State of the training job at the end.
        violations: What the log's checker finds.
    """

    served: ServingScene
    drained: str
    reserved: str
    extended: int
    leases: Mapping[str, str]
    gpu_hours: float
    training: str
    violations: tuple[str, ...]


def play(show: Show, folder: Path) -> ClusterScene:
    """Plays it.

    Raises:
        FarsideError: The models could not be measured, or sandbox or deployment did not start.
    """
    models = folder / "models"
    models.mkdir()
    mix = measured(show, models, capacity_pct=CAPACITY_PCT, count=LEASES_MAX)
    show.begin("a manager and five nodes with a declared GPU each start, with a training job")
    with open_sandbox(SANDBOX, state=folder / "cluster") as sandbox:
        state = sandbox.state
        with ManagerClient(find_manager(state=state)) as client:
            (training,) = client.post("jobs", body=_TRAINING)["ids"]
        show.end(f"job {training} holds a GPU")
        show.begin("the deployment takes leases of the manager")
        with _deployment(models, mix, state) as running:
            first = running.status().leases
            show.end(", ".join(f"job {one.job} on {one.node}" for one in first))
            show.begin(
                f"Poisson requests for {COURSE.step_s:g} s, through a drain, the manager's death, and leases that end "
                f"or go on; then {COURSE.times:g} times as many, and an executor is killed"
            )
            served, (drained, reserved) = asyncio.run(_load(running, state))
        leases, gpu_hours, ended = _of_the_manager(state, training)
        show.end(f"{len(served.result.ended):,} requests, {len(leases)} leases, {served.status.deaths} executor died")
        with closing(EventStore(load_config(ManagerConfig, (sandbox_config(state),)).store_url)) as store:
            entries = list(store.read_all())
    return ClusterScene(
        served=served, drained=drained, reserved=reserved, leases=leases,
        extended=sum(isinstance(entry.event, LimitExtended) for entry in entries), gpu_hours=gpu_hours,
        training=ended, violations=tuple(violations(entries)),
    )  # fmt: skip


def _deployment(models: Path, mix: Mix, state: Path) -> Running:
    make_key(models / "key")
    header = read_header(models / "profile")
    assert header is not None
    extra = (
        f'name = "{NAME}"', f'device = "{header.device.driver}"', f"gpus_max = {LEASES_MAX}", 'key_file = "key"',
        f"capacity_pct = {CAPACITY_PCT}", f"lease_s = {LEASE_S}", f"replace_before_s = {REPLACE_BEFORE_S}",
    )  # fmt: skip
    return Running(models, mix, COURSE.rates(mix), extra=extra, options=("--state", str(state)))


async def _load(running: Running, state: Path) -> tuple[ServingScene, tuple[str, str]]:
    return await asyncio.gather(serve_load(running, COURSE), _events(running, state))


async def _events(running: Running, state: Path) -> tuple[str, str]:
    """What befalls the cluster meanwhile; the nodes that were drained and reserved."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def at(seconds: float) -> None:
        await asyncio.sleep(max(0.0, began_s + seconds - loop.time()))

    async def node() -> str:
        return (await asyncio.to_thread(running.status)).glets[0].node

    await at(DRAIN_S)
    drained = await node()
    await asyncio.to_thread(_order, state, "nodes", drained, "drain", body={"reason": "new disks"})
    await at(RESERVE_S)
    reserved, now_s = await node(), time.time()
    times = {"from_s": now_s + RESERVED_IN_S, "to_s": now_s + 2 * RESERVED_IN_S}
    await asyncio.to_thread(_order, state, "reservations", body={"nodes": [reserved], **times, "reason": "new disks"})
    await at(KILL_S)
    await asyncio.to_thread(control.kill_manager, state)
    await at(BACK_S)
    await asyncio.to_thread(control.start_manager, state)
    return drained, reserved


def _order(state: Path, *route: str, body: Mapping[str, object]) -> None:
    with ManagerClient(find_manager(state=state)) as client:
        client.post(*route, body=body)


def _of_the_manager(state: Path, training: str) -> tuple[dict[str, str], float, str]:
    with ManagerClient(find_manager(state=state)) as client:
        jobs: list[Mapping[str, Any]] = client.get("jobs", all="true")["jobs"]
        rows = client.get("usage", by="deployment")["rows"]
    leases = {job["id"]: ", ".join(job["nodes"]) for job in jobs if job["deployment"] == NAME and job["start_s"]}
    hours = sum(row["gpu_hours"] for row in rows if row["name"] == NAME)
    return leases, hours, next(job["state"] for job in jobs if job["id"] == training)


def scene_faults(scene: ClusterScene) -> tuple[str, ...]:
    """What was out of bounds, a line each."""
    served = scene.served
    changes = [one for one in served.status.changes if not one.problem]
    found = [*scene.violations, *load_faults(served)]
    if any(one.node == scene.drained for one in served.status.glets):
        found.append(f"{scene.drained} drains, and has executors still")
    moved = sum(one.cause == "devices" and one.at_s < served.stepped_at_s for one in changes)
    if moved < 3:
        found.append(f"{moved} times leases were taken or changed; the start, the drain and an end are three at least")
    if any(one.node == scene.reserved for one in served.status.glets):
        found.append(f"{scene.reserved} is reserved, and a lease there did not end before")
    if max((one.gpus for one in changes if one.at_s >= served.stepped_at_s), default=0) < LEASES_MAX:
        found.append(f"no plan on {LEASES_MAX} leases followed the step")
    if not scene.extended:
        found.append("the manager let no lease go on")
    if scene.gpu_hours <= 0:
        found.append("the manager has counted no GPU hours of the deployment")
    if scene.training != "running":
        found.append(f"the training job is {scene.training}")
    return tuple(found)
