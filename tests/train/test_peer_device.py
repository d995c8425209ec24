"""Input in the memory of Farside's own donors, by a device that a worker starts for itself.

The guests of tests/vm run the death of all donors, too.
"""

import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farside.agent.training.alpha import Keep
from farside.errors import ConfigError
from farside.sandbox import control
from farside.sandbox.session import open_sandbox
from farside.training.loop.job import begin
from farside.training.loop.peer_device import REQUEST_BYTES, PeerDevice
from farside.training.loop.spill_file import Buffer, file_in
from farside.training.loop.spilled_blocks import SpilledBlocks
from farside.training.loop.spilling import SpillsBlocks
from tests.support.second_borrower import DONORS, SIZE_BYTES, second_borrower
from tests.support.waiting import until
from tests.train.test_spilling import Made, look, mixed, wanted

BLOCKS, BLOCK_NUMBERS, ITERATIONS = 12, 40_000, 40


@pytest.fixture(scope="module")
def peer_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Those of a borrower that nobody has started, with two donors that run (a sandbox's), in the folder `state`."""
    folder = tmp_path_factory.mktemp("peer")
    with open_sandbox(DONORS, state=folder / "state") as session:
        second_borrower(session, folder)
        yield folder / "second.toml"


def test_a_device_is_a_workers_own_and_has_its_memory_at_donors(peer_settings: Path, tmp_path: Path) -> None:
    lines = [one for one in peer_settings.read_text().splitlines() if not one.startswith(("deadline_s", "grace_s"))]
    (tmp_path / "slow.toml").write_text("\n".join(["deadline_s = 3.0", "grace_s = 4.5", *lines]))
    device = PeerDevice(tmp_path / "slow.toml")
    until(lambda: device.room_for(REQUEST_BYTES) is not None, what="the memory of the device", every_s=0.05)
    written = secrets.token_bytes(3 * REQUEST_BYTES)
    one, other = Buffer(len(written)), Buffer(len(written))
    one.view(len(written))[:] = written

    device.write(one.view(len(written)), 4096)
    device.read(other.view(len(written)), 4096)

    assert other.view(len(written)) == written
    assert device.cpu_s() > 0
    assert device._sock is not None
    still = device._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    assert struct.unpack("ll", still) == (8, 500_000)  # a borrower that gives donors up goes on by others
    assert device.room_for(SIZE_BYTES) is None
    with pytest.raises(OSError, match=r"Invalid argument|No space left"):
        device.read(other.view(4096), SIZE_BYTES)
    device.close()
    assert device.is_gone


def test_settings_that_are_no_borrowers_and_donors_that_give_nothing_are_told(tmp_path: Path) -> None:
    path = tmp_path / "borrower.toml"
    with pytest.raises(ConfigError, match=r"--spill-peer: .*borrower\.toml"):
        PeerDevice(path)
    path.write_text('sise_bytes = "1GiB"\n')
    with pytest.raises(ConfigError, match=r"--spill-peer: .*sise_bytes"):
        PeerDevice(path)

    path.write_text(f'size_bytes = "64MiB"\nkey_file = "{tmp_path}/none"\npeers_file = "{tmp_path}/none"\n')
    device = PeerDevice(path)  # it ends, since there is no such key
    with pytest.raises(OSError, match="donors have not given its memory"):
        until(lambda: device.room_for(4096) is not None, what="the end of the device")
    assert device.is_gone
    with pytest.raises(OSError, match="it has failed before"):
        device.room_for(4096)
    device.close()


def test_nothing_is_borrowed_before_a_block_is_wanted_there_and_donors_that_give_nothing_are_told_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "borrower.toml"
    path.write_text(f'size_bytes = "64MiB"\nkey_file = "{tmp_path}/none"\npeers_file = "{tmp_path}/none"\n')
    device = PeerDevice(path)
    blocks = SpilledBlocks(
        Made(4, mixed), range(4), disk=file_in(tmp_path), peer=device, first_share=lambda *_: 0.0
    )  # fmt: skip
    for _ in range(2):
        assert look(blocks) == wanted(4)
    assert device.cpu_s() == 0  # no such process

    blocks.keep = Keep(spilled=1.0)
    until(lambda: look(blocks) == wanted(4) and device.is_gone, what="the end of the device")
    blocks.close()

    (line,) = (one.getMessage() for one in caplog.records if "a peer's memory is not used" in one.getMessage())
    assert line == "a peer's memory is not used any more"


def check_that_it_goes_on_by_the_disk(peer_settings: Path) -> None:
    """A job that reads all of its input from donors, which die in the middle."""

    def all_at_the_peer(spills: Any, _keep: Keep | None) -> None:
        spills._blocks.keep = Keep(spilled=1.0, by_peer=1.0)

    source = Made(BLOCKS, lambda number: np.full(BLOCK_NUMBERS, 1.0 + number))
    state, done = peer_settings.parent / "state", list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpillsBlocks, "_obey", all_at_the_peer)
        patch.setenv("FARSIDE_SPILL_DIR", str(peer_settings.parent))
        patch.setenv("FARSIDE_SPILL_PEER", str(peer_settings))
        with begin(source, keys={"sum": ()}, iterations=ITERATIONS) as job:
            blocks: Any = job._own
            peer = blocks._peer.file
            until(lambda: peer.room_for(4096) is not None, what="the memory of the device", every_s=0.05)
            while job.goes_on():
                job.pull()
                if job.iteration == ITERATIONS // 2:
                    assert blocks.read_bytes[1] > BLOCKS * 8 * BLOCK_NUMBERS
                    for donor in control.record(state).donors:
                        control.kill_donor(state, donor.name)
                job.push({"sum": sum(float(block.data.sum()) for block in job.blocks())})
                done.append(job.iteration)
            assert job.pull()["sum"] == sum(range(1, BLOCKS + 1)) * BLOCK_NUMBERS
            assert blocks.costs[1] is None
    assert done == list(range(ITERATIONS))
    assert source.asked == [1] * BLOCKS


@pytest.mark.long
def test_a_job_whose_donors_die_goes_on_by_the_disk_and_loses_no_iteration(
    peer_settings: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_that_it_goes_on_by_the_disk(peer_settings)

    assert sum("a peer's memory is not used" in record.getMessage() for record in caplog.records) == 1
