"""Series of busy nodes: gaps, faults of monitoring, and files."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from farside.errors import ConfigError
from farside.scheduler.energy.busy_series import Zeros, from_samples
from farside.scheduler.sim.energy.read_series import read_series, seconds_of
from farside.scheduler.table import Floats


def times(count: int, step_s: float = 600.0) -> Floats:
    return np.array([at * step_s for at in range(count)])


def minutes(
    values: Sequence[float], total: float | Sequence[float] = 10.0, *, zeros: Zeros = Zeros.GAP
) -> tuple[list[float], list[float]]:
    totals = np.full(len(values), total) if isinstance(total, float) else np.array(total, dtype=float)
    series = from_samples(times(len(values)), np.array(values, dtype=float), totals, zeros=zeros)
    return series.active.tolist(), series.total.tolist()


def test_an_interval_is_as_busy_as_its_busiest_minute() -> None:
    series = from_samples(times(20, 60.0), np.array([3.0] * 9 + [7.0] + [2.0] * 10), np.full(20, 10.0))

    assert series.active.tolist() == [7.0, 2.0]


def test_zeros_are_gaps_and_the_last_value_stands_until_the_next() -> None:
    active, _ = minutes([4, 0, 0, 6])

    assert active == [4, 4, 4, 6]


def test_zeros_may_be_meant() -> None:
    active, _ = minutes([4, 0, 6], zeros=Zeros.REAL)

    assert active == [4, 0, 6]


def test_what_is_missing_is_a_gap_and_said_to_be_one() -> None:
    time_s = np.array([0.0, 600.0, 2400.0])

    series = from_samples(time_s, np.array([4.0, np.nan, 5.0]), np.full(3, 10.0))

    assert series.active.tolist() == [4, 4, 4, 4, 5]
    assert series.is_gap.tolist() == [False, True, True, True, False]


def test_a_series_begins_with_the_first_value_that_is_known() -> None:
    series = from_samples(times(3), np.array([0.0, 0.0, 5.0]), np.full(3, 10.0))

    assert (series.start_s, len(series)) == (1200.0, 1)


def test_a_cluster_that_seems_to_lose_half_its_nodes_for_an_hour_is_not_believed() -> None:
    active, total = minutes([90] * 3 + [30] * 6 + [91], [100] * 3 + [40] * 6 + [100])

    assert total == [100] * 10
    assert active == [90] * 9 + [91]


def test_a_cluster_that_stays_small_is_believed_after_a_day() -> None:
    _, total = minutes([90] * 3 + [30] * 200, [100] * 3 + [40] * 200)

    assert total[146] == 100
    assert total[147] == 40


def test_more_nodes_than_there_are_are_never_busy() -> None:
    assert minutes([12])[0] == [10]


def test_nothing_but_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="busy"):
        minutes([0, 0])


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_may_be_packed(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("time,active,total\n2017-11-15 00:00:00,3,10\n2017-11-15 00:10:00,4,10\n")

    series = read_series([path])

    assert series.active.tolist() == [3, 4]
    assert series.start_s == seconds_of("2017-11-15")


def test_virtual_clusters_are_summed_in_whole_nodes(tmp_path: Path) -> None:
    header = "time,total_gpu_num,running_gpu_num,pending_gpu_num"
    one = write(tmp_path / "a.csv", header, "2020-05-01 00:00:00,64,9,0", "2020-05-01 00:10:00,64,0,0")
    two = write(tmp_path / "b.csv", header, "2020-05-01 00:00:00,16,1,0", "2020-05-01 00:10:00,16,0,0")

    series = read_series([one, two])

    assert series.active.tolist() == [3, 3]
    assert series.total.tolist() == [10, 10]
    assert series.is_gap.tolist() == [False, True]  # nobody at all is a fault of monitoring


def test_one_virtual_cluster_may_be_empty(tmp_path: Path) -> None:
    header = "time,total_gpu_num,running_gpu_num"
    path = write(tmp_path / "a.csv", header, "2020-05-01 00:00:00,64,9", "2020-05-01 00:10:00,64,0")

    assert read_series([path]).active.tolist() == [2, 0]


def test_a_clock_that_was_set_back_does_no_harm(tmp_path: Path) -> None:
    rows = ("2017-11-05 01:50:00,3,10", "2017-11-05 01:00:00,5,10", "2017-11-05 01:50:00,4,10")

    series = read_series([write(tmp_path / "a.csv", "time,active,total", *rows)])

    assert series.active.tolist() == [5, 5, 5, 5, 5, 4]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("when,active,total",), "the header has neither"),
        (("time,active,total",), "has no rows"),
        (("time,active,total", "2017-11-15,3"), "line 2: has 2 columns"),
        (("time,active,total", "2017-11-15,three,10"), "line 2: 'three' is no number"),
        (("time,active,total", "2017-11-15,-3,10"), "line 2: -3 nodes"),
        (("time,active,total", "soon,3,10"), "'soon' is no date"),
        (("time,active,total", "1600000000,3,10"), "'1600000000' is no date"),
        (("time,active,total", "2017-11-15,0,10"), "no sample has busy nodes"),
    ],
)
def test_a_bad_file_gets_one_line_that_says_where(tmp_path: Path, lines: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_series([write(tmp_path / "a.csv", *lines)])


def test_a_packed_file_cut_short_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"time,active,total\n" + b"2017-11-15,3,10\n" * 9999)[:50])

    with pytest.raises(ConfigError, match="is no CSV file"):
        read_series([path])


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_series([tmp_path / "none.csv"])


@pytest.mark.parametrize("text", ["now", "today", "", "2017-13-01", "NaT"])
def test_only_dates_are_dates(text: str) -> None:
    with pytest.raises(ConfigError, match="no date"):
        seconds_of(text)


def written(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text("time,active,total\n" + "\n".join(rows) + "\n")
    return path


def test_times_that_lie_centuries_apart_are_refused_with_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "9999-01-01,1,10", "0001-01-01,1,10")

    with pytest.raises(ConfigError, match=r"nodes.csv: from 0001-01-01 \(line 3\) to 9999-01-01 \(line 2\)"):
        read_series([path])


def test_a_time_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "2020-05-01,1,10", "soon,1,10")

    with pytest.raises(ConfigError, match=r"nodes.csv line 3: time: 'soon' is no date"):
        read_series([path])


def test_a_time_with_a_zone_is_counted_in_utc() -> None:
    assert seconds_of("2020-05-01 02:00:00+02:00") == seconds_of("2020-05-01")
    assert seconds_of("2020-05-01T00:00:00Z") == seconds_of("2020-05-01")


def test_a_month_is_a_date_too() -> None:
    assert seconds_of("2020-05") == seconds_of("2020-05-01")


def test_more_busy_than_there_are_counts_as_all_busy_and_is_told(tmp_path: Path) -> None:
    series = read_series([written(tmp_path, "2020-05-01 00:00,12,10", "2020-05-01 00:10,4,10")])

    assert series.active.tolist() == [10, 4]
    assert series.above_rows == 1


def test_columns_that_were_swapped_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="were the two columns swapped"):
        read_series([written(tmp_path, "2020-05-01 00:00,12,10", "2020-05-01 00:10,14,10")])
