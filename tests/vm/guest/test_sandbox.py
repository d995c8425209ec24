"""A whole memory plane in the guest, and clients that check every byte: libnbd's, and the kernel's own."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.sandbox.session import open_sandbox
from tests.support.programs import run
from tests.support.waiting import until

DEVICE = Path("/dev/nbd0")


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a sandbox with two donors over TCP listens."""
    folder = tmp_path_factory.mktemp("plane")
    arguments = ["--donors", "2", "--donor-memory", "64MiB", "--size", "96MiB", "--slab", "8MiB"]
    arguments += ["--transport", "tcp", "--listen", f"unix:{folder}/s"]
    with open_sandbox(arguments, state=folder / "state"):
        yield folder / "s"


def verifying_fio(*target: str) -> str:
    argv = ["fio", "--name=v", "--rw=randwrite", "--bssplit=4k/50:128k/50", "--size=24M", "--iodepth=8", *target]
    return run([*argv, "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"], limit_s=300)


def test_fio_verifies_over_libnbd(socket: Path) -> None:
    said = verifying_fio("--ioengine=nbd", f"--uri=nbd+unix:///?socket={socket}", "--thread")

    assert "err= 0" in said


@pytest.mark.usefixtures("nbd_module")
def test_fio_verifies_on_the_kernels_device(socket: Path) -> None:
    run(["nbd-client", "-unix", str(socket), str(DEVICE), "-block-size", "4096"])
    try:
        until(lambda: Path("/sys/block/nbd0/size").read_text().strip() != "0", what="nbd0's size")
        said = verifying_fio(f"--filename={DEVICE}", "--ioengine=libaio", "--direct=1")
    finally:
        subprocess.run(["nbd-client", "-d", str(DEVICE)], check=True)

    assert "err= 0" in said
