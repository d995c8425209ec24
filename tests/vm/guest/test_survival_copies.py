"""As test_survival.py, where second copies lie otherwise: at another donor, or in a file of a full file system.

Each test has a device of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.programs import outcome, run
from tests.support.waiting import until
from tests.vm.guest.load import load
from tests.vm.guest.survival import survived
from tests.vm.guest.swap_plane import LIMIT_S, SIZE, Donor, Plane, swap, swap_must

MIB = 1 << 20
MakePlane = Callable[..., AbstractContextManager[Plane]]


@pytest.fixture
def attached(tmp_path: Path) -> MakePlane:
    """Makes a plane whose device is swap."""

    @contextmanager
    def make(donors: tuple[str, ...], **settings: object) -> Iterator[Plane]:
        made = Plane(
            tmp_path,
            donors=[Donor(name=name, port=7701 + number) for number, name in enumerate(donors)],
            settings={"size_bytes": 64 * MIB, **settings},
        )
        outcome(["dmesg", "--clear"])
        try:
            made.start_all()
            swap_must("attach", "--socket", str(made.admin_socket), "--connections", "2")
            yield made
            swap("detach", "--force-although-memory-may-run-out")
        finally:
            made.end()

    return make


def test_a_donor_and_the_servers_process_are_killed_at_once_with_replicas(attached: MakePlane, tmp_path: Path) -> None:
    names = ("d1", "d2", "d3")
    with attached(names, protection="replica", disk_path=None) as plane, load(tmp_path, limit_mib=8) as witness:
        witness.tell()
        pid = plane.told()["server_pid"]
        with survived("donor and block process killed at once", plane, witness, processes=("d2", "d3")):
            plane.kill("d1")
            plane.kill_server()
            until(lambda: other_than(plane, pid), what="another server", deadline_s=LIMIT_S, every_s=0.2)
        until(lambda: not plane.told()["pages_exposed"], what="two copies of all", deadline_s=LIMIT_S, every_s=0.5)
        with survived("one of the two donors left killed", plane, witness, processes=("d3",)):
            plane.kill("d2")


def other_than(plane: Plane, pid: int) -> bool:
    told = plane.status()
    return told is not None and told["server_pid"] != pid


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the disk file, and not much more."""
    image, folder = tmp_path / "small.img", tmp_path / "small"
    run(["modprobe", "loop"])
    run(["fallocate", "-l", str(SIZE), str(image)])
    run(["mke2fs", "-q", "-F", "-t", "ext4", str(image)], limit_s=LIMIT_S)
    folder.mkdir()
    run(["mount", "-o", "loop", str(image), str(folder)])
    yield folder
    run(["umount", str(folder)])


def test_the_disks_file_system_is_full(attached: MakePlane, small: Path, tmp_path: Path) -> None:
    with attached(("d1", "d2"), disk_path=str(small / "disk")) as plane, load(tmp_path, limit_mib=8) as witness:
        with survived("disk full, then a donor killed", plane, witness, processes=("d2",)):
            filled = outcome(["dd", "if=/dev/zero", f"of={small}/more", "bs=1M"], limit_s=LIMIT_S)
            assert "No space left on device" in filled.stderr
            witness.tell()
            plane.kill("d1")
        assert plane.told()["errors"]["disk"] == 0
