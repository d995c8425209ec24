"""A whole memory plane over soft RoCE in the guest, its bytes verified, while a donor dies."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from farside.errors import PeerError
from farside.kmod_shim.rdma.devices import Gid
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.programs import run
from tests.support.waiting import until

SIZES = ("--donors", "1", "--donor-memory", "64MiB", "--size", "64MiB", "--slab", "8MiB", "--workers", "1")


@pytest.fixture
def plane(rxe0: Gid, tmp_path: Path) -> Iterator[Session]:
    """A donor and a borrower; all that is not on its own disk goes by RDMA."""
    arguments = [*SIZES, "--transport", "rdma", "--listen", f"unix:{tmp_path}/s"]
    with open_sandbox(arguments, state=tmp_path / "state") as session:
        yield session


def fio(plane: Session, *options: str) -> str:
    argv = [
        "fio",
        "--name=v",
        "--ioengine=nbd",
        f"--uri={plane.uri}",
        "--thread",
        "--size=12M",
        "--iodepth=8",
        *options,
    ]
    return run([*argv, "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"], limit_s=600)


WRITE = ("--rw=randwrite", "--bssplit=4k/50:128k/50")


def test_fio_verifies_what_went_by_rdma(plane: Session) -> None:
    said = fio(plane, *WRITE, "--do_verify=1")

    assert "err= 0" in said
    told = control.blockdev_status(plane.state)
    assert {donor["transport"] for donor in told["donors"]} == {"rdma"}
    assert told["pages_out"]["remote"] > 0
    assert told["pages_in"]["remote"] > 0
    assert told["errors"]["requests"] == told["errors"]["pages_lost"] == told["errors"]["checksum"] == 0
    donor = control.donor_status(plane.state, "d1")
    assert donor["traffic"]["rdma_connections"] == 2
    assert donor["traffic"]["reads"] == donor["traffic"]["writes"] == 0  # no thread of its served a page
    assert {slab["transport"] for slab in donor["slabs"] if slab["lease"] is not None} == {"rdma"}


def test_a_killed_donors_pages_come_from_the_disk(plane: Session) -> None:
    fio(plane, *WRITE, "--do_verify=0")

    control.kill_donor(plane.state, "d1")
    said = fio(plane, *WRITE, "--verify_only")

    assert "err= 0" in said
    told = until(lambda: _without(plane, "d1"), what="the dead donor to be given up", deadline_s=120)
    assert told is not None
    assert told["errors"]["requests"] == told["errors"]["pages_lost"] == told["errors"]["checksum"] == 0


@pytest.mark.parametrize("end", [control.replace, control.kill_blockdev], ids=["replaced", "killed"])
def test_a_new_server_process_reads_what_the_old_one_wrote(plane: Session, end: Callable[[Path], object]) -> None:
    until(lambda: _written_to_donors(plane), what="pages at the donor", deadline_s=240)
    before = control.blockdev_status(plane.state)

    until(lambda: _done(end, plane), what="an end of the old server", deadline_s=240)
    told = until(lambda: _successor(plane, int(before["server_pid"])), what="another server", deadline_s=240)
    said = fio(plane, *WRITE, "--verify_only")

    assert "err= 0" in said
    assert told is not None
    assert told["counters"]["takeovers"] == 1
    told = control.blockdev_status(plane.state)
    assert {donor["transport"] for donor in told["donors"]} == {"rdma"}
    assert told["pages_in"]["remote"] > before["pages_in"]["remote"]
    assert told["errors"]["requests"] == told["errors"]["pages_lost"] == told["errors"]["checksum"] == 0


def _written_to_donors(plane: Session) -> bool:
    # The first pass may be over before its granules have mappings.
    fio(plane, *WRITE, "--do_verify=0")
    return bool(control.blockdev_status(plane.state)["pages_out"]["remote"])


def _done(end: Callable[[Path], object], plane: Session) -> bool:
    try:
        end(plane.state)
    except PeerError:  # a busy host's guest may take too long to start the replacement; the old server goes on
        return False
    return True


def _successor(plane: Session, pid: int) -> Mapping[str, Any] | None:
    try:
        told = control.blockdev_status(plane.state)
    except PeerError:  # nobody answers between the two
        return None
    is_linked = all(donor["state"] == "up" for donor in told["donors"])
    return told if told["server_pid"] != pid and is_linked else None


def _without(plane: Session, name: str) -> Mapping[str, Any] | None:
    told = control.blockdev_status(plane.state)
    states = {donor["node"]: donor["state"] for donor in told["donors"]}
    return told if states[name] != "up" and all(slab["donor"] != name for slab in told["slabs"]) else None
