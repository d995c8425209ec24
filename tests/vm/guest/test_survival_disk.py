"""As test_survival.py, where the disk is slow or broken; and what becomes of pages that no copy is left of.

One device after another, each with two donors and a disk of device-mapper's.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import outcome
from tests.support.waiting import until
from tests.vm.guest.block_fault import FaultyDisk, faulty_disk
from tests.vm.guest.load import Load, load
from tests.vm.guest.survival import Row, grown, second_copy, survived, swap_errors, write
from tests.vm.guest.swap_plane import LIMIT_S, TWO, Plane, swap, swap_must, vmstat

SIZE = 64 << 20
SLOW_MS = 20
BOTH = ("d1", "d2")
READ_AHEAD_PAGES = 1 << 5  # vm.page-cluster


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """The backup disk, well as yet."""
    with faulty_disk(tmp_path, SIZE) as made:
        yield made


@pytest.fixture(params=["hot"])
def plane(request: pytest.FixtureRequest, disk: FaultyDisk, tmp_path: Path) -> Iterator[Plane]:
    """Two donors with room for all of it, and a borrower whose device is swap."""
    settings = {"size_bytes": SIZE, "disk_path": str(disk.path), "donors_hold": request.param}
    made = Plane(tmp_path, donors=TWO, settings=settings)
    outcome(["dmesg", "--clear"])
    try:
        made.start_all()
        swap_must("attach", "--socket", str(made.admin_socket), "--connections", "2")
        yield made
        swap("detach", "--force-although-memory-may-run-out")
    finally:
        made.end()


@pytest.fixture
def witness(plane: Plane, tmp_path: Path) -> Iterator[Load]:
    """The program that swaps."""
    with load(tmp_path, limit_mib=8) as one:
        one.tell()
        yield one


def test_the_disk_is_slow(plane: Plane, witness: Load, disk: FaultyDisk) -> None:
    with survived(f"disk slower by {SLOW_MS} ms", plane, witness, processes=BOTH):
        disk.slow(SLOW_MS)
    with survived("the same, and a donor killed", plane, witness, processes=("d2",)):
        plane.kill("d1")


@pytest.mark.parametrize("plane", ["all"], indirect=True)
def test_the_disk_breaks_altogether_where_donors_hold_all(plane: Plane, witness: Load, disk: FaultyDisk) -> None:
    until_donors_hold_all(plane)
    with survived("disk fails altogether, donors hold all", plane, witness, processes=BOTH, may_refuse_writes=True):
        disk.break_down()
    assert plane.told()["errors"]["disk"] > 0
    with survived(
        "the same, and a donor taken out for maintenance", plane, witness, processes=BOTH, may_refuse_writes=True
    ):
        plane.drain("d1")


@pytest.mark.parametrize("plane", ["twice"], indirect=True)
def test_two_of_three_copies_go_at_once_where_two_donors_hold_all(
    plane: Plane, witness: Load, disk: FaultyDisk
) -> None:
    until(
        lambda: not plane.told()["pages_disk_alone"] and not plane.told()["pages_single"],
        what="all at two donors", deadline_s=LIMIT_S, every_s=0.5,
    )  # fmt: skip
    with survived(
        "disk fails altogether, and a donor killed at once", plane, witness, processes=("d2",), may_refuse_writes=True
    ):
        disk.break_down()
        plane.kill("d1")


@pytest.mark.parametrize("plane", ["twice"], indirect=True)
def test_both_donors_go_at_once_where_the_disk_is_well(plane: Plane, witness: Load) -> None:
    with survived("both donors killed at once", plane, witness, processes=()):
        for donor in BOTH:
            plane.kill(donor)


def test_the_disk_breaks_bit_by_bit_where_donors_hold_what_is_hot(
    plane: Plane, witness: Load, disk: FaultyDisk
) -> None:
    with survived("disk fails every write", plane, witness, processes=BOTH, may_refuse_writes=True):
        disk.refuse_writes()
        until(lambda: plane.told()["pages_exposed"], what="pages with one copy", deadline_s=LIMIT_S, every_s=0.5)
    until_donors_hold_all(plane)
    with survived("the same disk then fails altogether", plane, witness, processes=BOTH, may_refuse_writes=True):
        disk.break_down()


def until_donors_hold_all(plane: Plane) -> None:
    """Until the disk alone has no page."""
    until(lambda: not plane.told()["pages_disk_alone"], what="all at donors", deadline_s=LIMIT_S, every_s=0.5)


def test_what_no_copy_is_left_of_fails_and_is_never_wrong(plane: Plane, tmp_path: Path, disk: FaultyDisk) -> None:
    with load(tmp_path, limit_mib=18, times=1, locked=True) as witness:  # half of it is locked: the rest is out
        witness.rest()
        outcome(["dmesg", "--console-level", "1"])  # a line a page, on an emulated serial line
        before, page_ins = plane.told(), vmstat("pswpin")

        disk.break_down()
        for donor in BOTH:
            plane.kill(donor)
        seen = witness.mourn()

        told, complaints, is_alive = plane.told(), swap_errors(), witness.is_alive()
    row = Row(
        fault="disk and both donors lost: no copy is left",
        second_copy=second_copy(told),
        transport="tcp",
        accesses=seen.accesses,
        page_ins=vmstat("pswpin") - page_ins,
        wrong_pages=seen.wrong,
        failed_reads=len(complaints),
        lost_pages=grown(before, told, "pages_lost"),
        lost_processes=0 if is_alive and plane.is_alive("blockdev") else 1,
        stall_s=seen.stall_s,
    )
    write(row)
    assert (row.wrong_pages, row.lost_processes) == (0, 0)
    assert seen.failed > 0  # it is told EIO, by a read that may fail; a touch would be a SIGBUS
    # A page that is not lost fails with the kernel's request, of up to a window of read-ahead, that it shares with one.
    assert row.lost_pages >= seen.failed - READ_AHEAD_PAGES
    assert complaints
