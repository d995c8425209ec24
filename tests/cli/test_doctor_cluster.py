"""`farside doctor` on agents, managers and Slurm: what they would refuse to start over is said before they start."""

import json
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
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
    assert "no cgroup v2 that limits memory" in failed["task memory"]
    assert "names files of 1 GPUs" in failed["gpus"]
    assert "key" not in found  # a node that only runs jobs needs none


def test_an_agent_that_starts_without_something_gets_notes(tmp_path: Path) -> None:
    found = checks(write_config(tmp_path, "ws://127.0.0.1:1", declared_gpus=3))

    assert {name for name, check in found.items() if check["outcome"] == "failed"} <= {"memlock", "io_uring", "engine"}
    assert "the agent waits until it answers" in found["manager"]["found"]
    assert found["gpus"]["found"] == "3 GPUs declared: h100"
    assert "tasks can open GPUs that are not theirs" in found["gpu fence"]["found"]


@pytest.fixture
def busy() -> Iterator[str]:
    """An address at which a strange program listens."""
    with socket.create_server(("127.0.0.1", 0)) as strange:
        yield f"127.0.0.1:{strange.getsockname()[1]}"


def refused(program: tuple[str, ...], config: Path) -> str:
    """The line with which a program refuses to start."""
    argv = farside(*program, f"--config={config}")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode, "it started"
    return done.stderr


def failed_in(found: dict[str, Any]) -> dict[str, str]:
    return {name: check["found"] for name, check in found.items() if check["outcome"] == "failed"}


@pytest.mark.parametrize(
    "setting",
    [
        "state_dir",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("admin_socket", "metrics_listen", "proc_root")),
    ],
)
def test_what_an_agent_refuses_to_start_over_is_found_before(tmp_path: Path, busy: str, setting: str) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    told = {
        "state_dir": plain / "state", "admin_socket": plain, "metrics_listen": busy, "proc_root": tmp_path / "nowhere",
    }  # fmt: skip
    config = write_config(tmp_path, "ws://127.0.0.1:1", **{setting: str(told[setting])})

    said, failed = refused(("agent",), config), failed_in(checks(config))

    name = {"state_dir": "state", "proc_root": "proc"}.get(setting, setting)
    assert str(told[setting]) in failed[name]
    assert str(told[setting]).removesuffix("/state") in said


@pytest.mark.parametrize(
    "setting", ["state_dir", *(pytest.param(name, marks=pytest.mark.long) for name in ("listen", "metrics_listen"))]
)
def test_what_a_manager_refuses_to_start_over_is_found_before(tmp_path: Path, busy: str, setting: str) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    given = {
        "state_dir": f'"{tmp_path}/m"', "listen": f'["unix:{tmp_path}/m.sock"]', "metrics_listen": '""',
        "store_url": f'"sqlite:///{tmp_path}/m.db"', "tokens_file": f'"{tmp_path}/none"',
    }  # fmt: skip
    wrong = {"state_dir": f'"{plain}/m"', "listen": f'["tcp:{busy}"]', "metrics_listen": f'"{busy}"'}
    given[setting] = wrong[setting]
    config = tmp_path / "manager.toml"
    config.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))

    failed = failed_in(checks(config))
    said = refused(("manager",), config)

    assert failed.keys() - {"memlock", "io_uring", "engine"} == {"state" if setting == "state_dir" else setting}
    assert (busy if "listen" in setting else str(plain)) in said


@pytest.mark.parametrize("setting", ["state_dir", pytest.param("admin_socket", marks=pytest.mark.long)])
def test_what_the_engine_over_slurm_refuses_to_start_over_is_found_before(tmp_path: Path, setting: str) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    told = {"state_dir": f"{tmp_path}/state", "admin_socket": f"{tmp_path}/s.sock"}
    told[setting] = f"{plain}/state" if setting == "state_dir" else str(plain)
    config = tmp_path / "slurm.toml"
    config.write_text('partitions = "gpu"\n' + "".join(f'{name} = "{value}"\n' for name, value in told.items()))

    said, failed = refused(("slurm", "run"), config), failed_in(checks(config))

    assert told[setting] in failed["state" if setting == "state_dir" else setting]
    assert str(plain) in said


def test_what_a_running_agent_uses_itself_is_no_fault(tmp_path: Path, busy: str) -> None:
    config = write_config(tmp_path, "ws://127.0.0.1:1", admin_socket=str(tmp_path / "own.sock"), metrics_listen=busy)
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "own.sock"))
        own.listen()

        found = checks(config)

    assert not {"admin_socket", "metrics_listen"} & failed_in(found).keys()
    assert found["agent"]["found"] == f"one runs already, at {tmp_path}/own.sock"


def test_an_address_that_this_machine_lacks_is_named(tmp_path: Path) -> None:
    found = checks(write_config(tmp_path, "ws://127.0.0.1:1", metrics_listen="192.0.2.1:9000"))

    assert failed_in(found)["metrics_listen"].startswith("metrics_listen tcp:192.0.2.1:9000: Cannot assign")


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
         "AMD's driver has 1 GPU, and "),
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


@pytest.mark.long
def test_past_jobs_that_cannot_be_read_are_found_before_the_manager_starts(tmp_path: Path) -> None:
    config = tmp_path / "manager.toml"
    config.write_text(
        f'store_url = "sqlite:///{tmp_path}/m.db"\npolicy = "qssf"\npolicy_history = "{tmp_path}/past.csv"\n'
    )

    assert "past.csv" in checks(config)["policy"]["found"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("told", "said"),
    [
        ('policy = "qssf"\npolicy_models = "{}/models"\n', "policy_models: "),
        ('policy = "qssf"\npolicy_history = "{}/past.csv"\n', "policy_history: "),
        ('policy = "las"\npolicy_models = "{}/models"\n', "policy_models: las asks for no model of run times"),
    ],
)
def test_past_jobs_and_models_that_the_engine_over_slurm_refuses_are_found_before(
    tmp_path: Path, told: str, said: str
) -> None:
    config = tmp_path / "slurm.toml"
    config.write_text(
        f'partitions = "gpu"\nstate_dir = "{tmp_path}/state"\nadmin_socket = "{tmp_path}/s.sock"\n'
        + told.format(tmp_path)
    )
    both = [
        subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        for argv in (farside("slurm", "shadow", f"--config={config}"), farside("config", "check", str(config)))
    ]

    assert failed_in(checks(config))["policy"].startswith(said)
    for done in both:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr


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

    assert "nice goes with neither gate nor preempt" in found["rights"]["found"]
    assert "Unable to contact slurm controller" in found["slurm"]["found"]
