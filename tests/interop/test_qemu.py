"""QEMU's NBD client: qemu-io and qemu-img."""

from tests.interop.server import Server
from tests.support.programs import need, run


def qemu_io(uri: str, *commands: str) -> str:
    """Output of a qemu-io session."""
    need("qemu-io")
    pairs = [part for command in commands for part in ("-c", command)]
    return run(["qemu-io", "-t", "none", "-f", "raw", *pairs, uri])


def test_a_written_pattern_is_read_back(server: Server) -> None:
    printed = qemu_io(server.uri, "write -P 0xab 0 64k", "read -P 0xab 4k 8k", "read -P 0xab 0 64k", "flush")

    assert "verification failed" not in printed


def test_a_discarded_range_reads_as_zeros(server: Server) -> None:
    printed = qemu_io(server.uri, "write -P 0xcd 0 4M", "discard 0 2M", "read -P 0 0 2M", "read -P 0xcd 2M 2M")

    assert "verification failed" not in printed


def test_zeroes_are_written_with_and_without_unmapping(server: Server) -> None:
    printed = qemu_io(
        server.uri,
        "write -P 0xee 0 1M",
        "write -z 4k 8k",
        "write -z -u 256k 256k",
        "read -P 0xee 0 4k",
        "read -P 0 4k 8k",
        "read -P 0xee 12k 4k",
        "read -P 0 256k 256k",
        "read -P 0xee 512k 512k",
    )

    assert "verification failed" not in printed


def test_a_write_of_less_than_a_page_keeps_the_rest_of_the_page(server: Server) -> None:
    # QEMU does the read and the write itself where we ask for whole pages, and leaves it to us where we do not.
    printed = qemu_io(
        server.uri,
        "write -P 0x11 0 16k",
        "write -P 0x22 1k 512",
        "write -P 0x33 3584 1k",
        "read -P 0x11 0 1k",
        "read -P 0x22 1k 512",
        "read -P 0x11 1536 2k",
        "read -P 0x33 3584 1k",
        "read -P 0x11 4608 11k",
    )

    assert "verification failed" not in printed


def test_many_requests_in_one_session_are_all_answered(server: Server) -> None:
    writes = [f"aio_write -P {n + 1} {n * 64}k 64k" for n in range(64)]
    reads = [f"read -P {n + 1} {n * 64}k 64k" for n in range(64)]

    printed = qemu_io(server.uri, *writes, "aio_flush", *reads)

    assert "verification failed" not in printed


def test_qemu_img_bench_writes_and_reads_at_depth_32(server: Server) -> None:
    need("qemu-img")
    bench = ["qemu-img", "bench", "-f", "raw", "-t", "none", "-c", "10000", "-d", "32", "-s", "4096"]

    assert "Run completed" in run([*bench, "-w", server.uri])
    assert "Run completed" in run([*bench, server.uri])


def test_qemu_img_compare_finds_a_device_identical_with_itself(server: Server) -> None:
    need("qemu-img")
    qemu_io(server.uri, "write -P 0x5a 1M 3M")

    assert "identical" in run(["qemu-img", "compare", "-f", "raw", "-F", "raw", server.uri, server.tcp_uri])
