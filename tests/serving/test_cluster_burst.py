"""A burst on a deployment, and a training gang of a lower QOS that makes room for it."""

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest

from farside.cli.demo.serving_load import poisson
from farside.cli.keygen import make_key
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.sandbox import control
from farside.sandbox.session import open_sandbox
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.store.event_store import EventStore
from tests.serving.test_cluster import SANDBOX, asked, jobs_of
from tests.serving.test_run import MODELS, Deployed
from tests.support.waiting import text_of, until

pytestmark = pytest.mark.long

CLASSES = """
[[qos]]
name = "serving"
priority = 10
[[qos]]
name = "batch"
priority = 1
"""
# What trains here: it goes on from its checkpoint, which it writes when it has to stop.
TRAINING = """#!/bin/sh
trap 'echo "$RANK" >> "$1/checkpoint"; exit 0' TERM
echo "$RANK ${FARSIDE_RESUME:-0}" >> "$1/started"
while :; do sleep 0.1; done
"""
# By its profile a GPU serves 40 requests a second: one is enough for these, and two for those of the burst.
LATENCY_MS, RATE, BURST, BURST_S = 200.0, 4, 18.0, 45.0
OTHER_NUMBERS = 40
GIVEN_BACK_S = 150.0  # three periods of 20 s with lower rates, and the moments around


def test_a_preemptible_gang_makes_room_for_a_burst_and_goes_on_from_its_checkpoint_after_it(tmp_path: Path) -> None:
    folder, gang = tmp_path / "d", tmp_path / "gang"
    for one in (folder, gang):
        one.mkdir()
    make_key(folder / "key")
    (gang / "train").write_text(TRAINING)
    with open_sandbox(SANDBOX, state=tmp_path / "s") as sandbox:
        state = sandbox.state
        control.kill_manager(state)
        with sandbox_config(state).open("a") as file:
            file.write(CLASSES)
        control.start_manager(state)
        job = {
            "argv": ["/bin/sh", str(gang / "train"), str(gang)], "gpus": 2, "name": "train", "qos": "batch",
            "preemptible": True, "checkpoint_dir": str(gang), "output": "/dev/null", "cwd": "/",
        }  # fmt: skip
        with ManagerClient(find_manager(state=state)) as client:
            # Two managers of one machine give their jobs of one number the same port, and test_cluster has one, too.
            for _ in range(OTHER_NUMBERS):
                client.post("jobs", body={"argv": ["true"], "gpus": 1, "output": "/dev/null", "cwd": "/"})
            (training,) = client.post("jobs", body=job)["ids"]
        until(lambda: len(text_of(gang / "started").split("\n")) == 3, what="both processes train")
        burst(state, folder, gang, training)
        until(lambda: [one["name"] for one in asked(state, "jobs")["jobs"]] == ["train"], what="leases are given back")
        with closing(EventStore(load_config(ManagerConfig, (sandbox_config(state),)).store_url)) as store:
            assert list(violations(list(store.read_all()))) == []


def burst(state: Path, folder: Path, gang: Path, training: str) -> None:
    core = min(os.sched_getaffinity(0))
    extra = f'gpus_max = 2\ncpu_devices = [[{core}]]\nkey_file = "key"\nname = "t"\nqos = "serving"'
    running = Deployed(folder, "--state", str(state), extra=extra, latency_ms=LATENCY_MS, rate=RATE).ready()
    try:
        until(lambda: running.status().ready and len(jobs_of(running)) == 1, what="a lease serves beside the gang")
        assert asked(state, "jobs", training)["state"] == "running"

        async def test() -> None:
            times = poisson(dict.fromkeys(MODELS, BURST), BURST_S, 1)
            load = asyncio.ensure_future(running.load(times).run(times))
            await asyncio.to_thread(
                until, lambda: len({one.glet.gpu for one in running.status().glets}) == 2, what="two GPUs serve",
                deadline_s=BURST_S,
            )  # fmt: skip
            found = await asyncio.to_thread(asked, state, "jobs", training)
            assert (found["state"], found["preemptions"]) == ("waiting", 1)
            counts = (await load).counts()
            assert counts["lost"] == counts["doubled"] == counts["wrong"] == counts["refused"] == counts["failed"] == 0
            assert counts["met"] > 0.5 * len(times), counts

        asyncio.run(test())
        assert sorted(text_of(gang / "checkpoint").split()) == ["0", "1"], "both have written it before they ended"
        again = {"0 0", "1 0", "0 1", "1 1"}
        until(
            lambda: set(text_of(gang / "started").split("\n")) - {""} == again, what="the gang goes on from there",
            deadline_s=GIVEN_BACK_S,
        )  # fmt: skip
        assert len(jobs_of(running)) == 1
        assert running.status().ready
        assert running.end() == 0
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
