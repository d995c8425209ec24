"""The cluster plane from the Debian package in a guest: units, a user's job in a scope, restarts under it, removal."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farside.agent.aggregator.engine_job import engine_job
from farside.agent.aggregator.layout import make_layout
from tests.live import aggregated_member
from tests.support.waiting import until
from tests.vm.harness.guest import Guest
from tests.vm.test_package import FORGET_CHECKOUT

pytestmark = [pytest.mark.vm, pytest.mark.guests(memory_mib=1024)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0
AGENT = 'node = "n1"\ndeclared_gpus = 4\nreport_period_s = 1\n'
# An agent takes a minute to start on an emulated processor; its node is not lost meanwhile.
MANAGER = 'store_url = "sqlite:////var/lib/farside/manager/manager.db"\nmin_run_s = 0\nnode_timeout_s = 600\n'
MEMORY_BYTES = 64 << 20
JOB = f"""
command = ["sh", "-c", "trap 'echo saved; exit 0' TERM; id -un; echo $$; while :; do sleep 0.2; done"]
gpus = 2
memory_per_gpu = "{MEMORY_BYTES // 2}B"
"""

PYTHON = "/usr/lib/farside/bin/python3"
"""The package's own: a user's would have Farside's wheel."""
AGGREGATOR = 'node = "n1"\naddress = "127.0.0.1:7683"\nmemory_bytes = "64MiB"\n'
MEMBERS, ITERATIONS = 2, 40
TRAINING = f"""
command = ["{PYTHON}", "member.py", ".", "0.05"]
gpus = {MEMBERS}
ranks = "gpu"
aggregation = "shared"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-dev is not installed")
    folder = tmp_path_factory.mktemp("deb")
    argv = [sys.executable, "-m", "tools.build_deb", "--out", str(folder), "--fast"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    yield Path(done.stdout.strip())
    shutil.rmtree(folder)


class Machine:
    """What an operator and the user ann type on it."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def run(self, command: str) -> str:
        return self.guest.run(command, limit_s=LIMIT_S).strip()

    def told(self, command: str) -> Any:
        """What a command says with --json; None while it says nothing."""
        done = self.guest.outcome(f"{command} --json", limit_s=LIMIT_S)
        return json.loads(done.stdout) if done.status == 0 and done.stdout else None

    def write(self, path: str, text: str) -> None:
        self.guest.run(f"cat >{path}", stdin=text.encode())

    def until(self, look: Any, what: str) -> Any:
        return until(look, what=what, deadline_s=LIMIT_S, every_s=2)

    def submit(self, file: str = "job.toml") -> str:
        return self.run(f"cd /home/ann && runuser -u ann -- farside submit {file} --quiet")

    def job(self, job_id: str) -> Any:
        return self.told(f"farside show {job_id}") or {}

    def until_state(self, job_id: str, state: str) -> Any:
        return self.until(lambda: job if (job := self.job(job_id)).get("state") == state else None, f"{job_id} {state}")

    def says(self, job_id: str) -> list[str]:
        return self.guest.outcome(f"cat /home/ann/farside-{job_id}.0.log").stdout.split()

    def until_says(self, job_id: str, words: int) -> list[str]:
        found: list[str] = self.until(
            lambda: said if len(said := self.says(job_id)) >= words else None, f"{words} words of job {job_id}"
        )
        return found

    def trained(self) -> int:
        """The last iteration that all members have done."""
        return min(int(self.guest.outcome(f"cat /home/ann/at.{rank}").stdout or 0) for rank in range(MEMBERS))

    def until_trained(self, goal: int) -> None:
        self.until(lambda: self.trained() >= goal, f"iteration {goal}")

    def node(self) -> Any:
        return (self.told("farside nodes") or [{}])[0]

    def connected(self) -> Any:
        agents = (self.told("farside status") or {}).get("agents", [])
        return agents[0] if agents and agents[0].get("connected") else None

    def show(self, unit: str, name: str) -> str:
        return self.run(f"systemctl show {unit} --property {name} --value")


def set_up(machine: Machine, package: Path) -> None:
    """As docs/operating.md says."""
    machine.run(FORGET_CHECKOUT)
    machine.guest.put(package, "/root/farside.deb")
    machine.run("dpkg -i --force-confold /root/farside.deb")
    machine.run("useradd --create-home ann")
    machine.write("/home/ann/job.toml", JOB)
    machine.write("/etc/farside/manager.toml", MANAGER)
    machine.write("/etc/farside/agent.toml", AGENT)
    machine.run("farside keygen && farside token n1 >/etc/farside/agent.token && chmod 600 /etc/farside/agent.token")
    for unit in ("farside-daemon", "farside-manager", "farside-agent"):
        machine.run(f"systemctl enable --now {unit}")
    machine.until(lambda: machine.node().get("state") == "idle", "a node")


