"""What `farside sim` prints where names are hostile or nothing can be printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farside.cli.terminal import printable

TRACE = "job_id,submit_s,gpus,duration_s,vc\n1,0,4,100,a\n2,10,4,50,a\n"
COMMON = ("--policy", "fifo", "--gpus-per-node", "4")
RED = "\x1b[31m"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


def sim(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farside", "sim", *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "{}", *COMMON, "--nodes", 1),
        ("compare", "{}", "--policy", "fifo,sjf", "--gpus-per-node", 4, "--nodes", 1),
        ("why", "{}", "2", *COMMON, "--nodes", 1),
        ("trace", "describe", "{}"),
        ("trace", "describe", "{}", "--json"),
    ],
)
def test_a_full_standard_output_is_one_line_and_exit_code_1(jobs: Path, arguments: tuple[object, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = sim(*(str(one).replace("{}", str(jobs)) for one in arguments), stdout=full)
    finally:
        os.close(full)

    assert done.returncode == 1
    assert done.stderr == "farside: standard output: No space left on device; the output is incomplete\n"


@pytest.mark.long
def test_no_name_steers_the_terminal(jobs: Path, tmp_path: Path) -> None:
    sizes, days, past = tmp_path / "sizes.csv", tmp_path / "days.csv", tmp_path / "past.csv"
    sizes.write_text(f"vc,{RED}nodes\na,many\n")
    days.write_text(f"date,{RED}a\n2024-01-01,8\n")
    past.write_text(f"{RED}gpu\nmany\n")
    turned = tmp_path / "turned.csv"
    turned.write_text(TRACE.replace(",a\n", ",a\u202eb\n"))

    found = [
        sim("run", jobs, *COMMON, "--vc-nodes", sizes),
        sim("run", jobs, *COMMON, "--vc-nodes", days),
        sim("run", jobs, "--policy", "gittins", "--gpus-per-node", 4, "--nodes", 1, "--history", past),
        sim("why", jobs, f"{RED}2", *COMMON, "--nodes", 1),
        sim("run", turned, *COMMON, "--nodes", 1),
    ]

    for done in found:
        assert (done.returncode, done.stdout) == (2, "")
        assert "\x1b" not in done.stderr
        assert "\u202e" not in done.stderr
    assert "has a control character" in found[-1].stderr


def test_what_is_not_printable_is_shown_as_an_escape() -> None:
    assert printable("Größe 東京 'a'") == "Größe 東京 'a'"
    assert printable("a\x1b[31m\u202e\udc80\t") == "a\\x1b[31m\\u202e\\udc80\\t"
