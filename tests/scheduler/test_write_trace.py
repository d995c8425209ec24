"""Our own CSV, written: it reads as what was written."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.sim.trace.job import Trace, TraceJob
from farside.scheduler.sim.trace.read import read_trace
from farside.scheduler.sim.trace.write import write_trace
from farside.scheduler.state import Job
from tests.support.trace_files import SAMPLES, write_file
from tests.support.traces import trace

names = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12).map(str.strip)
micros = st.integers(0, 10**10).map(lambda value: value / 1e6)
fractions = st.floats(0, 1e5, allow_subnormal=False)


@st.composite
def jobs(draw: st.DrawFn) -> list[TraceJob]:
    start_s = draw(st.sampled_from([0.0, 1704067200.0]))
    made = [
        TraceJob(
            job=Job(
                job_id=f"{draw(names)}-{at}",
                sequence=at,
                submit_s=start_s + draw(micros),
                gpus=draw(st.integers(1, 1000)),
                vc=draw(names),
                user=draw(names),
                name=draw(names),
                parameter_servers=draw(st.integers(0, 9)),
                cpus_per_gpu=draw(fractions),
                memory_bytes_per_gpu=draw(fractions),
                gpu_model=draw(names),
                model=draw(names),
                model_bytes=draw(st.integers(0, 10**12)),
                skew=draw(st.floats(0, 1)),
                preemptible=draw(st.booleans()),
                limit_s=draw(micros | st.just(float("inf"))),
            ),
            duration_s=draw(micros),
        )
        for at in range(draw(st.integers(1, 5)))
    ]
    return sorted(made, key=lambda entry: entry.job.submit_s)


def as_seen(entries: tuple[TraceJob, ...] | list[TraceJob]) -> list[TraceJob]:
    """Jobs without what a file does not keep: its lines, and the numbers of its rows."""
    return [
        replace(entry, line=0, job=replace(entry.job, sequence=at, submit_s=round(entry.job.submit_s, 6)))
        for at, entry in enumerate(entries)
    ]


@settings(deadline=None, max_examples=150)
@given(jobs(), st.booleans())
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, made: list[TraceJob], packed: bool
) -> None:
    path = tmp_path_factory.mktemp("trace") / ("jobs.csv.gz" if packed else "jobs.csv")

    write_trace(Trace(jobs=tuple(made)), path)

    assert as_seen(read_trace(path, fmt="farside").jobs) == as_seen(made)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_trace_of_any_format_becomes_ours(name: str, tmp_path: Path) -> None:
    given = read_trace(write_file(tmp_path, SAMPLES[name]))

    write_trace(given, tmp_path / "ours.csv")

    ours = read_trace(tmp_path / "ours.csv")
    assert ours.fmt == "farside"
    assert as_seen(ours.jobs) == as_seen(given.jobs)


def test_only_columns_that_say_something_are_written(tmp_path: Path) -> None:
    write_trace(Trace(jobs=tuple(trace([(0.0, 10.0, 1), (2.5, 20.0, 8)]))), tmp_path / "jobs.csv")

    assert (tmp_path / "jobs.csv").read_text() == "job_id,submit_s,gpus,duration_s\n0,0,1,10\n1,2.5,8,20\n"


def test_the_same_jobs_give_the_same_bytes(tmp_path: Path) -> None:
    made = Trace(jobs=tuple(trace([(0.0, 10.0, 1)])))
    for name in ("a.csv.gz", "b.csv.gz"):
        write_trace(made, tmp_path / name)

    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).startswith(b"job_id")


def test_a_name_with_a_line_break_stays_on_its_line(tmp_path: Path) -> None:
    entry = TraceJob(job=Job(job_id="a", sequence=0, submit_s=0.0, gpus=1, name="two\nlines"), duration_s=1.0)

    write_trace(Trace(jobs=(entry,)), tmp_path / "jobs.csv")

    assert read_trace(tmp_path / "jobs.csv").jobs[0].job.name == "two lines"


def test_a_file_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    made = Trace(jobs=tuple(trace([(0.0, 10.0, 1)])))

    with pytest.raises(ConfigError, match="No such file or directory; name a file that can be written"):
        write_trace(made, tmp_path / "none" / "jobs.csv")
    with pytest.raises(ConfigError, match="comes with Farside"):
        write_trace(made, Path("builtin:jobs"))
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_there_is_kept_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("old")
    broken = Trace(
        jobs=(TraceJob(job=Job(job_id="\ud800", sequence=0, submit_s=float("nan"), gpus=1), duration_s=1.0),)
    )

    with pytest.raises(ValueError, match="cannot convert float NaN"):
        write_trace(broken, path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
