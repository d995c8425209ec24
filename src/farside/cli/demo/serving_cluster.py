"""The demo's serving scene on a cluster: the deployment's GPUs are leases of a manager, beside a training job.

The nodes' GPUs are declared ones without a device; parts of this machine's cores are served in their place. While
Poisson requests come the lease's node is drained, the manager is killed and started again, a lease ends that a
reservation of its node keeps from going on, and its successor goes on.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farside.cli.demo.serving import need_packages
from farside.cli.demo.serving_load import OpenLoop, Outcome, Result, poisson
from farside.cli.demo.serving_rig import Mix, Running, devices, measure, mix_of
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
from farside.serve.status import ServeStatus

MINUTES = 2.0
SANDBOX = ("--cluster", "4x1", "--donors", "1", "--size", "64MiB")
NAME = "demo"
# Of the most that two GPUs serve.
SHARE = 0.1
LEASE_S, REPLACE_BEFORE_S = 50.0, 25.0
# Seconds of the load: when it begins to count, the drain, the reservation, the manager's death, its return, the end.
SETTLE_S, DRAIN_S, RESERVE_S, KILL_S, BACK_S, END_S = 3.0, 12.0, 20.0, 24.0, 29.0, 80.0
# From then on the node of the lease that follows the drain is reserved: after that one's end, before another `LEASE_S`.
RESERVED_IN_S = 60.0
VIOLATED_MAX = 0.01
_TRAINING = {"argv": ["/bin/sleep", "600"], "gpus": 1, "name": "train", "output": "/dev/null", "cwd": "/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScene:
    """What happened.

    Attributes:
        result: What came of each request.
        status: What the deployment says of itself at the end.
        drained: The node that was drained.
        reserved: The node that was reserved.
        extended: Times that the manager let a lease go on.
        leases: Nodes by the job of each lease that there was, in their order.
        gpu_hours: That the manager has counted for the deployment.
        training: State of the training job at the end.
        violations: What the log's checker finds.
    """

    mix: Mix
    rates: Mapping[str, float]
    result: Result
    status: ServeStatus
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
    need_packages()
    models = folder / "models"
    models.mkdir()
    show.begin(f"three models are measured on a core, {MINUTES:g} minutes at most")
    mix = mix_of(measure(models, minutes=MINUTES))
    rates = mix.rates(SHARE)
    show.end(", ".join(f"{name} {ms:g} ms" for name, ms in sorted(mix.slo_ms.items())) + " are their SLOs")
    show.begin("a manager and four nodes with a declared GPU each start, with a training job")
    with open_sandbox(SANDBOX, state=folder / "cluster") as sandbox:
        state = sandbox.state
        with ManagerClient(find_manager(state=state)) as client:
            (training,) = client.post("jobs", body=_TRAINING)["ids"]
        show.end(f"job {training} holds a GPU")
        make_key(models / "key")
        header = read_header(models / "profile")
        assert header is not None
        extra = (
            f'name = "{NAME}"', f'device = "{header.device.driver}"', f"gpus_max = {len(devices())}",
            'key_file = "key"', f"lease_s = {LEASE_S}", f"replace_before_s = {REPLACE_BEFORE_S}",
        )  # fmt: skip
        show.begin("the deployment takes leases of the manager")
        with Running(models, mix, rates, extra=extra, options=("--state", str(state))) as running:
            first = running.status().leases
            show.end(", ".join(f"job {one.job} on {one.node}" for one in first))
            show.begin(f"Poisson requests for {END_S:g} s; a drain, the manager's death, leases that end or go on")
            result, drained, reserved = asyncio.run(_load(running, state, rates))
            status = running.status()
        leases, gpu_hours, ended = _of_the_manager(state, training)
        show.end(f"{len(result.ended):,} requests, {len(leases)} leases one after the other")
        with closing(EventStore(load_config(ManagerConfig, (sandbox_config(state),)).store_url)) as store:
            entries = list(store.read_all())
    return ClusterScene(
        mix=mix, rates=rates, result=result, status=status, drained=drained, reserved=reserved, leases=leases,
        extended=sum(isinstance(entry.event, LimitExtended) for entry in entries), gpu_hours=gpu_hours,
        training=ended, violations=tuple(violations(entries)),
    )  # fmt: skip


async def _load(running: Running, state: Path, rates: Mapping[str, float]) -> tuple[Result, str, str]:
    client = OpenLoop("127.0.0.1", running.http, await asyncio.to_thread(running.targets))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    load = asyncio.ensure_future(client.run(poisson(rates, END_S, 1)))

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
    return await load, drained, reserved


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
    found = list(scene.violations)
    share = scene.result.violated_share("", SETTLE_S)
    if share > VIOLATED_MAX:
        found.append(f"{100 * share:.1f} % of requests violated their SLO; {100 * VIOLATED_MAX:g} % may")
    counts = scene.result.counts()
    wrong: tuple[Outcome, ...] = ("lost", "doubled", "wrong", "refused", "failed")
    found += [f"{counts[one]} requests were {one}" for one in wrong if counts[one]]
    if any(one.node == scene.drained for one in scene.status.glets):
        found.append(f"{scene.drained} drains, and has executors still")
    moved = sum(one.cause == "devices" and not one.problem for one in scene.status.changes)
    if moved < 3:
        found.append(f"{moved} times leases were taken or changed; the start, the drain and an end are three at least")
    if any(one.node == scene.reserved for one in scene.status.glets):
        found.append(f"{scene.reserved} is reserved, and a lease there did not end before")
    if not scene.extended:
        found.append("the manager let no lease go on")
    if scene.gpu_hours <= 0:
        found.append("the manager has counted no GPU hours of the deployment")
    if scene.training != "running":
        found.append(f"the training job is {scene.training}")
    return tuple(found)