def test_a_users_job_outlives_every_service_and_is_stopped_by_its_own_word(guest: Guest, package: Path) -> None:
    machine = Machine(guest)
    set_up(machine, package)
    inactive = machine.run("systemctl is-active farside-slurm || true")
    donor = machine.until(lambda: machine.node().get("donor"), "the node's donor")

    # It runs as the user, in a scope of its own, with its limits.
    job = machine.submit()
    machine.until_state(job, "running")
    user, pid = machine.until_says(job, 2)[:2]
    cgroup = machine.run(f"cat /proc/{pid}/cgroup").rpartition("::")[2]
    scope = "/sys/fs/cgroup" + cgroup.partition(".scope")[0] + ".scope"
    limits = [machine.run(f"cat {scope}/{name}") for name in ("memory.max", "memory.swap.max")]
    uid = machine.run(f"stat -c %U /proc/{pid}")

    assert inactive == "inactive"
    assert donor == "tcp:127.0.0.1:7677"
    assert machine.run("stat -c '%U %a' /var/lib/farside/peers.toml") == "root 644"
    assert (user, uid) == ("ann", "ann")
    assert cgroup.startswith("/farside.slice/")
    assert limits == [str(MEMORY_BYTES), "0"]

    # Agent and manager are restarted, and killed: it runs on, and was started once.
    agents = {machine.show("farside-agent", "MainPID")}
    for how in ("restart", "kill --signal KILL"):
        machine.run(f"systemctl {how} farside-agent")
        machine.until(lambda: machine.show("farside-agent", "MainPID") not in {*agents, "0"}, "another agent")
        machine.until(machine.connected, f"an agent after {how}")
        agents.add(machine.show("farside-agent", "MainPID"))
    machine.run("systemctl restart farside-manager")
    machine.until(machine.connected, "an agent at the new manager")
    after = machine.until_state(job, "running")

    assert len(agents) == 3
    assert machine.guest.outcome(f"test -d /proc/{pid}").status == 0
    assert (after["starts"], after["failures"]) == (1, 0)

    # Cancelled, it gets SIGTERM and its grace; nothing is left of it.
    machine.run(f"runuser -u ann -- farside cancel {job}")
    machine.until_state(job, "cancelled")

    assert machine.says(job)[-1] == "saved"
    machine.until(lambda: machine.guest.outcome(f"test -e {scope}").status, "the end of its scope")

    # Removed: the services end, and what runs is left to its user.
    second = machine.submit()
    machine.until_state(second, "running")
    pid = machine.until_says(second, 2)[1]
    machine.run("dpkg -r farside")

    assert (
        machine.run("systemctl is-active farside-agent farside-manager farside-daemon || true").split()
        == ["inactive"] * 3
    )
    assert machine.guest.outcome(f"test -d /proc/{pid}").status == 0
    machine.run(f"kill {pid}")
    machine.until(lambda: machine.says(second)[-1] == "saved", "its last word")
    machine.run("dpkg -P farside")
    assert machine.guest.outcome("ls -d /etc/farside /var/lib/farside /usr/lib/farside").stdout == ""


def test_the_aggregator_serves_a_users_job_and_is_replaced_under_it(guest: Guest, package: Path) -> None:
    machine = Machine(guest)
    set_up(machine, package)
    machine.write("/etc/farside/aggregator.toml", AGGREGATOR)
    machine.write("/home/ann/member.py", Path(aggregated_member.__file__).read_text())
    machine.write("/home/ann/training.toml", TRAINING)
    machine.run("systemctl enable --now farside-aggregator")
    machine.until(lambda: (machine.told("farside aggregation") or {}).get("aggregators"), "an Aggregator")

    job = machine.submit("training.toml")
    machine.until_trained(5)
    # Its server is killed, then all of the unit; the job goes on each time.
    server = machine.run("pgrep -P $(systemctl show farside-aggregator --property MainPID --value)")
    machine.run(f"kill -KILL {server}")
    machine.until_trained(machine.trained() + 5)
    machine.run("systemctl kill --signal KILL farside-aggregator")
    machine.until_trained(machine.trained() + 5)
    machine.run("systemctl restart farside-aggregator")
    machine.until_trained(machine.trained() + 5)
    end = machine.trained() + ITERATIONS
    machine.write("/home/ann/end.new", str(end))
    machine.run("mv /home/ann/end.new /home/ann/end")
    shown = machine.until_state(job, "done")

    assert (shown["starts"], shown["failures"]) == (1, 0)
    engine = engine_job(make_layout(aggregated_member.TENSORS), rule="sgd", members=MEMBERS)
    expected = f"{end} {aggregated_member.expected(engine, end)}"
    assert [machine.run(f"cat /home/ann/done.{rank}") for rank in range(MEMBERS)] == [expected] * MEMBERS
