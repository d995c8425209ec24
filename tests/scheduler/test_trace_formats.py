"""Every format of traces: what becomes of its columns, and which rows are no jobs."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farside.scheduler.sim.trace.job import Trace
from farside.scheduler.sim.trace.read import FORMATS, Attempts, read_trace
from tests.support.trace_files import PHILLY_CSV, PHILLY_LOG, SAMPLES, SLURM, write_file
from tests.support.traces import CLUSTER_DATA, philly


def read(folder: Path, text: str, *, fmt: str = "auto", attempts: Attempts = "whole") -> Trace:
    return read_trace(write_file(folder, text), fmt=fmt, attempts=attempts)


def at(written: str) -> float:
    return datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_known_by_its_beginning(name: str, packed: bool, tmp_path: Path) -> None:
    path = write_file(tmp_path, SAMPLES[name], packed=packed)

    assert read_trace(path).fmt == name
    assert read_trace(path).jobs == read_trace(path, fmt=name).jobs


def test_there_is_a_sample_of_every_format() -> None:
    assert set(SAMPLES) == set(FORMATS)


def test_our_own_csv_has_every_field_of_a_job(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["farside"])

    first, second = trace.jobs
    assert (first.job.job_id, first.job.submit_s, first.duration_s, first.line) == (
        "a",
        at("2024-01-01 08:00"),
        60.0,
        2,
    )
    assert first.job.limit_s == math.inf
    assert second.job.submit_s == at("2024-01-01 08:00") + 0.5
    assert (second.job.name, second.job.parameter_servers, second.job.model) == ("bert, large", 8, "vgg16")
    assert (second.job.skew, second.job.preemptible, second.job.limit_s) == (0.743, False, 86400.0)
    assert trace.has_calendar


def test_tiresias_jobs_have_the_skew_of_their_model_and_as_many_servers_as_gpus(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["tiresias"])

    vgg19, unknown = (entry.job for entry in trace.jobs)
    assert (vgg19.skew, vgg19.parameter_servers) == (0.715, 0)
    assert (unknown.skew, unknown.parameter_servers, unknown.submit_s) == (0.0, 8, 30.0)
    assert not trace.has_calendar


def test_philly_csv_has_no_ids_so_rows_are_numbered(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["philly-csv"])

    assert [(entry.job.job_id, entry.job.vc, entry.line) for entry in trace.jobs] == [("1", "bb", 3), ("0", "aa", 2)]


def test_philly_csv_may_lack_virtual_clusters_and_have_seconds(tmp_path: Path) -> None:
    trace = read(tmp_path, "submit_time,duration,gpus\n5,10,1\n3,10,2\n")

    assert [(entry.job.submit_s, entry.job.vc) for entry in trace.jobs] == [(3.0, ""), (5.0, "")]


def test_helios_rows_without_gpus_or_a_start_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["helios"])

    (entry,) = trace.jobs
    assert (entry.job.job_id, entry.job.user, entry.job.vc, entry.job.name) == ("10", "u1", "vcA", "train")
    assert (entry.job.gpus, entry.job.cpus_per_gpu, entry.duration_s) == (8, 8.0, 60.0)
    assert trace.notes == ((1, "left out: ask for no GPU"), (1, "left out: never started"))


def test_openb_pods_get_whole_gpus_and_the_trace_says_so(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["openb"])

    whole, part = trace.jobs
    assert (whole.job.gpus, whole.duration_s, whole.job.cpus_per_gpu) == (1, 12537496.0, 12.0)
    assert (part.job.gpus, part.job.gpu_model, part.duration_s) == (1, "V100M16|V100M32", 12902960.0 - 427071.0)
    assert {note: count for count, note in trace.notes} == {
        "ask for a part of a GPU, get a whole one": 1,
        "left out: never scheduled": 1,
        "left out: ask for no GPU": 1,
    }


def test_slurm_jobs_are_told_from_steps_arrays_and_what_never_ran(tmp_path: Path) -> None:
    trace = read(tmp_path, SLURM)

    whole, task = trace.jobs
    assert (whole.job.job_id, whole.job.gpus, whole.duration_s) == ("100", 4, 90000.0)
    assert (whole.job.vc, whole.job.user, whole.job.name) == ("gpu", "ann", "train")
    assert (whole.job.gpu_model, whole.job.cpus_per_gpu, whole.job.limit_s) == ("a100", 4.0, 172800.0)
    assert whole.job.memory_bytes_per_gpu == 32 * 2**30
    assert (task.job.job_id, task.job.gpus, task.duration_s, task.job.limit_s) == ("101_3", 2, 150.0, math.inf)
    assert (task.job.gpu_model, task.job.submit_s) == ("", at("2024-03-01T10:01:00"))
    assert {note: count for count, note in trace.notes} == {
        "left out: steps of jobs": 1,
        "left out: never started": 2,
        "left out: have no GPU": 1,
        "left out: still running": 1,
    }


@pytest.mark.parametrize(
    ("columns", "cells", "gpus"),
    [
        ("AllocTRES", "gres/gpu:a100=1,gres/gpu:v100=2", 3),
        ("AllocTRES", "cpu=4,gres/gpu:a100_1g.5gb=1", 1),
        ("ReqTRES|AllocTRES", "gres/gpu=2|billing=1,gres/gpu=8", 8),
        ("ReqTRES|AllocTRES", "gres/gpu=2|cpu=8", 2),
        ("AllocGRES|NNodes", "gpu:4|2", 8),
        ("AllocGRES|NNodes", "gpu:tesla:2(S:0-1)|3", 6),
    ],
)
def test_slurm_tells_gpus_in_several_ways(columns: str, cells: str, gpus: int, tmp_path: Path) -> None:
    trace = read(tmp_path, f"JobID|Submit|ElapsedRaw|{columns}\n7|2024-03-01T10:01:00|5|{cells}\n")

    assert trace.jobs[0].job.gpus == gpus


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("00:00:07", 7.0), ("02:30", 150.0), ("1-00:00:00", 86400.0), ("2-03", 183600.0), ("01:01:01.500", 3661.0)],
)
def test_slurm_tells_durations_in_several_ways(told: str, seconds: float, tmp_path: Path) -> None:
    trace = read(tmp_path, f"JobID|Submit|Elapsed|AllocTRES\n7|2024-03-01T10:01:00|{told}|gres/gpu=1\n")

    assert trace.jobs[0].duration_s == seconds


def test_sacct_with_a_bar_at_the_end_of_lines_reads_as_well(tmp_path: Path) -> None:
    trace = read(tmp_path, "JobID|Submit|Elapsed|AllocTRES|\n7|1709287260|00:07|gres/gpu=1|\n")

    assert trace.jobs[0].job.submit_s == 1709287260.0


def test_a_philly_job_is_as_long_as_from_its_first_start_to_its_last_end(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["philly-json"])

    (entry,) = trace.jobs
    assert entry.duration_s == at("2017-10-09 06:53:12") - at("2017-10-07 01:12:09")
    assert (entry.job.gpus, entry.job.vc, entry.job.user) == (8, "ee", "ce")
    assert trace.notes == (
        (1, "left out: no attempt is recorded"),
        (1, "left out: no end is recorded, still running"),
    )


def test_attempts_of_a_philly_job_may_be_jobs_of_their_own(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["philly-json"], attempts="each")

    first, second = trace.jobs
    assert (first.job.job_id, first.duration_s, first.job.submit_s) == (
        "application_1/1",
        74.0,
        at("2017-10-07 01:11:39"),
    )
    assert (second.job.job_id, second.job.submit_s) == ("application_1/2", at("2017-10-07 01:13:23"))
    assert second.job.name == "application_1"
    assert (1, "left out: attempts without a start or an end") in trace.notes


def test_philly_jobs_may_stand_one_on_a_line(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(job) for job in PHILLY_LOG)

    trace = read(tmp_path, lines)

    assert (len(trace.jobs), trace.jobs[0].line) == (1, 1)


def test_a_long_philly_log_is_read_piece_by_piece_with_its_lines(tmp_path: Path) -> None:
    jobs = [{**PHILLY_LOG[0], "jobid": f"job{at}"} for at in range(500)]

    trace = read(tmp_path, json.dumps(jobs, indent=1))

    lines = json.dumps(jobs[:1], indent=1).count("\n") - 1
    assert [entry.line for entry in trace.jobs] == [2 + at * lines for at in range(500)]
    assert [entry.job.sequence for entry in trace.jobs] == list(range(500))


def test_unsorted_rows_are_sorted_and_those_of_one_second_stay_in_order(tmp_path: Path) -> None:
    trace = read(tmp_path, "job_id,submit_s,gpus,duration_s\nc,9,1,1\na,5,1,1\nb,5,1,1\nd,0,1,1\n")

    assert [entry.job.job_id for entry in trace.jobs] == ["d", "a", "b", "c"]
    order = [(entry.job.submit_s, entry.job.sequence) for entry in trace.jobs]
    assert order == sorted(order)


@pytest.mark.parametrize(
    "text",
    [
        PHILLY_CSV.replace("\n", "\r\n"),
        "\ufeff" + PHILLY_CSV,
        "\n\n" + PHILLY_CSV + "\n \n",
        PHILLY_CSV.replace(",", " , "),
        PHILLY_CSV.replace("gpus", "GPUs"),
        PHILLY_CSV.rstrip("\n"),
    ],
    ids=["CRLF", "BOM", "blank lines", "spaces", "case", "no last line end"],
)
def test_how_a_table_was_saved_does_not_matter(text: str, tmp_path: Path) -> None:
    expected = [entry.job for entry in read(tmp_path, PHILLY_CSV).jobs]

    assert [entry.job for entry in read(tmp_path, text).jobs] == expected


def test_utf_16_is_read_by_its_mark(tmp_path: Path) -> None:
    path = write_file(tmp_path, PHILLY_CSV.encode("utf-16"))

    assert len(read_trace(path).jobs) == 2


def test_real_philly_jobs_are_read_as_they_are() -> None:
    expected = philly("2869ce")

    trace = read_trace(CLUSTER_DATA / "jobs" / "philly_dev.csv.gz")

    mine = [entry for entry in trace.jobs if entry.job.vc == "2869ce"]
    assert len(trace.jobs) == 45_036
    assert [(one.job.submit_s, one.job.gpus, one.duration_s) for one in mine] == [
        (one.job.submit_s, one.job.gpus, one.duration_s) for one in expected
    ]


def test_the_authors_trace_is_read_as_it_is() -> None:
    path = CLUSTER_DATA / "jobs" / "tiresias_60_job.csv"
    if not path.exists():
        pytest.skip("no real traces on this machine")

    trace = read_trace(path)

    assert trace.fmt == "tiresias"
    assert sum(entry.duration_s for entry in trace.jobs) / 60 == pytest.approx(178.4, abs=0.05)
    assert all(entry.job.skew for entry in trace.jobs)
