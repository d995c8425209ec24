"""A job's memory comes before what its node's donor lends: real jobs, donors and a borrower, in a sandbox."""

import json
import sys
from pathlib import Path

import pytest

from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.job_commands import farside, until_job
from tests.support.programs import nbdsh
from tests.support.waiting import until

MIB = 1 << 20
DONOR, HEADROOM, DEVICE, JOB = 256 * MIB, 32 * MIB, 256 * MIB, 150 * MIB
LIMIT_S = 120.0
HELD = ("remote_bytes", "on_disk_bytes")
WRITE = f"for i in range({DEVICE // MIB}): h.pwrite(bytes([i % 251 + 1]) * {MIB}, i << 20)"
CHECK = f"print(all(h.pread({MIB}, i << 20) == bytes([i % 251 + 1]) * {MIB} for i in range({DEVICE // MIB})))"
TRAIN = """
import pathlib, sys, time
held = b"1" * int(sys.argv[1])
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.1)
"""


def nodes(session: Session) -> dict[str, dict[str, object]]:
    told: list[dict[str, object]] = json.loads(farside(session, "nodes", "--json"))
    return {str(node["name"]): node for node in told}


def lent_bytes(session: Session) -> dict[str, int]:
    """What each node's donor lends, as the manager knows it."""
    loans = {name: node["loans"] for name, node in nodes(session).items()}
    return {name: sum(one["bytes"] for one in some) for name, some in loans.items()}  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_donor_gives_back_what_a_job_on_its_node_needs_and_no_page_is_lost(tmp_path: Path) -> None:
    sizes = ("--cluster", "2x1", "--donors", "2", "--donor-memory", str(DONOR), "--size", str(DEVICE), "--slab", "4MiB")
    go = tmp_path / "go"
    with open_sandbox(sizes, state=tmp_path / "state") as session:
        nbdsh(session.uri, WRITE)
        room = DONOR - HEADROOM - JOB
        before = until(
            lambda: found if min((found := lent_bytes(session)).values()) > room else None,
            what="both donors lend more than beside a job", deadline_s=LIMIT_S,
        )  # fmt: skip
        memory = {name: node["memory"] for name, node in nodes(session).items()}
        for name, told in memory.items():
            assert isinstance(told, dict)
            assert told["lent_bytes"] > room
            assert (told["remote_bytes"] is None) is (name != "n1")  # the borrower is on the machine of the first node
        until(
            lambda: sum(int(str(nodes(session)["n1"]["memory"][what])) for what in HELD) == DEVICE,  # type: ignore[index,misc]
            what="all pages to be told of", deadline_s=LIMIT_S,
        )  # fmt: skip
        headroom = {name: int(str(node["headroom_bytes"])) for name, node in nodes(session).items()}
        # What is lent counts as free: the job is placed, though without it there might be no room.
        assert min(headroom.values()) > JOB

        file = tmp_path / "job.toml"
        command = [sys.executable, "-c", TRAIN, str(JOB), str(go)]
        file.write_text(f'command = {json.dumps(command)}\ngpus = 2\nmemory_per_gpu = "{2 * JOB // MIB}MiB"\n')
        job = farside(session, "submit", "--quiet", str(file))
        until_job(session, job, "running")
        after = until(
            lambda: found if max((found := lent_bytes(session)).values()) <= room else None,
            what="donors that have shrunk", deadline_s=LIMIT_S,
        )  # fmt: skip

        print(f"lent before {before}, beside the job {after}")
        counters = dict(control.blockdev_status(session.state))["counters"]
        assert counters["lost_pages"] == 0
        assert nbdsh(session.uri, CHECK).strip() == "True"
        go.touch()
        assert until_job(session, job, "done")["exit_code"] == 0


@pytest.mark.long  # tests/daemon/test_limit.py and tests/live/test_memory_orders.py have its parts
def test_a_node_that_may_lend_no_more_gives_all_back_and_no_page_is_lost(tmp_path: Path) -> None:
    sizes = ("--cluster", "2x1", "--donors", "2", "--donor-memory", str(DONOR), "--size", str(DEVICE), "--slab", "4MiB")
    with open_sandbox(sizes, state=tmp_path / "state") as session:
        nbdsh(session.uri, WRITE)
        until(lambda: min(lent_bytes(session).values()) > 0, what="both donors lend", deadline_s=LIMIT_S)

        def lends_nothing() -> bool:
            memory = nodes(session)["n1"]["memory"]
            assert isinstance(memory, dict)
            return (memory["lent_bytes"], memory["lend_limit_bytes"], memory["lend_problem"]) == (0, 0, None)

        farside(session, "node", "set", "n1", "lend=off")
        until(lends_nothing, what="a donor that lends nothing", deadline_s=LIMIT_S)
        control.kill_donor(session.state, "d1")
        control.start_donor(session.state, "d1")
        until(lends_nothing, what="the same of the next donor", deadline_s=LIMIT_S)

        assert dict(control.blockdev_status(session.state))["counters"]["lost_pages"] == 0
        assert nbdsh(session.uri, CHECK).strip() == "True"
        farside(session, "node", "set", "n1", "lend=on")

        # Nobody need borrow from it at once: the pages have other places by now.
        def could_lend() -> bool:
            memory = nodes(session)["n1"]["memory"]
            assert isinstance(memory, dict)
            return memory["lend_limit_bytes"] is None and memory["lendable_bytes"] > 0

        until(could_lend, what="a donor that could lend again", deadline_s=LIMIT_S)
