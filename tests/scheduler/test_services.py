"""Past jobs' GPU times from a file."""

import gzip
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
    ("text", "message"),
    [
        ("duration\n5\nsoon\n", "line 3: duration: 'soon' is no number"),
        ("duration\n-1\n", "line 2: duration: '-1' is not finite and at least 0"),
        ("duration\nnan\n", "line 2: duration: 'nan' is not finite"),
        ("job,duration\na\n", "line 2: duration: '' is no number"),
        ("job,seconds\na,1\n", "line 1: no column gpu_time_s or service_gpu_s or duration; it has job, seconds"),
        ("", "line 1: no column"),
    ],
)
def test_a_bad_row_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "past.csv"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_services(path)

    assert str(raised.value).startswith(f"{path}: {message}")


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
