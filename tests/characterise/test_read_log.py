"""Whole logs from files of every format: what a simulation leaves out, and what became of jobs."""

import math
from pathlib import Path

import numpy as np
import pytest

from farside.errors import ConfigError
from farside.scheduler.sim.trace.log import Status, status_of
from farside.scheduler.sim.trace.read import read_trace
from farside.scheduler.sim.trace.read_log import read_log
from tests.support.joblog import write_helios_log
from tests.support.trace_files import SAMPLES, write_file

HELIOS = """job_id,user,vc,gpu_num,cpu_num,state,submit_time,start_time,end_time,duration
7,u1,vcA,0,4,COMPLETED,2020-04-01 08:00:00,2020-04-01 08:00:01,2020-04-01 08:00:03,2
8,u2,vcB,8,32,CANCELLED,2020-04-01 07:00:00,2020-04-01 07:10:00,2020-04-01 08:10:00,3600
9,u1,vcA,1,1,NODE_FAIL,2020-04-01 09:00:00,2020-04-01 08:59:00,2020-04-01 09:01:00,120
10,u1,vcA,1,1,CANCELLED,2020-04-01 09:00:00,None,None,
"""


def helios(folder: Path, text: str = HELIOS) -> Path:
    path = folder / "log.csv"
    path.write_text(text)
    return path


def test_a_helios_log_keeps_cpu_jobs_starts_and_ends(tmp_path: Path) -> None:
    log = read_log(helios(tmp_path))

    assert log.gpus.tolist() == [8, 0, 1]  # by submit time
    assert log.cpus.tolist() == [32, 4, 1]
    assert log.status.tolist() == [Status.CANCELED, Status.COMPLETED, Status.FAILED]
    assert [log.users[code] for code in log.user] == ["u2", "u1", "u1"]
    assert [log.vcs[code] for code in log.vc] == ["vcB", "vcA", "vcA"]
    assert log.wait_s[:2].tolist() == [600, 1]
    assert math.isnan(log.wait_s[2])
    assert set(log.notes) == {
        (1, "left out: never started"),
        (1, "start before they were submitted: how long they waited is not known"),
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_a_log_of_any_format_has_the_gpu_jobs_of_its_trace(name: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, SAMPLES[name], packed=True)

    log, trace = read_log(path), read_trace(path)

    assert log.fmt == trace.fmt
    gpu = log.of(log.gpus > 0)
    assert gpu.submit_s.tolist() == [entry.job.submit_s for entry in trace.jobs]
    assert gpu.duration_s.tolist() == [entry.duration_s for entry in trace.jobs]
    assert gpu.gpus.tolist() == [entry.job.gpus for entry in trace.jobs]


def test_philly_tells_when_jobs_started_and_how_they_ended(tmp_path: Path) -> None:
    text = """[{"jobid": "a", "user": "u", "vc": "v", "status": "Pass", "submitted_time": "2017-10-01 00:00:00",
      "attempts": [{"start_time": "2017-10-01 00:01:00", "end_time": "2017-10-01 00:03:00",
                    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}]}]"""
    path = tmp_path / "log.json"
    path.write_text(text)

    log = read_log(path)

    assert (log.wait_s[0], log.duration_s[0], log.gpus[0], log.status[0]) == (60, 120, 2, Status.COMPLETED)


def test_slurm_tells_cpu_jobs_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|User|Partition|State|Submit|Start|Elapsed|AllocTRES|AllocCPUS\n"
        "1|ann|p|CANCELLED by 7|2024-01-01T00:00:00|2024-01-01T00:01:00|00:10:00|cpu=4|4\n"
        "2|bob|p|TIMEOUT|2024-01-01T00:00:00|2024-01-01T00:00:00|01:00:00|cpu=8,gres/gpu=2|8\n"
        "2.batch|||TIMEOUT|2024-01-01T00:00:00|2024-01-01T00:00:00|01:00:00|cpu=8|8\n"
    )

    log = read_log(path)

    assert log.gpus.tolist() == [0, 2]
    assert log.cpus.tolist() == [4, 8]
    assert log.status.tolist() == [Status.CANCELED, Status.FAILED]
    assert log.wait_s.tolist() == [60, 0]


def test_our_own_results_are_logs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,gpus,duration_s,start_s,status\na,0,2,100,50,completed\nb,10,0,5,,\n")

    log = read_log(path)

    assert log.wait_s[0] == 50
    assert np.isnan(log.wait_s[1])
    assert log.status.tolist() == [Status.COMPLETED, Status.UNKNOWN]
    assert not log.has_calendar


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            "7,u1,vcA,1,1,FAILED,2020-04-01 09:00:00,2020-04-01 09:00:00,2020-04-01 09:01:00,60",
            "'7' is on line 2 already",
        ),
        ("11,u1,vcA,1,1,FAILED,2020-04-01 09:00:00,2020-04-01 09:00:00,2020-04-01 09:01:00,-60", "column duration"),
        ("11,u1,vcA,1,1,FAILED,soon,2020-04-01 09:00:00,2020-04-01 09:01:00,60", "column submit_time"),
        ("11,u1,vcA,many,1,FAILED,2020-04-01 09:00:00,,,60", "column gpu_num"),
        ("11,u1", "2 cells, the header has 10"),
    ],
)
def test_bad_rows_refuse_the_log_or_are_skipped(tmp_path: Path, row: str, reason: str) -> None:
    path = helios(tmp_path, HELIOS + row + "\n")

    with pytest.raises(ConfigError, match=f"line 6.*{reason}"):
        read_log(path)

    assert (len(read_log(path, on_bad="skip")), read_log(path, on_bad="skip").skipped) == (3, 1)


def test_a_log_without_a_job_is_refused(tmp_path: Path) -> None:
    header = HELIOS.partition("\n")[0]

    with pytest.raises(ConfigError, match="holds no job"):
        read_log(helios(tmp_path, header + "\n"))


def test_words_of_schedulers_are_statuses() -> None:
    words = {
        "COMPLETED": Status.COMPLETED, "Pass": Status.COMPLETED, "Succeeded": Status.COMPLETED,
        "CANCELLED by 1000": Status.CANCELED, "CANCELLED+": Status.CANCELED, "Killed": Status.CANCELED,
        "TIMEOUT": Status.FAILED, "NODE_FAIL": Status.FAILED, "OUT_OF_MEMORY": Status.FAILED,
        "": Status.UNKNOWN, "Running": Status.UNKNOWN,
    }  # fmt: skip

    assert {word: status_of(word) for word in words} == words


def test_a_made_log_reads_back_whole(tmp_path: Path) -> None:
    log = read_log(write_helios_log(tmp_path / "made.csv", 3000))

    assert len(log) == 3000
    assert 0 < (log.gpus == 0).mean() < 1
    assert not np.isnan(log.wait_s).any()
