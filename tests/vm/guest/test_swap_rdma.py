"""The shortest proof of all: a stock kernel swaps to /dev/nbd0, and its pages travel by RDMA."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.soft_rdma import roce_gid
from tests.support.waiting import until
from tests.vm.guest.load import load
from tests.vm.guest.swap_plane import LIMIT_S, Donor, Plane, kernel_errors, swap, swap_must, vmstat

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("lasting_rxe0")]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    """One donor of every page, reached over the soft RDMA device and in no other way."""
    gid = roce_gid("rxe0")
    assert gid is not None
    donor = Donor(name="d1", address=str(gid.ipv4), settings={"headroom_bytes": "16MiB"})
    # all: what was swapped out before a slab was leased would come from the disk, which alone has it, for good reason.
    settings = {"transport": "rdma", "donors_hold": "all", "size_bytes": "64MiB"}
    made = Plane(tmp_path, donors=(donor,), settings=settings)
    try:
        made.start_all()
        yield made
    finally:
        made.end()


@pytest.fixture
def attached(plane: Plane) -> Iterator[None]:
    """/dev/nbd0 is swap."""
    swap_must("attach", "--socket", str(plane.admin_socket), "--connections", "2")
    yield
    if "/dev/nbd0" in Path("/proc/swaps").read_text():
        swap("detach", "--force-although-memory-may-run-out")


@pytest.mark.usefixtures("attached")
def test_a_machine_swaps_by_rdma_and_the_donors_programs_do_nothing_for_a_page(
    plane: Plane, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with load(tmp_path, limit_mib=6, times=2) as witness:
        until(lambda: not plane.told()["pages_disk_alone"], what="a donor of every page", deadline_s=LIMIT_S, every_s=1)
        page_ins, before, lent_before = vmstat("pswpin"), plane.told(), plane.donor_status("d1")["traffic"]
        seen = witness.tell()
        page_ins, told, lent = vmstat("pswpin") - page_ins, plane.told(), plane.donor_status("d1")["traffic"]

    by_rdma = told["pages_in"]["remote"] - before["pages_in"]["remote"]
    served_us = (lent["cpu_ns"] - lent_before["cpu_ns"]) / 1e3
    record_property("pages", f"{page_ins} swapped in, {by_rdma} of them by RDMA, {seen.wrong} of {seen.accesses} wrong")
    came = {place: count - before["pages_in"][place] for place, count in told["pages_in"].items()}
    record_property("came", ", ".join(f"{count} from {place}" for place, count in came.items()))
    record_property("hedges", ", ".join(f"{count} {what}" for what, count in told["hedges"].items()))
    record_property("donor", f"its threads served {lent['reads']} reads, and took {served_us:.0f} us of CPU")
    record_property("stall", f"{seen.stall_s:.2f} s the longest")
    assert seen.wrong == 0
    assert page_ins > 2000
    assert by_rdma >= page_ins * 9 / 10
    assert [donor["transport"] for donor in told["donors"]] == ["rdma"]
    assert (lent["reads"], lent["writes"]) == (0, 0)
    assert (told["errors"]["requests"], told["errors"]["pages_lost"], told["counters"]["rdma_fallbacks"]) == (0, 0, 0)
    assert kernel_errors() == []

    swap_must("detach")
    assert "/dev/nbd0" not in Path("/proc/swaps").read_text()
