"""Nodes that sleep, whole: a real manager, real agents, and BMCs that speak IPMI and Redfish and switch the agents.

Each machine is an agent's process that runs while its BMC says on, with another boot id after each boot.
"""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import NodeLost, PowerChanged
from tests.agent.process import write_config
from tests.live.manager import Manager
from tests.power.bmc import USER, ipmi_sim, password_file, redfish_emulator
from tests.support.programs import run
from tests.support.waiting import until

LIMIT_S = 120.0


class Machine:
    """A node behind a BMC."""

    def __init__(self, name: str, folder: Path, manager: Manager, is_on: Callable[[], bool]) -> None:
        self.name, self.folder, self._is_on = name, folder, is_on
        folder.mkdir()
        (folder / "proc/sys/kernel/random").mkdir(parents=True)
        (folder / "proc/meminfo").write_text(Path("/proc/meminfo").read_text())
        (folder / "token").write_text(manager.node_token(name))
        self._config = write_config(
            folder, manager.url, token=manager.node_token(name), node=name, declared_gpus=4, on_stop="end",
            proc_root=str(folder / "proc"),
        )  # fmt: skip
        self.boots = 0
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self) -> None:
        """What electricity does."""
        is_on = self._is_on()
        if is_on and self._process is None:
            self.boots += 1
            (self.folder / "proc/sys/kernel/random/boot_id").write_text(f"{self.name}-boot-{self.boots}\n")
            argv = [sys.executable, "-m", "farside", "agent", "--config", str(self._config)]
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        elif not is_on and self._process is not None:
            self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None


def power_state(url: str) -> str:
    with urllib.request.urlopen(f"{url}/redfish/v1/Systems/11111111-1111-1111-1111-111111111111", timeout=60) as got:
        return str(json.loads(got.read())["PowerState"])


class Hall:
    """The manager and its machines."""

    def __init__(self, manager: Manager, machines: list[Machine]) -> None:
        self.manager = manager
        self.machines = machines

    def states(self) -> dict[str, str]:
        for machine in self.machines:
            machine.follow()
        try:
            return {node["name"]: node["state"] for node in self.manager.get("nodes")["nodes"]}
        except Exception:  # it is being started again
            return {}

    def until(self, look: Callable[[dict[str, str]], object], what: str) -> None:
        until(lambda: look(self.states()), what=what, deadline_s=LIMIT_S, every_s=0.2)


@contextmanager
def a_hall(folder: Path) -> Iterator[Hall]:
    (folder / "ipmi").mkdir()
    (folder / "redfish").mkdir()
    with ipmi_sim(folder / "ipmi") as (port, power), redfish_emulator(folder / "redfish") as url:
        secret = password_file(folder)
        (folder / "power.toml").write_text(
            f'[node.i]\ndriver = "ipmi"\nhost = "127.0.0.1"\nport = {port}\nuser = "{USER}"\n'
            f'password_file = "{secret}"\n[node.r]\ndriver = "redfish"\nurl = "{url}"\nuser = "{USER}"\n'
            f'password_file = "{secret}"\n'
        )
        manager = Manager(
            folder / "m", power="vanilla", power_settings="buffer_nodes=0", power_step_s=1, power_floor=0,
            power_min_on_s=0, power_poll_s=1, power_drivers=folder / "power.toml",
        )  # fmt: skip
        machines = [
            Machine("i", folder / "i", manager, lambda: power.read_text().strip() == "1"),
            Machine("r", folder / "r", manager, lambda: power_state(url) == "On"),
            Machine("always", folder / "always", manager, lambda: True),
        ]
        hall = Hall(manager, machines)
        try:
            manager.start()
            yield hall
        finally:
            for machine in machines:
                machine.end()
            manager.stop()
        assert list(violations(manager.entries())) == []


@pytest.mark.long
def test_idle_nodes_are_switched_off_by_ipmi_and_redfish_and_a_job_brings_them_back(tmp_path: Path) -> None:
    with a_hall(tmp_path) as hall:
        hall.until(lambda now: now.get("always") == "idle", "the node without a driver has joined")
        hall.until(lambda now: (now.get("i"), now.get("r")) == ("asleep", "asleep"), "both others are asleep")
        told = hall.manager.get("power")
        secret = (tmp_path / "bmc.password").read_text().strip()
        assert (told["nodes_asleep"], told["policy"], told["keeps"]) == (2, "vanilla", True)
        assert secret not in json.dumps(told)

        shown = run([sys.executable, "-m", "farside", "power", "--manager", f"unix:{hall.manager.folder}/manager.sock"])
        assert "2 asleep, 0 booting, 0 closing" in shown

        hall.manager.kill_all()  # between two switches: nothing is forgotten
        hall.manager.start()
        assert hall.states()["i"] == "asleep"
        job = hall.manager.submit("true", gpus=12)
        hall.until(lambda _: hall.manager.job(job)["state"] == "done", "the job ran on all three")

        assert sorted(hall.manager.job(job)["nodes"]) == ["always", "i", "r"]
        assert [machine.boots for machine in hall.machines] == [2, 2, 1]
        events = [entry.event for entry in hall.manager.entries()]
        assert not [event for event in events if isinstance(event, NodeLost)]
        boots = [event.note for event in events if isinstance(event, PowerChanged) and event.note.command == "power-on"]
        reasons = [note.reason for note in boots]
        why = ("short", "jobs need", "a job waits")
        assert all(any(words in reason for words in why) for reason in reasons), reasons
        assert hall.manager.get("usage")["saved_kwh"] > 0
        assert secret not in hall.manager.log()
