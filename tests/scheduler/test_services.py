"""Past jobs' GPU times from a file."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.sim.trace.read_services import read_services, with_prior
from tests.support.traces import CLUSTER_DATA


def test_the_named_column_is_read(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("job,gpu_time_s\na,5\n\nb,7.5\n")

    assert read_services(path) == (5.0, 7.5)


def test_the_only_column_may_have_any_name_and_the_file_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "past.csv.gz"
    path.write_bytes(gzip.compress(b"x\n3\n1\n"))

    order = with_prior(Gittins(), path)

    assert isinstance(order, Gittins)
    assert order.distribution.samples.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "text",
    [
        "job_id,num_gpu,submit_time,duration\na,4,0,100\nb,0,0,7\nc,1,5,2.5\n",
        "\ufeffgpus,duration_s\n4,100\n1,2.5\n",
    ],
)
def test_run_times_become_gpu_times(tmp_path: Path, text: str) -> None:
    path = tmp_path / "past.csv"
    path.write_text(text)

    assert read_services(path) == (400.0, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("duration\n5\nsoon\n", ", line 3, column duration: 'soon' is not a number; give a number from 0 to"),
        ("duration\n-1\n", ", line 2, column duration: '-1' is out of range"),
        ("duration\nnan\n", ", line 2, column duration: 'nan' is not a number"),
        ("job,gpu_time_s\na\n", ", line 2: 1 cells, the header has 2"),
        ("job,duration\na,1\n", ", line 1: no column gpu_time_s or service_gpu_s, nor both of duration_s or duration"),
        ("gpus,duration\n0,5\n", ": holds no job with GPUs"),
        ("", ": is empty"),
        ('job,gpu_time_s\n"' + 200_000 * "x" + '",1\n', ", line 2: quotes are not as in CSV (field larger than"),
        ("a\x1b[31m,b\n1,2\n", ", line 1: no column gpu_time_s"),
    ],
)
def test_a_bad_row_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "past.csv"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_services(path)

    assert str(raised.value).startswith(f"{path}{message}")
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("spoil", [lambda packed: packed[:-9], lambda packed: packed[:20] + b"spoilt" + packed[26:]])
def test_gzip_is_known_by_its_bytes_and_a_broken_one_is_told(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "past"
    packed = gzip.compress(b"gpu_time_s\n" + b"".join(b"%d\n" % at for at in range(1, 1000)))
    path.write_bytes(packed)
    assert len(read_services(path)) == 999
    path.write_bytes(spoil(packed))

    with pytest.raises(ConfigError, match="is not whole"):
        read_services(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_services(tmp_path / "none.csv")


def test_a_policy_that_learns_nothing_takes_no_past_jobs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fifo has no use"):
        with_prior(Fifo(), tmp_path / "none.csv")


def test_the_samples_of_the_authors_are_read() -> None:
    path = CLUSTER_DATA / "jobs" / "tiresias_yarn_gput1000.csv"
    if not path.exists():
        pytest.skip("no real traces on this machine")

    services = read_services(path)

    assert (len(services), min(services)) == (1001, 121)
