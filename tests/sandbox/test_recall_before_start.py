"""A job's memory comes back before it starts: real donors, a borrower, agents and a manager, in a sandbox."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.job_commands import asked, farside, until_job
from tests.support.programs import nbdsh
from tests.support.waiting import until

MIB = 1 << 20
# One donor alone cannot hold the device: the other one holds 80 MiB of it or more, whichever was there first.
DONOR, DEVICE, RECALLED = 176 * MIB, 256 * MIB, 40 * MIB
LIMIT_S = 120.0
WRITE = f"for i in range({DEVICE // MIB}): h.pwrite(bytes([i % 251 + 1]) * {MIB}, i << 20)"
CHECK = f"print(all(h.pread({MIB}, i << 20) == bytes([i % 251 + 1]) * {MIB} for i in range({DEVICE // MIB})))"


def node(session: Session, name: str) -> dict[str, Any]:
    told: list[dict[str, Any]] = json.loads(farside(session, "nodes", "--json"))
    return next(one for one in told if one["name"] == name)


def lent_bytes(session: Session, name: str) -> int:
    """What the node's donor has lent, as its agent said last."""
    return int(node(session, name)["memory"]["lent_bytes"])


def lends(session: Session) -> bool:
    """Write the whole device, for a slab is placed when it is written, and look whether n1 lends what is recalled."""
    nbdsh(session.uri, WRITE)
    return lent_bytes(session, "n1") > RECALLED


def submit(session: Session, tmp_path: Path, name: str, *argv: str, memory_bytes: int) -> str:
    """A job that needs so much memory of one node."""
    file = tmp_path / "job.toml"
    file.write_text(
        f'command = {json.dumps(list(argv))}\ngpus = 1\nmemory_per_gpu = "{memory_bytes}B"\nnodes = ["{name}"]\n'
    )
    return farside(session, "submit", "--quiet", str(file))


@pytest.mark.long
def test_what_a_job_needs_is_recalled_before_it_starts_and_no_page_is_lost(tmp_path: Path) -> None:
    sizes = ("--cluster", "2x1", "--donors", "2", "--donor-memory", str(DONOR), "--size", str(DEVICE), "--slab", "4MiB")
    jobs: list[dict[str, Any]] = []
    with open_sandbox(sizes, state=tmp_path / "state") as session:
        for _ in range(2):
            until(lambda: lends(session), what="a donor that lends", deadline_s=LIMIT_S)
            found = node(session, "n1")
            lacking = found["headroom_bytes"] - found["memory"]["lent_bytes"] + RECALLED
            job = submit(session, tmp_path, "n1", sys.executable, "-c", "pass", memory_bytes=lacking)
            jobs.append(until_job(session, job, "done"))
        kinds: list[str] = [entry["type"] for entry in asked(session, "jobs", jobs[-1]["id"], "history")["entries"]]
        counters = dict(control.blockdev_status(session.state))["counters"]

        assert counters["lost_pages"] == 0
        assert nbdsh(session.uri, CHECK).strip() == "True"
    recalls = [job["recalls"][0] for job in jobs]
    for done, one in zip(jobs, recalls, strict=True):
        took_s = one["back_s"] - one["ordered_s"]
        print(f"{one['recalled_bytes'] / MIB:.0f} MiB came back in {took_s:.2f} s, expected {one['expected_s']}")
        assert one["ordered_s"] <= one["back_s"] <= done["started_s"]
    assert kinds.index("MemoryRecalled") < kinds.index("JobStarted")
    assert [one["expected_s"] is None for one in recalls] == [True, False]
