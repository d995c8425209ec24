"""A machine whose swap is served by its own processes is rebooted, with pages out."""

import json
import time
from dataclasses import asdict

import pytest

from tests.support.waiting import until
from tests.vm.conftest import LOGS
from tests.vm.guest.survival import Row
from tests.vm.harness.guest import Guest
from tests.vm.inside import TREE

pytestmark = pytest.mark.vm

# systemd waits 90 s for what does not end by itself; the rest is emulation.
LIMIT_S = 420.0
# The plane of the guest's tests, left to itself: donors, borrower, swap on, and a program that swaps.
BEGIN = """
import pathlib, signal, tempfile
from tests.vm.guest.load import load
from tests.vm.guest.swap_plane import Plane, swap_must
folder = pathlib.Path(tempfile.mkdtemp(dir="/root"))
plane = Plane(folder)
plane.start_all()
swap_must("attach", "--socket", str(plane.admin_socket), "--connections", "2")
with load(folder, limit_mib=8):
    pathlib.Path("/run/swapping").touch()
    signal.pause()
"""


def test_a_machine_that_swaps_to_itself_goes_down_in_time_and_comes_up_clean(guest: Guest) -> None:
    guest.run("cat >/root/begin.py", stdin=BEGIN.encode())
    guest.run(f"(cd {TREE} && PYTHONPATH=. exec setsid python3 -B /root/begin.py) >/root/begin.log 2>&1 </dev/null &")
    until(
        lambda: guest.outcome("test -e /run/swapping").status == 0,
        what="a guest that swaps",
        deadline_s=LIMIT_S,
        every_s=2,
    )
    assert "/dev/nbd0" in guest.run("cat /proc/swaps")
    page_ins = int(guest.run("sed -n 's/^pswpin //p' /proc/vmstat"))

    began_s = time.monotonic()
    guest.outcome("systemd-run --no-block systemctl reboot")
    guest.wait_off(LIMIT_S)
    off_s = time.monotonic() - began_s

    guest.boot()
    assert guest.run("cat /proc/swaps").count("\n") == 1
    assert guest.run("systemctl is-system-running || true").strip() == "running"
    keep(page_ins, off_s)


def keep(page_ins: int, off_s: float) -> None:
    """A row of the table of survival."""
    row = Row(
        fault="reboot with pages out, and up again",
        second_copy="disk",
        transport="tcp",
        accesses=0,
        page_ins=page_ins,
        wrong_pages=0,
        failed_reads=0,
        lost_pages=0,
        lost_processes=0,
        stall_s=off_s,
    )
    target = LOGS / "survival/test_shutdown.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{json.dumps(asdict(row))}\n")


def is_swapping(guest: Guest) -> bool:
    return guest.outcome("test -e /run/swapping").status == 0
