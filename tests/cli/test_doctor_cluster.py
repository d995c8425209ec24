"""`farside doctor` on agents, managers and Slurm: what they would refuse to start over is said before they start."""

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from farside.agent.sense.gpu import open_gpus
from tests.agent.process import write_config
from tests.support.sandbox import farside


def checks(*files: Path, environment: dict[str, str] | None = None) -> dict[str, Any]:
    argv = farside("doctor", "--json", *(f"--config={file}" for file in files))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == any(check["outcome"] == "failed" for check in found.values())
    return found


def test_an_agent_that_would_not_start_is_named_setting_by_setting(tmp_path: Path) -> None:
    """It checked nothing of an agent, and exited with 0 where `farside agent` refuses to start."""
    config = write_config(
        tmp_path, "ws://127.0.0.1:1", fence_s=0.2, hook_user="nobody-of-this-name", task_memory="limit", gpu_fence="on",
        declared_gpus=2, declared_gpu_files="/dev/null",
    )  # fmt: skip
    (tmp_path / "agent.token").chmod(0o644)

    found = checks(config)

    failed = {name: check["found"] for name, check in found.items() if check["outcome"] == "failed"}
    assert "others may read it" in failed["manager"]
    assert "tasks would end for a report that is late" in failed["fence"]
    assert "there is no user nobody-of-this-name" in failed["hooks"]
    assert "no cgroup v2 that limits memory" in failed["cgroups"]
    assert "names files of 1 GPUs" in failed["gpus"]
    assert "key" not in found  # a node that only runs jobs needs none


def test_an_agent_that_starts_without_something_gets_notes(tmp_path: Path) -> None:
    found = checks(write_config(tmp_path, "ws://127.0.0.1:1", declared_gpus=3))

    assert {name for name, check in found.items() if check["outcome"] == "failed"} <= {"memlock", "io_uring", "engine"}
    assert "the agent waits until it answers" in found["manager"]["found"]
    assert found["gpus"]["found"] == "3 GPUs declared: h100"
    assert "tasks can open GPUs that are not theirs" in found["gpu fence"]["found"]


def test_a_hook_that_cannot_be_executed_is_found_before_it_drains_the_node(tmp_path: Path) -> None:
    hook = tmp_path / "prolog"
    hook.write_text("#!/bin/sh\n")

    found = checks(write_config(tmp_path, "ws://127.0.0.1:1", prolog=str(hook)))

    assert "each task would drain this node" in found["hooks"]["found"]


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"proc/driver/nvidia/gpus/0000:3b:00.0/information": "x"}, "NVIDIA's driver has 1 GPU, and "),
        ({"sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0", "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "777"},
         "AMD's driver has 1 GPU, which NVML does not know; name them by declared_gpus"),
        ({}, ""),
    ],
)  # fmt: skip
def test_gpus_that_a_driver_has_and_nobody_finds_have_a_reason(tmp_path: Path, tree: dict[str, str], why: str) -> None:
    """The agent joined with none, and said so to nobody."""
    for name, text in tree.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)

    unseen = open_gpus(declared=-1, model="", root=tmp_path).unseen

    assert unseen.startswith(why)
    assert bool(unseen) == bool(why)


def test_a_manager_that_would_not_start_is_named_setting_by_setting(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("")
    tokens.chmod(0o644)
    config = tmp_path / "manager.toml"
    config.write_text(
        f'store_url = "sqlite:////nowhere/m.db"\ntokens_file = "{tokens}"\nplacement = "nonsense"\n'
        f'tls_cert = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\npower = "vanilla"\n'
        f'power_drivers = "{tmp_path}/power.toml"\n'
    )

    failed = {name: check["found"] for name, check in checks(config).items() if check["outcome"] == "failed"}

    assert "nonsense" in failed["policy"]
    assert "power.toml" in failed["power"]
    assert "cert.pem" in failed["tls"]
    assert "others may read or change it" in failed["tokens"]
    assert failed["store"] == "store_url: /nowhere: no such folder"


def test_past_jobs_that_cannot_be_read_are_found_before_the_manager_starts(tmp_path: Path) -> None:
    config = tmp_path / "manager.toml"
    config.write_text(
        f'store_url = "sqlite:///{tmp_path}/m.db"\npolicy = "qssf"\npolicy_history = "{tmp_path}/past.csv"\n'
    )

    assert "past.csv" in checks(config)["policy"]["found"]


def test_a_look_at_a_store_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "manager.toml"
    config.write_text(f'store_url = "sqlite:///{tmp_path}/m.db"\n')

    assert "the manager makes it" in checks(config)["store"]["found"]
    assert not (tmp_path / "m.db").exists()  # made by root, the manager's user could not write it
    (tmp_path / "m.db").write_bytes(b"this is no database, and is long enough to be looked at" * 20)
    assert checks(config)["store"]["outcome"] == "failed"
    assert (tmp_path / "m.db").read_bytes().startswith(b"this is no database")


def test_slurm_is_asked_and_its_answer_told(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "scontrol"
    program.write_text("#!/bin/sh\necho 'scontrol: error: Unable to contact slurm controller' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    config = tmp_path / "slurm.toml"
    config.write_text('partitions = "gpu"\norder_by = "nice"\npreempt = true\n')

    found = checks(config, environment={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})

    assert "nice goes with neither gate nor preempt" in found["policy"]["found"]
    assert "Unable to contact slurm controller" in found["slurm"]["found"]
