"""`farside sim colocation` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farside.group_time import WorkProfile, group_time

TABLE = """job,app,data,work_machine_s,update_s,net_s,iterations,input_bytes,model_bytes,floor_bytes,submit_s
a,nmf,x,100,0,10,50,1000,10,10,0
b,lda,x,100,1,10,50,1000,10,10,0
c,mlr,x,80,0,12,20,1000,10,10,30
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farside", "sim", "colocation", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_table_of_ones_own_is_played_and_every_group_and_job_is_written(tmp_path: Path) -> None:
    table, out = tmp_path / "jobs.csv", tmp_path / "out.json"
    table.write_text(TABLE)

    done = run(table, "--machines", 12, "--policy", "isolated,harmony", "--json", out)

    assert done.returncode == 0, done.stderr
    assert "harmony" in done.stdout
    told = json.loads(out.read_bytes())
    assert [(one["policy"], one["seed"]) for one in told["runs"]] == [("isolated", 1), ("harmony", 1)]
    profiles = {
        "a": WorkProfile(job="a", work_machine_s=100, net_s=10),
        "b": WorkProfile(job="b", work_machine_s=100, net_s=10, update_s=1),
        "c": WorkProfile(job="c", work_machine_s=80, net_s=12),
    }
    for one in told["runs"]:
        assert sorted(job["job"] for job in one["jobs"]) == ["a", "b", "c"]
        for group in one["groups"]:
            expected = group_time([profiles[name] for name in group["jobs"]], group["machines"]).iteration_s
            assert group["predicted_s"] == pytest.approx(expected)
            assert 0 <= group["at_s"] <= one["makespan_s"]
    assert max(len(group["jobs"]) for group in told["runs"][1]["groups"]) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "harmonie"], "no policy 'harmonie'"),
        (["--policy", "naive,naive"], "--policy naive,naive"),
        (["--seeds", "3-1"], "'3-1' is not understood"),
        (["--set", "isolated=4"], "no setting 'isolated'"),
        (["--set", "cpu_weight=2"], "cpu_weight must be from 0 to 1"),
        (["--set", "error=1"], "error and common_error must be below 1"),
        (["--machines", "5", "--policy", "isolated"], "isolated_machines is 10, and there are 5 machines"),
        (["nothing.csv"], "nothing.csv: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], message: str) -> None:
    done = run(*arguments)

    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert done.stdout == ""


def test_jobs_of_which_none_ends_have_no_times(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(TABLE)
    most = ("--set", "memory_bytes=5", "--set", "spills=false", "--set", "disk_bytes_s=50MB")

    done = run(table, "--machines", 12, "--policy", "isolated,harmony", *most)

    assert done.returncode == 0, done.stderr
    rows = [line.replace("│", " ").split()[:3] for line in done.stdout.splitlines() if line.startswith("│ ")]
    assert rows == [["isolated", "-", "-"], ["harmony", "-", "-"]]
    assert "than with isolated, where no job ends. Moves:" in " ".join(done.stdout.split())
    assert "harmony: 3 jobs failed for want of memory; none ended." in done.stdout
