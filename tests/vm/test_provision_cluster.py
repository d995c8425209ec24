"""A cluster of two machines, set up by the scripts that vagrant provisions with: manager, agents, and a user's job."""

import hashlib
import json
import secrets
from typing import Any

import pytest

from tests.support.waiting import until
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network
from tests.vm.test_three_machines import CHECKOUT, PROVISION, START_S

pytestmark = [pytest.mark.vm, pytest.mark.guests(memory_mib=1024)]

BORROWER, DONOR = 1, 2
GPUS = 4
# What it says of itself, on both machines, until it is told to stop.
JOB = """#!/bin/sh
trap "echo saved; exit 0" TERM
echo $RANK of $WORLD_SIZE as $(id -un) on $(uname -n)
while :; do
	sleep 0.2 &
	wait $! 2>/dev/null  # the shell would tell that the sleep is terminated, too
done
"""
# An emulated machine may take longer than a minute from the end of an agent to the next one's first word.
PATIENT = 'node_timeout_s = "20min"\n'
# As the Vagrantfile has it: "these also after each reboot", the role before the manager, the agent last.
ROLES = {
    BORROWER: ("borrower.sh {name} {address} 64MiB {donor}", "manager.sh {name} {address} {tokens}"),
    DONOR: ("donor.sh {name} {address}",),
}


@pytest.fixture
def cluster(pair: Network) -> Network:
    """Both machines are set up, the donor first, and their agents are at the manager."""
    key = secrets.token_hex(32)
    for guest in pair:
        words = f"echo {key} >key && echo {token_of(guest)} >agent.token"
        guest.run(f"{CHECKOUT} && cd /etc/farside && (umask 077 && {words})")
        guest.run("mkdir -p /etc/farside/manager.d && cat >/etc/farside/manager.d/slow.toml", stdin=PATIENT.encode())
        guest.run("useradd --create-home --uid 1234 vagrant")
        guest.run("cat >/home/vagrant/job && chmod 755 /home/vagrant/job", stdin=JOB.encode())
    for number in (DONOR, BORROWER):
        provision(pair, number)
    until(lambda: states(pair) == {"node1": "idle", "node2": "idle"}, what="both nodes", deadline_s=START_S, every_s=5)
    return pair


def token_of(guest: Guest) -> str:
    """Each machine has one of its own. It is no secret: nothing else is on the guests' network."""
    return hashlib.sha256(guest.name.encode()).hexdigest()


def provision(cluster: Network, number: int) -> None:
    """What `vagrant provision` runs each time on one of them, but for the packages and the build."""
    guest, donor = cluster[number], cluster[DONOR]
    tokens = " ".join(f"{each.name}={hashlib.sha256(token_of(each).encode()).hexdigest()}" for each in cluster)
    donors = f"{donor.name}={donor.address}"
    words = {"name": guest.name, "address": guest.address, "donor": donors, "tokens": tokens}
    for command in ("rxe.sh {address}", *ROLES[number], f"agent.sh {{name}} {cluster[BORROWER].address} {GPUS}"):
        guest.run(f"{PROVISION}/{command.format(**words)}", limit_s=START_S)


def told(cluster: Network, command: str) -> Any:
    """What a command says with --json on the manager's machine; None while it says nothing."""
    done = cluster[BORROWER].outcome(f"runuser -u vagrant -- farside {command} --json", limit_s=START_S)
    return json.loads(done.stdout) if done.status == 0 and done.stdout else None


def states(cluster: Network) -> dict[str, str]:
    return {node["name"]: node["state"] for node in told(cluster, "nodes") or []}


def until_state(cluster: Network, job: str, state: str) -> Any:
    def there() -> Any:
        found = told(cluster, f"show {job}") or {}
        return found if found.get("state") == state else None

    return until(there, what=f"job {job} {state}", deadline_s=START_S, every_s=2)


def logs(cluster: Network, job: str) -> list[str]:
    """What its ranks have said, on whichever machine each runs."""
    said = [guest.outcome(f"cat /home/vagrant/farside-{job}.*.log").stdout for guest in cluster]
    return sorted(line for text in said for line in text.splitlines())


def test_a_users_job_runs_on_both_machines_and_outlives_provisioning_them_again(cluster: Network) -> None:
    borrower = cluster[BORROWER]
    submit = f"cd /home/vagrant && runuser -u vagrant -- farside submit --quiet --gpus {2 * GPUS} -- ./job"
    job = borrower.run(submit, limit_s=START_S).strip()
    until_state(cluster, job, "running")
    until(lambda: len(logs(cluster, job)) >= 2, what="a line of each rank", deadline_s=START_S, every_s=2)

    said = logs(cluster, job)
    assert said in (  # whichever rank is where
        ["0 of 2 as vagrant on node1", "1 of 2 as vagrant on node2"],
        ["0 of 2 as vagrant on node2", "1 of 2 as vagrant on node1"],
    )

    for number in (DONOR, BORROWER):
        provision(cluster, number)
    until(lambda: set(states(cluster)) == {"node1", "node2"}, what="both nodes again", deadline_s=START_S, every_s=5)
    after = until_state(cluster, job, "running")

    assert (after["starts"], after["failures"]) == (1, 0)
    assert logs(cluster, job) == said

    borrower.run(f"runuser -u vagrant -- farside cancel {job}", limit_s=START_S)
    until_state(cluster, job, "cancelled")

    assert logs(cluster, job) == sorted([*said, "saved", "saved"])
    assert borrower.run("farside status --json", limit_s=START_S)
    for guest in cluster:
        assert guest.run("ls /run/farside").split().count("agent.sock") == 1
