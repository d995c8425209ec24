"""What `farside sim` and its like refuse, and in which words: files that would be lost, names, dates, bytes."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from farside.cli.energy import energy_app
from farside.cli.sim import sim_app
from farside.errors import ConfigError

TRACE = b"job_id,submit_s,gpus,duration_s,vc\n1,0,4,100,a\n2,10,8,50,b\n"
WHERE = ("--nodes", "1", "--gpus-per-node", "4")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(sim_app, [str(argument) for argument in arguments])


def refusal(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, ConfigError)
    return str(done.exception)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_bytes(TRACE)
    return path


@pytest.mark.parametrize("link", ["same", "symlink", "hard link"])
def test_a_trace_is_never_converted_onto_itself(link: str, jobs: Path) -> None:
    out = jobs if link == "same" else jobs.with_name("other.csv")
    if link == "symlink":
        out.symlink_to(jobs)
    elif link == "hard link":
        os.link(jobs, out)

    assert refusal("trace", "convert", jobs, out).endswith("is the file of the trace as well; name another file")
    assert jobs.read_bytes() == TRACE


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_series_of_nodes_is_never_written_over(option: str, tmp_path: Path) -> None:
    series = tmp_path / ("nodes.svg" if option == "--plot" else "nodes.csv")
    rows = [f"2024-01-{1 + at // 144:02d} {at // 6 % 24:02d}:{at % 6}0:00,{at % 7},10" for at in range(1440)]
    series.write_text("\n".join(["time,active,total", *rows, ""]))
    before = series.read_bytes()

    done = CliRunner().invoke(energy_app, ["replay", str(series), "--policy", "none", option, str(series)])

    assert isinstance(done.exception, ConfigError)
    assert f"is the file of the input {series} as well" in str(done.exception)
    assert series.read_bytes() == before


def test_a_made_trace_does_not_go_on_after_the_year_9999(tmp_path: Path) -> None:
    out = tmp_path / "made.csv"

    told = refusal("trace", "generate", "--jobs", "100000", "--interval", "30s", "--start", "9999-12-31", out)

    assert told == "the trace would go on after the year 9999; give an earlier --start, or fewer jobs"
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "hint"),
    [(("--load", "1e-300"), "ask for a higher load"), (("--interval", "1e300s"), "ask for a shorter interval")],
)
def test_a_trace_of_ages_is_told_in_words(options: tuple[str, str], hint: str, tmp_path: Path) -> None:
    told = refusal("trace", "generate", "--jobs", "10", *options, tmp_path / "made.csv")

    assert told == f"the trace would last more than a million years; {hint}, or for fewer jobs"


def test_a_run_of_several_policies_is_a_comparison(jobs: Path) -> None:
    told = refusal("run", jobs, "--policy", "fifo,las", *WHERE)

    assert told == "run takes one policy, not 2; farside sim compare --policy fifo,las takes several"


def test_a_policy_is_compared_once(jobs: Path) -> None:
    assert refusal("compare", jobs, "--policy", "fifo,las,fifo", *WHERE).startswith("--policy names fifo twice; ")


@pytest.mark.parametrize("option", [("--on-bad", "skip"), ("--bad", "skip"), ("--bad=skip",)])
def test_the_option_of_what_cannot_be_used_goes_by_its_old_name_too(option: tuple[str, ...], jobs: Path) -> None:
    assert "leave such jobs out with --on-bad skip" in refusal("run", jobs, "--policy", "fifo", *WHERE)
    assert run("run", jobs, "--policy", "fifo", *WHERE, *option).exit_code == 0
    assert "--bad" not in run("run", "--help").stdout.replace("--on-bad", "")


def test_an_empty_file_of_sizes_is_not_told_to_be_one_of_jobs(jobs: Path, tmp_path: Path) -> None:
    empty = tmp_path / "sizes.csv"
    empty.touch()

    told = refusal("run", jobs, "--policy", "fifo", "--vc-nodes", empty, "--gpus-per-node", "4")

    assert told == f"{empty}: is empty; name another file"


def test_a_byte_that_is_no_text_is_told_as_a_byte(jobs: Path) -> None:
    jobs.write_bytes(TRACE.replace(b",b\n", b",b\xff\n"))

    assert r"'b\xff' is not UTF-8" in refusal("run", jobs, "--policy", "fifo", *WHERE)


@pytest.mark.parametrize("text", ["0.5", "0", "-1"])
def test_an_error_factor_has_one_least_value(text: str, jobs: Path) -> None:
    told = refusal("run", jobs, "--policy", "qssf", "--set", f"error_factor={text}", *WHERE)

    assert "error_factor: must be at least 1, is " in told
