"""A trace in figures, against figures taken by hand."""

from pathlib import Path

import pytest

from farside.scheduler.sim.trace.bins import ORIGINAL, SCALED
from farside.scheduler.sim.trace.describe import Share, describe, offered_load
from farside.scheduler.sim.trace.job import Trace
from farside.scheduler.sim.trace.read import read_trace
from tests.support.trace_files import FARSIDE, write_file
from tests.support.traces import trace


def made(*rows: tuple[float, float, int]) -> Trace:
    return Trace(jobs=tuple(trace(rows)))


def test_the_offered_load_is_what_jobs_need_by_what_there_is_while_they_come() -> None:
    jobs = made((0.0, 100.0, 2), (50.0, 50.0, 4)).jobs

    assert offered_load(jobs, 10) == (200 + 200) / (50 * 10)


def test_jobs_that_come_at_once_have_no_load_to_tell() -> None:
    found = describe(made((5.0, 100.0, 2), (5.0, 1.0, 99)), gpus=8)

    assert found.load is not None
    assert (found.load.offered, found.load.too_large) == (None, 1)


def test_durations_gaps_and_shares_are_those_of_the_jobs() -> None:
    found = describe(made((0.0, 100.0, 1), (10.0, 300.0, 8), (30.0, 200.0, 1)))

    assert (found.jobs, found.gpu_s, found.users, found.names) == (3, 2700.0, 0, 0)
    assert (found.duration_s.mean, found.duration_s.lowest, found.duration_s.highest) == (200.0, 100.0, 300.0)
    assert found.duration_s.percentiles[2] == 200.0
    assert found.gap_s is not None
    assert (found.gap_s.mean, found.gap_s.lowest, found.gap_s.highest) == (15.0, 10.0, 20.0)
    assert found.by_gpus == (Share(name="1", jobs=2, gpu_s=300.0), Share(name="8", jobs=1, gpu_s=2400.0))
    assert found.load is None


def test_hours_and_days_are_those_of_the_clock_on_the_wall(tmp_path: Path) -> None:
    found = describe(read_trace(write_file(tmp_path, FARSIDE)))

    assert found.by_hour[8] == sum(found.by_hour) == 2
    assert found.by_day == (2, 0, 0, 0, 0, 0, 0)  # 2024 began with a Monday
    assert (found.users, found.names) == (2, 2)


def test_a_trace_without_a_calendar_has_no_days() -> None:
    found = describe(made((0.0, 1.0, 1), (3 * 3600.0, 1.0, 1), (25 * 3600.0, 1.0, 1)))

    assert found.by_day == ()
    assert [hour for hour, count in enumerate(found.by_hour) if count] == [0, 1, 3]


@pytest.mark.parametrize(
    ("gpus", "duration_s", "scaled", "original"),
    [(4, 799.9, "SS", "SS"), (4, 800.0, "SL", "SS"), (5, 100.0, "LS", "SS"), (9, 14400.0, "LL", "LL")],
)
def test_bins_are_cut_where_the_paper_cuts_them(gpus: int, duration_s: float, scaled: str, original: str) -> None:
    assert (SCALED.of(gpus, duration_s), ORIGINAL.of(gpus, duration_s)) == (scaled, original)
