"""fio's nbd engine: load that checks every byte it reads."""

import pytest

from tests.interop.server import Server
from tests.support.programs import need, outcome, run


def fio(uri: str, *options: str) -> str:
    """Output of a fio job on `uri`; fio ends with an error when a block does not verify."""
    need("fio")
    if "nbd" not in outcome(["fio", "--enghelp"]).stdout.split():
        pytest.skip("this fio has no nbd engine")
    return run(["fio", "--name=v", "--verify_state_save=0", "--ioengine=nbd", f"--uri={uri}", "--thread", *options])


def test_a_mix_of_block_sizes_verifies(server: Server) -> None:
    fio(
        server.uri,
        "--rw=randwrite",
        "--bssplit=4k/25:16k/25:128k/50",
        "--size=96M",
        "--iodepth=32",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--randrepeat=0",
    )


def test_reads_and_writes_at_once_verify(server: Server) -> None:
    fio(
        server.uri,
        "--rw=randrw",
        "--bs=4k",
        "--size=48M",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_backlog=256",
        "--verify_fatal=1",
    )


def test_four_jobs_in_areas_of_their_own_verify(server: Server) -> None:
    fio(
        server.uri,
        "--numjobs=4",
        "--offset_increment=32M",
        "--rw=randwrite",
        "--bs=16k",
        "--size=24M",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
    )


def test_a_trim_before_every_write_does_no_harm(server: Server) -> None:
    fio(server.uri, "--rw=trimwrite", "--bs=2M", "--size=64M", "--iodepth=4")
