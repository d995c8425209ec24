"""Nodes of a deployment that sleep: a lease wakes one, and once leases are given back it goes to sleep."""

import os
import stat
import subprocess
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from farside.cli.keygen import make_key
from farside.scheduler.manager.model.check_log import violations
from tests.agent.process import agent, write_config
from tests.live.manager import Manager, running_manager
from tests.power.test_lender_sleeps import SWITCH, shown
from tests.serving.test_run import Deployed
from tests.support.waiting import until

pytestmark = pytest.mark.long

LIMIT_S = 90.0
NODES = ("n1", "n2")


class Hall:
    """Nodes whose agents run while their switch is on; each boot has a number of its own."""

    def __init__(self, folder: Path, manager: Manager) -> None:
        self._folder, self._manager = folder, manager
        self._agents: dict[str, tuple[ExitStack, subprocess.Popen[str]]] = {}

    def follow(self) -> None:
        """Boots and ends nodes as the switch says."""
        for node in NODES:
            is_on = not (self._folder / f"{node}.off").exists()
            if is_on and node not in self._agents:
                stack = ExitStack()
                self._agents[node] = stack, stack.enter_context(agent(self._booted(node)))
            elif not is_on and node in self._agents:
                self._agents.pop(node)[0].close()

    def until(self, look: Callable[[], object], what: str) -> None:
        def followed() -> object:
            self.follow()
            return look()

        until(followed, what=what, deadline_s=LIMIT_S, every_s=0.1)

    def close(self) -> None:
        for stack, _ in self._agents.values():
            stack.close()

    def _booted(self, node: str) -> Path:
        folder = self._folder / node
        proc = folder / "root/proc"
        if not proc.exists():
            proc.mkdir(parents=True)
            for one in Path("/proc").iterdir():
                if not one.name.isdecimal() and one.name != "sys":
                    (proc / one.name).symlink_to(one)
            (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        token = self._manager.node_token(node)
        return write_config(
            folder, self._manager.url, token=token, node=node, declared_gpus=1, proc_root=str(proc)
        )  # fmt: skip


def powers(manager: Manager) -> list[str]:
    return [str(shown(manager, node).get("power")) for node in NODES]


def test_a_lease_wakes_a_node_which_sleeps_again_once_it_is_given_back(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    switch.write_text(SWITCH)
    switch.chmod(switch.stat().st_mode | stat.S_IXUSR)
    driven = (f'[node.{node}]\ndriver = "command"\nprogram = ["{switch}"]\n' for node in NODES)
    (tmp_path / "power.toml").write_text("".join(driven))
    settings: dict[str, object] = {
        "power": "vanilla", "power_settings": "buffer_nodes=0", "power_step_s": 1, "power_floor": 0,
        "power_min_on_s": 0, "power_poll_s": 1, "power_drivers": tmp_path / "power.toml",
    }  # fmt: skip
    folder = tmp_path / "d"
    folder.mkdir()
    make_key(folder / "key")
    core = min(os.sched_getaffinity(0))
    extra = f'gpus_max = 1\ncpu_devices = [[{core}]]\nkey_file = "key"\nname = "t"'
    with running_manager(tmp_path / "m", **settings) as manager, ExitStack() as stack:
        hall = Hall(tmp_path, manager)
        stack.callback(hall.close)
        hall.until(lambda: powers(manager) == ["on", "on"] or "off" in powers(manager), "the nodes are there")
        hall.until(lambda: powers(manager) == ["off", "off"], "nobody needs them, so they sleep")

        running = Deployed(folder, "--manager", manager.address.endpoint, extra=extra)
        stack.callback(running.process.kill)
        running.ready()
        hall.until(lambda: running.status().ready, "a lease has woken a node")
        node = running.status().glets[0].node
        other = next(one for one in NODES if one != node)
        assert (shown(manager, node)["power"], shown(manager, other)["power"]) == ("on", "off")

        assert running.end() == 0
        hall.until(lambda: powers(manager) == ["off", "off"], "it sleeps once its lease is given back")
        assert list(violations(manager.entries())) == []
