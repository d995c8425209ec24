"""A machine whose swap is served by its own processes goes down, with pages out."""

import json
import time
from dataclasses import asdict

import pytest

from tests.support.waiting import until
from tests.vm.conftest import LOGS
from tests.vm.guest.survival import Row
from tests.vm.guest.swap_plane import HOG
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


# The same by the units of systemd/, and a program that is a service too.
SERVE = f"cd {TREE} && python3 -B -m tests.vm.guest.service_plane >/root/begin.log 2>&1 </dev/null"
HOG_MIB = 12
SWAP_USE = f"systemd-run --quiet --unit=hog -p MemoryMax={HOG_MIB}M python3 /root/hog.py {3 * HOG_MIB * 256} 3600"
COMPLAINTS = ("I/O error", "Read-error", "Write-error")


def test_a_machine_that_swaps_to_itself_goes_down_in_time_and_comes_up_clean(guest: Guest) -> None:
    guest.run("cat >/root/begin.py", stdin=BEGIN.encode())
    guest.run(f"(cd {TREE} && PYTHONPATH=. exec setsid python3 -B /root/begin.py) >/root/begin.log 2>&1 </dev/null &")
    until(lambda: is_swapping(guest), what="a guest that swaps", deadline_s=LIMIT_S, every_s=2)
    assert "/dev/nbd0" in guest.run("cat /proc/swaps")

    keep("reboot with pages out, and up again", go_down(guest, "reboot"))
    come_up(guest)


@pytest.mark.parametrize("verb", ["reboot", "poweroff"])
def test_a_machine_whose_services_serve_its_swap_goes_down_in_order(guest: Guest, verb: str) -> None:
    guest.run(SERVE, limit_s=LIMIT_S)
    guest.run("cat >/root/hog.py", stdin=HOG.encode())
    guest.run(SWAP_USE)
    until(lambda: is_filled(guest), what="a program with pages out", deadline_s=LIMIT_S, every_s=2)
    assert int(guest.run("awk '/nbd0/ {print $4}' /proc/swaps")) > HOG_MIB << 10

    page_ins, off_s, errors = go_down(guest, verb)
    keep(f"{verb} under systemd's services", (page_ins, off_s, errors))
    assert errors == 0
    come_up(guest)


def go_down(guest: Guest, verb: str) -> tuple[int, float, int]:
    """Page-ins before it, seconds until it was off, and complaints of its kernel about pages."""
    page_ins = int(guest.run("sed -n 's/^pswpin //p' /proc/vmstat"))
    began_s = time.monotonic()
    guest.outcome(f"systemd-run --no-block systemctl {verb}")
    guest.wait_off(LIMIT_S)
    off_s = time.monotonic() - began_s
    lines = guest.kernel_log().splitlines()
    return page_ins, off_s, sum(any(word in line for word in COMPLAINTS) for line in lines)


def come_up(guest: Guest) -> None:
    """Boots it, and looks whether anything is left."""
    guest.boot()
    assert guest.run("cat /proc/swaps").count("\n") == 1
    assert guest.run("systemctl is-system-running || true").strip() == "running"


def keep(fault: str, seen: tuple[int, float, int]) -> None:
    """A row of the table of survival."""
    page_ins, off_s, errors = seen
    row = Row(
        fault=fault,
        second_copy="disk",
        transport="tcp",
        accesses=0,
        page_ins=page_ins,
        wrong_pages=0,
        failed_reads=errors,
        lost_pages=0,
        lost_processes=0,
        stall_s=off_s,
    )
    target = LOGS / "survival/test_shutdown.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as rows:
        rows.write(f"{json.dumps(asdict(row))}\n")


def is_swapping(guest: Guest) -> bool:
    return guest.outcome("test -e /run/swapping").status == 0


def is_filled(guest: Guest) -> bool:
    return guest.outcome("journalctl -u hog -o cat | grep -q filled").status == 0
