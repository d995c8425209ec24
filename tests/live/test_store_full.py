"""The disk below the store is full: nothing is promised that is not kept, and all goes on once there is room."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.errors import FarsideError
from tests.live.fake_agent import FakeNode
from tests.live.manager import Manager
from tests.support.ports import free_port
from tests.support.programs import Outcome, outcome
from tests.support.waiting import until
from tests.web.scene import Scene

DEADLINE_S = 180.0
# What SQLite needs to write what it has begun; less than an entry of the log needs beside it.
ROOM_BYTES = 20_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if outcome(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]).status:
        pytest.skip("file systems can't be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def metric(port: int, name: str) -> float:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:  # it is being started again
        return -1.0
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), -1.0)


def submit_many(manager: Manager) -> None:
    for _ in range(200):
        manager.submit(env={"A": "x" * 3000})


@pytest.mark.long
def test_a_full_store_refuses_jobs_keeps_ends_and_goes_on(small_disk: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"sqlite:///{small_disk}/manager.db"
    manager = Manager(tmp_path / "m", store_url=url, metrics_listen=f"127.0.0.1:{port}")
    manager.start()
    scene = Scene(manager)
    try:
        node = FakeNode("n1")
        scene.join(node)
        job = manager.submit()
        scene.runs(job)
        filler = small_disk / "filler"
        left = os.statvfs(small_disk)
        filler.write_bytes(b"x" * (left.f_bavail * left.f_bsize - ROOM_BYTES))

        with pytest.raises(FarsideError, match="full; nothing was written"):
            submit_many(manager)
        known = len(manager.get("jobs", all="true")["jobs"])
        node.end((f"{job}.0", 1))  # it can't be written down, and the node keeps it
        assert manager.job(job)["state"] == "running"
        saved = farside("store", "backup", str(tmp_path / "backup.db"), "--set", f"store_url={url}")
        filler.unlink()
        scene.join(node)  # as an agent does by itself, after a while
        scene.until_job(job, "done")

        assert len(manager.get("jobs", all="true")["jobs"]) == known
        until(lambda: metric(port, "farside_manager_brain_answers") == 1, what="a brain", deadline_s=DEADLINE_S)
        assert manager.submit()
    finally:
        scene.close()
        manager.stop()
    check = farside("store", "check", "--set", f"store_url={url}")
    assert (saved.status, check.status, "the log is sound" in check.stdout) == (0, 0, True), saved.stderr + check.stdout


def farside(*arguments: str) -> Outcome:
    return outcome([sys.executable, "-m", "farside", *arguments, "-c", "/dev/null"])
