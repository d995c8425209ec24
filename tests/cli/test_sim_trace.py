"""`farside sim trace`, as its own command: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from farside.cli.sim_trace import trace_app
from farside.errors import ConfigError
from farside.scheduler.sim.trace.read import read_trace
from tests.support.trace_files import SAMPLES, write_file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace_app, [str(argument) for argument in arguments])


def refusal(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, ConfigError)
    return str(done.exception)


@pytest.mark.parametrize("name", SAMPLES)
def test_describe_shows_a_trace_of_any_format(name: str, tmp_path: Path) -> None:
    done = run("describe", write_file(tmp_path, SAMPLES[name], packed=True), "--nodes", "2")

    assert done.exit_code == 0
    assert "load on 16 GPUs" in done.stdout
    assert "submissions by hour" in done.stdout


def test_describe_tells_programs_the_same(tmp_path: Path) -> None:
    done = run("describe", "builtin:tiresias-480", "--nodes", "15", "--gpus-per-node", "4", "--json")

    told = json.loads(done.stdout)
    assert (told["jobs"], told["load"]["gpus"]) == (480, 60)
    assert told["load"]["offered"] == pytest.approx(1.73, abs=0.01)


def test_rows_that_are_no_jobs_are_told(tmp_path: Path) -> None:
    path = write_file(tmp_path, SAMPLES["helios"] + "13,u,v,j,x,1,1,FAILED,2020-06-09 18:41:02,,,1,1\n")

    described = run("describe", path, "--on-bad", "skip")
    converted = run("convert", path, tmp_path / "ours.csv", "--on-bad", "skip")

    assert "1 left out: ask for no GPU" in described.stdout
    assert f"{path}: 1 row left out: ask for no GPU" in converted.stderr
    for done in (described, converted):
        assert f"skipped: {path}, line 5, column gpu_num: 'x' is not a number" in done.stderr
        assert "1 bad row was skipped" in done.stderr
    assert "line 5, column gpu_num" in refusal("describe", path)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    path = write_file(tmp_path, "submit_time,duration,gpus,vc\n0,1,1,[/red]\n1,1,1,:smile:\n")

    done = run("describe", path)

    assert "[/red]" in done.stdout
    assert ":smile:" in done.stdout


def test_convert_writes_our_csv(tmp_path: Path) -> None:
    path = write_file(tmp_path, SAMPLES["philly-json"])

    done = run("convert", path, tmp_path / "ours.csv.gz", "--attempts", "each")

    assert done.exit_code == 0
    assert f"{tmp_path}/ours.csv.gz: 2 jobs, read as philly-json" in done.stderr
    assert read_trace(tmp_path / "ours.csv.gz").fmt == "farside"


def test_generate_makes_a_workload_by_name(tmp_path: Path) -> None:
    assert run("generate", "tiresias-480", tmp_path / "jobs.csv").exit_code == 0

    assert [e.job for e in read_trace(tmp_path / "jobs.csv").jobs] == [
        e.job for e in read_trace(Path("builtin:tiresias-480")).jobs
    ]


def test_generate_makes_a_mixture_of_ones_own(tmp_path: Path) -> None:
    options = (
        "--jobs 500 --load 0.5 --nodes 4 --gpus-per-node 4 --arrivals daily "
        "--service pareto:alpha=1.5,min_s=1min,max_s=2h --gpu-mix 1:9,16:1 "
        "--vc lab:3 --vc shop --users 3 --start 2023-05-05 --seed 9"
    )

    done = run("generate", *options.split(), tmp_path / "jobs.csv")

    assert done.exit_code == 0
    jobs = read_trace(tmp_path / "jobs.csv").jobs
    assert {entry.job.gpus for entry in jobs} == {1, 16}
    assert {entry.job.vc for entry in jobs} == {"lab", "shop"}
    assert all(60 <= entry.duration_s <= 7200 for entry in jobs)
    described = json.loads(run("describe", tmp_path / "jobs.csv", "--nodes", "2", "--json").stdout)
    assert described["load"]["offered"] == pytest.approx(0.5, abs=1e-6)
    assert described["first_s"] == 1683244800.0


def test_generate_changes_a_recipe_that_has_a_name(tmp_path: Path) -> None:
    assert run("generate", "philly-like", "--jobs", "50", "--interval", "1min", tmp_path / "jobs.csv").exit_code == 0

    jobs = read_trace(tmp_path / "jobs.csv").jobs
    assert jobs[-1].job.submit_s - jobs[0].job.submit_s == pytest.approx(49 * 60)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "out.csv",
            "neither a name nor --jobs is given; name one of tiresias-480, philly-like, helios-like, repeating, "
            "or say --jobs 1000",
        ),
        ("tiresias-481 out.csv", "no workload 'tiresias-481'; did you mean 'tiresias-480'?"),
        ("tiresias-480 out.csv --jobs 5", "tiresias-480 has the paper's values; only --seed changes it"),
        ("a b c", "generate takes at most a name and a file, not 3 names; see --help"),
        ("--jobs 5 out.csv --load 1 --interval 3s", "--load and --interval exclude each other"),
        ("--jobs 5 out.csv --load 0", "load must be above 0, is 0"),
        ("--jobs 5 out.csv --interval soon", "--interval: 'soon' is not a number with a unit"),
        ("--jobs 5 out.csv --interval 0s", "--interval: '0s' is not above 0; for example 30s"),
        ("--jobs 5 out.csv --arrivals dayly", "no rhythm of arrivals 'dayly'; did you mean 'daily'?"),
        ("--jobs 5 out.csv --service parto", "no distribution of durations 'parto'; did you mean 'pareto'?"),
        ("--jobs 5 out.csv --service pareto:alfa=1", "--service pareto: no setting 'alfa'; did you mean 'alpha'?"),
        ("--jobs 5 out.csv --service pareto:alpha", "--service: 'alpha' is not key=value"),
        ("--jobs 5 out.csv --service lognormal:sigma=99", "--service lognormal: sigma must be from 0 to 20, is 99"),
        ("--jobs 5 out.csv --service philly:sigma=1", "--service: philly has no settings"),
        ("--jobs 5 out.csv --gpu-mix 1:x", "--gpu-mix: '1:x' has no weight above 0"),
        ("--jobs 5 out.csv --gpu-mix x:1", "--gpu-mix: 'x:1' is not GPUS:WEIGHT"),
        ("--jobs 5 out.csv --gpu-mix 16:1 --nodes 1", "the cluster of 8 GPUs is too small for jobs of 16"),
        ("--jobs 5 out.csv --vc a --vc a", "--vc: each needs a name of its own"),
        ("--jobs 5 out.csv --start soon", "--start: 'soon' is not a date from 1970 on; for example 2024-01-01"),
    ],
)
def test_wishes_that_cannot_be_are_refused_in_one_line(arguments: str, told: str, tmp_path: Path) -> None:
    message = refusal("generate", *(arguments.replace("out.csv", str(tmp_path / "out.csv")).split()))

    assert told in message
    assert "\n" not in message
    assert not (tmp_path / "out.csv").exists()
