"""/dev/nbdX without swap, by our netlink and by nbd-client; and sockets that died are replaced."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.kmod_shim.nbd.client import connect_command
from tests.support.programs import outcome, run
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S, Plane, swap, swap_must

DEVICE = "/dev/nbd0"


@pytest.fixture
def attached(plane: Plane) -> Iterator[None]:
    swap_must("attach", "--socket", str(plane.admin_socket), "--block", "--device", DEVICE, "--connections", "2")
    yield
    if Path("/sys/block/nbd0/pid").exists():
        swap_must("detach", DEVICE)
    until(lambda: plane.told()["connections"] == 0, what="no client", deadline_s=60, every_s=0.5)


def verifying_fio() -> str:
    argv = ["fio", "--name=v", f"--filename={DEVICE}", "--direct=1", "--ioengine=libaio", "--rw=randwrite"]
    argv += ["--bssplit=4k/50:128k/50", "--size=24M", "--iodepth=8", "--verify=crc32c", "--do_verify=1"]
    return run([*argv, "--verify_fatal=1", "--verify_state_save=0"], limit_s=LIMIT_S)


@pytest.mark.usefixtures("attached")
def test_fio_verifies_on_two_sockets() -> None:
    assert "err= 0" in verifying_fio()
    assert Path("/sys/block/nbd0/backend").read_text() == "farside:swap0\n"


@pytest.mark.usefixtures("attached")
def test_a_mounted_device_is_not_detached(tmp_path: Path) -> None:
    run(["mke2fs", "-q", "-F", DEVICE], limit_s=LIMIT_S)
    run(["mount", DEVICE, str(tmp_path)])
    try:
        refused = swap("detach", DEVICE)
    finally:
        run(["umount", str(tmp_path)])

    assert refused.status == 2
    assert f"{DEVICE}: Device or resource busy" in refused.stderr


def test_what_is_no_swap_is_not_made_swap_unasked(plane: Plane) -> None:
    # The file system of the test before stands there still: the device remembers, whoever is attached.
    refused = swap("attach", "--socket", str(plane.admin_socket), "--device", DEVICE, "--connections", "1")

    assert refused.status == 2
    assert "holds something that is no swap area: ext2" in refused.stderr
    assert "--force-overwrite" in refused.stderr
    assert not Path("/sys/block/nbd0/pid").exists()


def test_nbd_client_attaches_by_itself_and_for_us(plane: Plane) -> None:
    endpoint = f"unix:{plane.nbd_socket}"
    run(connect_command(endpoint, "swap0", 0, connections=2, is_swap=False, netlink=True), limit_s=60)
    until(lambda: Path("/sys/block/nbd0/size").read_text() != "0\n", what="a size", deadline_s=60)
    assert "err= 0" in verifying_fio()
    run(["nbd-client", "-d", DEVICE], limit_s=60)
    until(lambda: plane.told()["connections"] == 0, what="no client", deadline_s=60, every_s=0.5)

    swap_must("attach", "--socket", str(plane.admin_socket), "--block", "--nbd-client", "--device", DEVICE)
    assert "err= 0" in verifying_fio()
    swap_must("detach", DEVICE)


def test_the_distributions_unit_attaches_by_nbdtab(plane: Plane) -> None:
    # as docs/operating.md has it
    Path("/etc/nbdtab").write_text(f"nbd0 {plane.nbd_socket} swap0 unix,bs=4096,timeout=30,conns=1\n")

    run(["systemctl", "start", "nbd@nbd0.service"], limit_s=120)
    try:
        said = verifying_fio()
    finally:
        run(["systemctl", "stop", "nbd@nbd0.service"], limit_s=120)

    assert "err= 0" in said


@pytest.mark.usefixtures("attached")
def test_sockets_that_have_died_are_dialled_again(plane: Plane, tmp_path: Path) -> None:
    with (tmp_path / "watch.log").open("wb") as log:
        watch = subprocess.Popen([sys.executable, "-m", "farside", "swap", "watch"], stderr=log)
    try:
        until(lambda: is_heard(watch.pid), what="a watcher that listens", deadline_s=LIMIT_S, every_s=0.5)
        server = plane.told()["server_pid"]
        plane.kill("blockdev")
        outcome(["kill", "-9", str(server)])
        outcome(["pkill", "-9", "-f", "farside.blockdev.server"])  # and the spare: nobody has the sockets now
        plane.start("blockdev")
        until(plane.is_up, what="a new borrower", deadline_s=LIMIT_S, every_s=0.5)

        until(lambda: plane.told()["connections"] == 2, what="two sockets", deadline_s=LIMIT_S, every_s=0.5)

        began_s = time.monotonic()
        run(["dd", f"if={DEVICE}", "of=/dev/null", "bs=4096", "count=16", "iflag=direct"], limit_s=LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S
    finally:
        watch.kill()
        watch.wait()


def is_heard(pid: int) -> bool:
    """Whether the process is a member of a netlink group."""
    for line in Path("/proc/net/netlink").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2] == str(pid) and int(fields[3], 16):
            return True
    return False
