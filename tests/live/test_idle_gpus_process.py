"""Idle GPUs with real processes: an agent that asks a stand-in for NVML, and a manager that is killed meanwhile."""

import subprocess
import sys
from pathlib import Path

import pytest

from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import IdleWarningLifted, JobIdleWarned, JobStopping
from tests.agent.process import agent, until_connected, write_config
from tests.agent.stand_in_nvml import StandInNvml
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

RULE = 'name = "p", nodes = "*", idle_gpus = "end", idle_gpus_after_s = 2, idle_gpus_grace_s = 6'


def shown(manager: Manager, job: str) -> str:
    """What `farside show` and `farside explain` print."""
    at = ["--manager", manager.address.endpoint]
    commands = ([sys.executable, "-m", "farside", what, job, *at] for what in ("show", "explain"))
    return "\n".join(subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in commands)


@pytest.mark.long
def test_a_job_is_warned_spared_warned_again_and_ended_though_its_manager_was_killed(tmp_path: Path) -> None:
    nvml = StandInNvml(tmp_path / "nvml", gpus=2)
    nvml.set("70", "0")
    (tmp_path / "a").mkdir()
    with running_manager(tmp_path / "m", partition=f"[{{{RULE}}}]") as manager:
        config = write_config(tmp_path / "a", manager.url, token=manager.node_token("n1"), declared_gpus=-1)
        with agent(config, on=nvml.on):
            until_connected(tmp_path / "a")
            job = manager.submit("sleep", "600", cwd=str(tmp_path), gpus=2, grace_s=1)
            until(lambda: manager.job(job)["state"] == "running", what="a job that runs")
            calm = shown(manager, job)
            nvml.set("0")
            until(lambda: manager.job(job)["idle_gpus"], what="the warning")
            nvml.set("0", "70")
            until(lambda: not manager.job(job)["idle_gpus"], what="its end, as one GPU is used")
            nvml.set("0")
            warned = until(lambda: manager.job(job)["idle_gpus"], what="the second warning")
            told = shown(manager, job)
            manager.kill_all()
            manager.start()
            until(lambda: manager.job(job)["state"] == "cancelled", what="the job's end")
            ended = manager.job(job)
        uuids = [gpu["uuid"] for gpu in manager.get("nodes")["nodes"][0]["gpus"]]
        entries = manager.entries()
        told_by = [
            "--set",
            f"store_url={manager.store_url}",
            "--set",
            f"partition=[{{{RULE}}}]",
            "--set",
            "policy=fifo",
        ]
        command = [sys.executable, "-m", "farside", "sim", "replay", "-c", "/dev/null", *told_by]
        replayed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "idle_gpus is not simulated" in replayed.stderr
    assert uuids == ["GPU-0", "GPU-1"]
    assert "it is warned if all its GPUs are less than 5 % busy for 2 s, and is ended 6 s later" in calm
    assert "idle GPUs all less than 5 % busy since " in told
    assert "all of its 2 GPUs were less than 5 % busy since " in told
    assert ended["reason"].startswith("all of its 2 GPUs were less than 5 % busy for ")
    kinds = [type(entry.event) for entry in entries if isinstance(entry.event, JobIdleWarned | IdleWarningLifted)]
    assert kinds == [JobIdleWarned, IdleWarningLifted, JobIdleWarned]
    (stopped,) = [entry for entry in entries if isinstance(entry.event, JobStopping)]
    assert stopped.at_s >= warned["ends_s"]
    assert [*violations(entries)] == []
