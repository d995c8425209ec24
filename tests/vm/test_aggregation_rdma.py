"""Members and their Aggregator on two machines, gradients by RDMA between them: every result is one process's, bit for
bit, while the network is cut and healed and the Aggregator's server is killed."""

import hashlib
import json
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from farside.agent.aggregator.engine_job import engine_job
from farside.agent.aggregator.layout import make_layout
from tests.aggregation.rig import Reference
from tests.aggregation.service import HYPER, KEY, TENSORS
from tests.support.soft_rdma import ADD_RXE0
from tests.support.waiting import until
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network
from tests.vm.inside import PATIENCE, TREE

pytestmark = pytest.mark.vm

MEMBERS, AGGREGATOR = 1, 2
ENDPOINT = "tcp:10.77.0.2:7683"
STEPS = 60
LIMIT_S = 900.0 * PATIENCE
FOLDER = "/root/fs"
SLOW_PAIRS = "python3 -B -m tests.vm.guest.slow_pairs"


def prepare(guest: Guest) -> None:
    """An RDMA device, and the job's key."""
    guest.run(ADD_RXE0)
    guest.run(f"mkdir -p {FOLDER} && install -m 600 /dev/stdin {FOLDER}/key", stdin=KEY.encode())


def begin(pair: Network, *, rdma: str = "auto") -> None:
    """The Aggregator runs."""
    for number in (MEMBERS, AGGREGATOR):
        prepare(pair[number])
    settings: dict[str, object] = {
        "node": "a1", "listen": [ENDPOINT], "key_file": f"{FOLDER}/key", "memory_bytes": "64MiB", "rdma": rdma,
        "admin_socket": f"{FOLDER}/admin.sock",
    }  # fmt: skip
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    pair[AGGREGATOR].run(f"cat > {FOLDER}/aggregator.toml", stdin=text.encode())
    command = f"cd {TREE} && exec {SLOW_PAIRS} aggregator --config {FOLDER}/aggregator.toml"
    # Its own session and no terminal: it lives on when this command's connection has ended.
    pair[AGGREGATOR].run(f"setsid sh -c {shlex.quote(command)} > {FOLDER}/log 2>&1 < /dev/null &")
    until(lambda: status(pair[AGGREGATOR]), what="the Aggregator", deadline_s=240 * PATIENCE, every_s=1.0)


def status(guest: Guest) -> Mapping[str, Any]:
    """What the Aggregator says of itself; empty while it does not."""
    done = guest.outcome(f"farside admin status --socket {FOLDER}/admin.sock", limit_s=120)
    found: Mapping[str, Any] = json.loads(done.stdout) if done.status == 0 else {}
    return found


def start_members(guest: Guest, rule: str, steps: int, job: str) -> None:
    """Both of them, on one machine; each writes the hash of an iteration's results as a line."""
    for rank in (0, 1):
        words = [FOLDER, ENDPOINT, str(rank), "2", rule, str(steps), "0", job]
        command = f"cd {TREE} && exec {SLOW_PAIRS} member {shlex.join(words)}"
        guest.run(f"setsid sh -c {shlex.quote(command)} > {out(job, rank)} 2> {out(job, rank)}.err < /dev/null &")


def allow(guest: Guest, job: str, last: int) -> None:
    """Members may go on to that iteration."""
    guest.run(f"echo {last} > {FOLDER}/{job}.new && mv {FOLDER}/{job}.new {FOLDER}/{job}.last")


def out(job: str, rank: int) -> str:
    """Where a member writes."""
    return f"{FOLDER}/{job}-{rank}"


def lines_of(guest: Guest, job: str, rank: int) -> dict[int, str]:
    """The hashes of a member's results so far; fails when it has ended with an error."""
    told = guest.run(f"cat {out(job, rank)}; cat {out(job, rank)}.err >&2")
    return {int(line.split()[0]): line.split()[1] for line in told.splitlines() if line[:1].isdigit()}


def has_reached(guest: Guest, job: str, iteration: int) -> bool:
    """Both members have an iteration's results."""
    return all(iteration in lines_of(guest, job, rank) for rank in (0, 1))


def expected(rule: str, steps: int) -> dict[int, str]:
    """Check sums of what one process computes, by step."""
    reference = Reference(engine_job(make_layout(TENSORS), rule=rule, members=2), HYPER)
    return {at: hashlib.sha256(b"".join(reference.step(at))).hexdigest() for at in range(1, steps + 1)}


def job_status(pair: Network, job: str) -> Mapping[str, Any]:
    """Status of one job; empty while there is none."""
    jobs = status(pair[AGGREGATOR]).get("jobs", ())
    return next((found for found in jobs if found["job"] == job), {})


def wait_for(pair: Network, job: str, iteration: int) -> None:
    """Until both members have its results."""
    done = partial(has_reached, pair[MEMBERS], job, iteration)
    until(done, what=f"iteration {iteration} of {job}", deadline_s=LIMIT_S, every_s=1.0)


def test_training_by_rdma_outlives_a_cut_network_and_a_killed_aggregator(pair: Network) -> None:
    begin(pair)
    allow(pair[MEMBERS], "j", 3)
    start_members(pair[MEMBERS], "adam", STEPS, "j")
    wait_for(pair, "j", 3)
    told = job_status(pair, "j")
    assert (told["lanes"], told["lanes_rdma"], told["lanes_shm"]) == (2, 2, 0), status(pair[AGGREGATOR])

    pair[AGGREGATOR].run(f"kill -9 {status(pair[AGGREGATOR])['pid']}")
    allow(pair[MEMBERS], "j", STEPS // 2)
    wait_for(pair, "j", STEPS // 2)

    pair.cut(AGGREGATOR)
    allow(pair[MEMBERS], "j", STEPS)
    # The Aggregator notices first where it waits for a gradient; both do after 5 s of silence.
    until(lambda: not job_status(pair, "j").get("lanes"), what="the cut to be noticed", deadline_s=LIMIT_S, every_s=1.0)
    assert not has_reached(pair[MEMBERS], "j", STEPS // 2 + 1)
    pair.heal(AGGREGATOR)
    wait_for(pair, "j", STEPS)

    wanted = expected("adam", STEPS)
    for rank in (0, 1):
        assert lines_of(pair[MEMBERS], "j", rank) == wanted
    # More where the machine is so slow that a server seems to hang.
    assert status(pair[AGGREGATOR])["restarts"] >= 1
    assert status(pair[AGGREGATOR])["rdma_fallbacks"] == 0
    assert job_status(pair, "j")["wrong_codes"] == 0


def test_sums_by_rdma_are_those_of_tcp_and_of_one_process(pair: Network) -> None:
    begin(pair)
    allow(pair[MEMBERS], "by-rdma", 3)
    start_members(pair[MEMBERS], "mean", 8, "by-rdma")
    wait_for(pair, "by-rdma", 3)
    assert job_status(pair, "by-rdma")["lanes_rdma"] == 2
    allow(pair[MEMBERS], "by-rdma", 8)
    wait_for(pair, "by-rdma", 8)
    assert status(pair[AGGREGATOR])["rdma_fallbacks"] == 0
    pair[MEMBERS].run("rdma link delete rxe0")

    start_members(pair[MEMBERS], "mean", 8, "by-tcp")
    wait_for(pair, "by-tcp", 8)

    wanted = expected("mean", 8)
    for job in ("by-rdma", "by-tcp"):
        for rank in (0, 1):
            assert lines_of(pair[MEMBERS], job, rank) == wanted
