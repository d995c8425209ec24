"""A donor on another machine, and the settings of who borrows from it; both by RDMA or TCP over the data network.

python3 -m tests.vm.guest.far_donor ADDRESS KEY     # starts the donor, and returns when it runs
"""

import sys
from pathlib import Path

from tests.support.soft_rdma import add_link
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S, Donor, Plane

FOLDER = Path("/root/plane")
MIB = 1 << 20


def plane_of(address: str, key: str, *, transport: str, disk_bytes: int, guard: str = "attach") -> Plane:
    """The settings of both machines; each starts its own part of it."""
    add_link("rxe0", "eth1")
    FOLDER.mkdir()
    donor = Donor(name="d1", address=address, settings={"max_slabs": 256, "headroom_bytes": "64MiB"})
    borrower = {"size_bytes": disk_bytes, "transport": transport, "workers": 1, "pressure_guard": guard}
    plane = Plane(FOLDER, donors=(donor,), settings=borrower)
    (FOLDER / "key").write_text(f"{key}\n")
    return plane


def lend(address: str, key: str) -> None:
    """Starts the donor, and returns when it answers."""
    plane = plane_of(address, key, transport="auto", disk_bytes=8 * MIB)
    plane.start("d1")
    until(lambda: (FOLDER / "d1.sock").exists(), what="a donor", deadline_s=LIMIT_S, every_s=0.5)


if __name__ == "__main__":
    lend(sys.argv[1], sys.argv[2])
