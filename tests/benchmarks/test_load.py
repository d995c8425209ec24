"""The load generator and the floor server, built and run for a moment."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.load import BenchmarkError, build_program, cpu_s, fill, run_load
from benchmarks.result import Point, Rw, Sample
from benchmarks.server import Server, floor, nbdkit_memory

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

DEVICE_BYTES = 16 << 20


@pytest.fixture
def floor_server(tmp_path: Path) -> Iterator[Server]:
    with floor(tmp_path, DEVICE_BYTES) as server:
        yield server


def run_briefly(server: Server, rw: Rw, *, depth: int = 4, connections: int = 1, stamp: bool = True) -> Sample:
    return run_load(
        build_program("nbd_load"),
        server.socket,
        Point(rw=rw, block_bytes=4096, depth=depth, connections=connections),
        seconds=0.1,
        warmup_s=0.01,
        seed=1,
        stamp=stamp,
        roles=server.roles,
        server=server.name,
        repetition=0,
    )


@pytest.mark.parametrize("rw", list(Rw))
def test_a_load_counts_requests_latency_and_cpu_time(floor_server: Server, rw: Rw) -> None:
    sample = run_briefly(floor_server, rw, connections=2, stamp=False)

    assert sample.iops > 0
    assert 0 < sample.p50_us <= sample.p99_us <= sample.p999_us <= sample.max_us * 1.01
    assert sample.failed == sample.misread == 0
    assert sample.cpu_us_per_request["client"] > 0
    assert sample.cpu_us_per_request["server"] > 0


def test_a_server_that_returns_other_data_than_was_written_is_caught(floor_server: Server) -> None:
    fill(build_program("nbd_load"), floor_server.socket)

    assert run_briefly(floor_server, Rw.READ).misread > 0


@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="no nbdkit")
def test_what_a_memory_server_returns_carries_its_stamps(tmp_path: Path) -> None:
    with nbdkit_memory(tmp_path, DEVICE_BYTES) as server:
        fill(build_program("nbd_load"), server.socket)
        run_briefly(server, Rw.WRITE, depth=16)

        assert run_briefly(server, Rw.READ, depth=16).misread == 0


def test_a_load_without_a_server_is_an_error_of_one_line(tmp_path: Path) -> None:
    server = Server(name="nobody", socket=tmp_path / "none.sock")

    with pytest.raises(BenchmarkError, match="did not connect"):
        run_briefly(server, Rw.READ)


def test_the_cpu_time_of_a_process_that_is_gone_is_zero() -> None:
    assert cpu_s((2**22 - 1,)) == 0.0
