"""A deployment on the nodes of a sandbox's manager: leases beside a training job, a drain, and processes that die."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farside.agent.serving.partition.gpu import GpuDriver
from farside.cli.demo.serving_load import poisson
from farside.cli.keygen import make_key
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.sandbox import control
from farside.sandbox.session import open_sandbox
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.store.event_store import EventStore
from farside.serve.status import ServeStatus
from tests.serving.test_run import MODELS, Deployed
from tests.support.waiting import until

pytestmark = pytest.mark.long
SANDBOX = ("--cluster", "3x1", "--donors", "1", "--size", "64MiB")
LEASE_S = 40.0  # as short as one may be
TRAINING = {"argv": ["/bin/sleep", "600"], "gpus": 1, "name": "train", "output": "/dev/null", "cwd": "/"}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with open_sandbox(SANDBOX, state=tmp_path_factory.mktemp("s") / "s") as sandbox:
        yield sandbox.state


def deployed_on(state: Path, folder: Path) -> Deployed:
    core = min(os.sched_getaffinity(0))
    extra = f'gpus_max = 2\ncpu_devices = [[{core}]]\nkey_file = "key"\nspare_gpus = 1\nname = "t"'
    return Deployed(folder, "--state", str(state), extra=extra).ready()


def asked(state: Path, *path: str, **query: str) -> Any:
    with ManagerClient(find_manager(state=state)) as client:
        return client.get(*path, **query)


def jobs_of(running: Deployed) -> dict[str, str]:
    """Nodes of the leases that serve, by their jobs."""
    return {one.job: one.node for one in running.status().leases if one.state == "running" and not one.leaving}


def has_moved(status: ServeStatus, node: str) -> bool:
    nodes = [one.node for one in status.glets] + [one.node for one in status.leases]
    return status.ready and node not in nodes


def test_a_front_of_the_same_name_elsewhere_is_refused_and_a_lease_that_others_cancel_is_named(
    tmp_path: Path, state: Path
) -> None:
    for name in ("d", "e"):
        (tmp_path / name).mkdir()
        make_key(tmp_path / name / "key")
    first = deployed_on(state, tmp_path / "d")
    try:
        extra = (tmp_path / "d" / "serving.toml").read_text().partition("[model")[0].partition('device = "whole"\n')[2]
        second = Deployed(tmp_path / "e", "--state", str(state), extra=extra)
        assert second.process.wait(60) == 1
        assert "deployment t of" in second.log.read_text()
        assert "end that one, or choose another name" in second.log.read_text()

        lease = until(lambda: first.status().leases, what="there is a lease")[0].job
        with ManagerClient(find_manager(state=state)) as client:
            client.post("jobs", lease, "cancel")
        until(lambda: f"lease {lease}: " in first.status().lease_problem, what="the lost lease is named")
    finally:
        first.end()
    until(lambda: not asked(state, "jobs")["jobs"], what="leases are given back")


def test_a_lease_without_the_gpu_that_is_to_serve_says_what_its_node_lacks(tmp_path: Path, state: Path) -> None:
    problem = GpuDriver().capabilities().problem
    if not problem:
        pytest.skip("this machine has a GPU")
    folder = tmp_path / "d"
    folder.mkdir()
    make_key(folder / "key")
    extra = 'gpus_max = 1\nkey_file = "key"\nname = "t"'
    running = Deployed(folder, "--state", str(state), device="gpu", extra=extra).ready()
    try:
        why = until(
            lambda: next((one.problem for one in running.status().changes if one.problem), ""), what="a plan has failed"
        )
        assert "the old plan stays: an executor did not become ready: worker " in why
        assert problem in why
        assert not running.status().ready
    finally:
        running.end()
    until(lambda: not asked(state, "jobs")["jobs"], what="the lease is given back")


def test_a_lease_goes_on_beyond_its_first_limit_on_a_full_cluster_and_takes_no_other_gpu(
    tmp_path: Path, state: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    make_key(folder / "key")
    with ManagerClient(find_manager(state=state)) as client:
        training: list[str] = client.post("jobs", body={**TRAINING, "count": 2})["ids"]
    core = min(os.sched_getaffinity(0))
    extra = (
        f'gpus_max = 1\ncpu_devices = [[{core}]]\nkey_file = "key"\nname = "t"\nlease_s = {LEASE_S}\n'
        f"replace_before_s = {LEASE_S / 2}"
    )
    running = Deployed(folder, "--state", str(state), extra=extra).ready()
    try:
        until(lambda: running.status().ready, what="it serves")
        (lease,) = jobs_of(running)
        until(lambda: asked(state, "jobs", lease)["held_s"] > LEASE_S + 2, what="more than its limit", deadline_s=120)

        assert [*jobs_of(running)] == [lease]
        assert running.status().ready
        assert asked(state, "jobs", lease)["left_s"] > LEASE_S / 4
        seen = [asked(state, "jobs", job) for job in training]
        assert [(one["state"], one["starts"]) for one in seen] == [("running", 1)] * 2
        kinds = [one["type"] for one in asked(state, "jobs", lease, "history")["entries"]]
        assert "LimitExtended" in kinds
    finally:
        running.end()
        with ManagerClient(find_manager(state=state)) as client:
            for job in training:
                client.post("jobs", job, "cancel")
    until(lambda: not asked(state, "jobs")["jobs"], what="all is over")


def test_a_lease_leaves_a_node_that_the_file_excludes_after_a_reload(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    make_key(folder / "key")
    core = min(os.sched_getaffinity(0))
    extra = f'gpus_max = 1\ncpu_devices = [[{core}]]\nkey_file = "key"\nname = "t"'
    # As systemd starts it; below nohup it would ignore the signal that follows.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    running = Deployed(folder, "--state", str(state), extra=extra)
    signal.signal(signal.SIGHUP, inherited)
    try:
        running.ready()
        until(lambda: running.status().ready, what="it serves")
        ((lease, node),) = jobs_of(running).items()
        file = folder / "serving.toml"
        file.write_text(file.read_text().replace("gpus_max", f'exclude = ["{node}"]\ngpus_max'))
        running.process.send_signal(signal.SIGHUP)
        running.process.wait(60)
        assert asked(state, "jobs", lease)["state"] == "running"

        running.again().ready()
        until(lambda: has_moved(running.status(), node), what="the excluded node is left", deadline_s=120)

        ((other, _),) = jobs_of(running).items()
        assert asked(state, "jobs", other)["spec"]["exclude"] == [node]
        until(lambda: asked(state, "jobs", lease)["state"] == "cancelled", what="its lease is given back")
    finally:
        running.end()
    until(lambda: not asked(state, "jobs")["jobs"], what="leases are given back")


def test_leases_move_from_a_node_that_drains_and_outlive_front_and_manager(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    make_key(folder / "key")
    with ManagerClient(find_manager(state=state)) as client:
        client.post("jobs", body=TRAINING)
    running = deployed_on(state, folder)
    try:
        # One that serves and a spare one, beside the training job.
        until(lambda: running.status().ready and len(jobs_of(running)) == 2, what="leases serve")
        assert {job["deployment"] for job in asked(state, "jobs")["jobs"]} == {"", "t"}
        node = running.status().glets[0].node

        async def test() -> None:
            times = poisson(dict.fromkeys(MODELS, 20.0), 8.0, 1)
            load = asyncio.ensure_future(running.load(times).run(times))

            def disturb() -> None:
                with ManagerClient(find_manager(state=state)) as client:
                    client.post("nodes", node, "drain", body={"reason": "new disks"})
                until(lambda: has_moved(running.status(), node), what="the drained node is left")
                control.kill_manager(state)
                until(lambda: running.status().manager_away, what="the manager is missed")
                control.start_manager(state)
                until(lambda: not running.status().manager_away, what="the manager is back")

            await asyncio.to_thread(disturb)
            counts = (await load).counts()
            assert counts["lost"] == counts["doubled"] == counts["wrong"] == counts["refused"] == counts["failed"] == 0
            assert counts["met"] > 0.5 * len(times), counts

        asyncio.run(test())
        until(lambda: asked(state, "nodes", node)["state"] == "drained", what="nothing is left there")
        told = until(lambda: asked(state, "deployments")["deployments"], what="the manager is told")
        assert [(one["name"], one["ready"]) for one in told] == [("t", True)]

        before, processes = jobs_of(running), {one.pid for one in running.status().glets}
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        running.again().ready()
        until(lambda: running.status().ready, what="it serves again")
        assert jobs_of(running) == before
        assert {one.pid for one in running.status().glets} == processes, "executors are taken over"
        assert [one.cause for one in running.status().changes] == ["front"]

        assert running.end() == 0
        assert not (folder / "s.state").exists()
        until(lambda: [one["name"] for one in asked(state, "jobs")["jobs"]] == ["train"], what="leases are given back")
        (used,) = asked(state, "usage", by="deployment")["rows"]
        assert (used["name"], used["gpu_hours"] > 0) == ("t", True)
        assert asked(state, "deployments")["deployments"] == []
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
    with closing(EventStore(load_config(ManagerConfig, (sandbox_config(state),)).store_url)) as store:
        assert list(violations(list(store.read_all()))) == []
