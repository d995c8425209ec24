"""`farside agent` as a process, with settings for a test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farside import admin
from farside.errors import PeerError
from tests.agent.fake_manager import TOKEN
from tests.agent.node import Node
from tests.support.waiting import until


def write_config(folder: Path, url: str, *, token: str = TOKEN, **more: Any) -> Path:
    """Settings of an agent and its token in this folder; None: that setting is not named."""
    file = folder / "agent.token"
    file.write_text(token + "\n")
    file.chmod(0o600)
    settings = {
        "node": "n1",
        "manager": url,
        "token_file": str(file),
        "state_dir": str(folder / "state"),
        "run_as": "starter",
        "cgroup": "off",
        "declared_gpus": 8,
        "gpu_model": "h100",
        "daemon_socket": "",
        "blockdev_socket": "",
        "swap_device": "",
        "peers_file": "",
        "aggregator_socket": "",
        "aggregation_socket": str(folder / "aggregation.sock"),
        "executor_socket": str(folder / "x.sock"),
        "executor_admin_socket": str(folder / "x.admin"),
        "report_period_s": 0.3,
        "reconnect_s": 0.3,
        "admin_socket": str(folder / "admin.sock"),
        **more,
    }
    path = folder / "agent.toml"
    given = {name: value for name, value in settings.items() if value is not None}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
    return path


@contextmanager
def agent(config: Path, *, on: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Runs it, behind the prefix ``on``; whatever happens, no task of it is left at the end."""
    argv = [*on, sys.executable, "-m", "farside", "agent", "--config", str(config)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            state = config.parent / "state"
            if state.exists():
                Node(state).kill_all()


def status(folder: Path) -> dict[str, Any]:
    """What the agent tells; empty while nobody answers."""
    try:
        told = admin.call(folder / "admin.sock", "status")
    except PeerError:
        return {}
    assert isinstance(told, dict)
    return told


def until_connected(folder: Path) -> dict[str, Any]:
    return (
        until(lambda: told if (told := status(folder)).get("connected") else None, what="the connection", deadline_s=30)
        or {}
    )


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
