"""A whole machine far out of memory swaps to another, by TCP and by soft RDMA: it neither hangs nor loses a process."""

import os
import secrets
import select
import time
from pathlib import Path
from subprocess import Popen

import pytest

from tests.vm.conftest import LOGS
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network
from tests.vm.inside import PATIENCE, TREE, keep_rows
from tests.vm.survival_table import read_rows

BORROWER, DONOR = 1, 2
# By the guest's clock; and what the programs of tests/vm/guest/pressure.py touch, over what the machine has.
SECONDS, TIMES = 600, 3
# How long the machine may say nothing at all. The kernel gives a request up after 30 s.
SILENCE_S = 120.0 * PATIENCE
START_S = 600.0 * PATIENCE
LIMIT_S = 2700.0 * PATIENCE
MODULE = f"cd {TREE} && python3 -B -m tests.vm.guest"

pytestmark = [pytest.mark.vm, pytest.mark.guests(memory_mib=(384, 1536))]


@pytest.mark.parametrize(("transport", "page_ins"), [("tcp", 100_000), ("rdma", 20_000)])
def test_a_machine_far_out_of_memory_goes_on(pair: Network, transport: str, page_ins: int) -> None:
    borrower, donor = pair[BORROWER], pair[DONOR]
    key, kept = secrets.token_hex(32), LOGS / f"pressure-{transport}.jsonl"
    borrower.hear_questions()
    donor.run(f"({MODULE}.far_donor {donor.address} {key}) >/root/log 2>&1 </dev/null", limit_s=START_S)

    with borrower.spawn(f"{MODULE}.pressure {donor.address} {key} {transport} {SECONDS} {TIMES}") as program:
        try:
            said = listen(borrower, program, LOGS / f"pressure-{transport}.log")
        finally:
            program.kill()

    keep_rows(borrower, kept)
    rows = LOGS / "survival/test_pressure.jsonl"
    rows.parent.mkdir(exist_ok=True)
    with rows.open("a") as all_rows:
        all_rows.write(kept.read_text())
    assert said.endswith("judged\n"), said[-2000:]
    (row,) = read_rows(kept)
    assert row.page_ins >= page_ins, row


def listen(guest: Guest, program: "Popen[str]", log: Path) -> str:
    """What the program says to its end; of a guest that falls silent ``log`` has what its tasks wait for."""
    assert program.stdout is not None
    said, end_s, waited_for = b"", time.monotonic() + LIMIT_S, ""
    log.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < end_s:
        if not select.select([program.stdout], [], [], SILENCE_S if said else START_S)[0]:
            waited_for = guest.ask_kernel()
            break
        got = os.read(program.stdout.fileno(), 1 << 16)
        said += got
        log.write_bytes(said)
        if not got:
            return said.decode(errors="replace")
    log.write_text(f"{said.decode(errors='replace')}\n{waited_for}")
    pytest.fail(f"it fell silent, or was not done in time; what it said, and what its tasks waited for: {log}")
