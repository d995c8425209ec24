"""`farside energy`: what it writes, prints and refuses; and the figures that it was built for."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from farside.cli.energy import energy_app
from farside.errors import ConfigError
from farside.scheduler.energy.catalog import Question, prepare
from farside.scheduler.sim.energy.read_series import read_series, seconds_of
from farside.scheduler.sim.energy.replay import figures, play
from tests.support.busy_nodes import real_files, wandering


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(energy_app, [str(argument) for argument in arguments])


def refusal(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, ConfigError)
    return str(done.exception)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    series = wandering(8)
    path = tmp_path / "nodes.csv"
    start = "2020-05-0{} {:02}:{:02}:00,{:.0f},100"
    rows = (start.format(1 + at // 144, at % 144 // 6, at % 6 * 10, busy) for at, busy in enumerate(series.active))
    path.write_text("time,active,total\n" + "\n".join(rows) + "\n")
    return path


def test_a_replay_writes_all_its_figures(nodes: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"

    done = run("replay", nodes, "--set", "wakeups_per_day=2", "--from", "2020-05-05", "--json", out, "--plot", picture)

    assert done.exit_code == 0, done.exception
    told = json.loads(out.read_text())
    assert set(told) >= {
        "sleeping_nodes", "wakeups_per_day", "nodes_per_wakeup", "utilisation_before", "utilisation_after",
        "short_intervals", "short_nodes", "smape", "persistence_smape", "forecast_used", "kwh_per_year",
    }  # fmt: skip
    assert told["forecast_used"] is False
    assert told["begin"] == "2020-05-05 00:00:00"
    assert told["utilisation_after"] > told["utilisation_before"]
    assert "asleep on average" in done.stdout
    assert picture.read_text().startswith("<?xml")


def test_a_replay_prints_json_alone_when_asked(nodes: Path) -> None:
    done = run("replay", nodes, "--policy", "none", "--json", "-")

    assert json.loads(done.stdout)["sleeping_nodes"] == 0


def test_a_sweep_tells_what_nothing_beats(nodes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    done = run(
        "pareto", nodes, "--policy", "vanilla", "--from", "2020-05-05", "--json", out, "--plot", tmp_path / "p.png"
    )

    assert done.exit_code == 0, done.exception
    points = json.loads(out.read_text())
    best = [point for point in points if point["is_on_frontier"]]
    by_cost = sorted(best, key=lambda point: point["wakeups_per_day"])
    assert len(points) > 5
    assert [point["sleeping_nodes"] for point in by_cost] == sorted(point["sleeping_nodes"] for point in best)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_arguments_get_one_line(nodes: Path, tmp_path: Path) -> None:
    assert "did you mean 'vanilla'" in refusal("replay", nodes, "--policy", "vanila")
    assert "--from: 'tomorrow' is no date" in refusal("replay", nodes, "--from", "tomorrow")
    assert "no interval" in refusal("replay", nodes, "--from", "2021-01-01")
    assert "--train-to is after --from" in refusal("replay", nodes, "--from", "2020-05-04", "--train-to", "2020-05-05")
    assert "nothing to sweep" in refusal("pareto", nodes, "--policy", "none")
    assert "No such file" in refusal("replay", nodes, "--policy", "none", "--json", tmp_path / "no" / "out.json")
    assert "--plot" in refusal("replay", nodes, "--policy", "none", "--plot", tmp_path / "out.doc")


@pytest.mark.parametrize("of", [["replay", "--policy", "none"], ["pareto", "--policy", "vanilla"], ["forecast"]])
@pytest.mark.parametrize("link", ["the same", "symbolic", "hard"])
def test_no_result_takes_the_place_of_what_was_read(nodes: Path, tmp_path: Path, of: list[str], link: str) -> None:
    before, out = nodes.read_text(), tmp_path / "out.csv"
    if link == "symbolic":
        out.symlink_to(nodes)
    elif link == "hard":
        out.hardlink_to(nodes)
    else:
        out = nodes

    assert "is the file of the input" in refusal(of[0], nodes, *of[1:], "--json", out)
    assert nodes.read_text() == before


def test_two_results_do_not_share_a_file(nodes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"

    assert "is the file of --json" in refusal("replay", nodes, "--policy", "none", "--json", out, "--plot", out)


def test_the_trace_of_jobs_is_not_written_over(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,7200,8\n")

    assert "is the file of the input" in refusal("jobs", trace, "--nodes", "2", "--gpus-per-node", "8", "--json", trace)


def test_a_series_too_short_to_learn_from_is_one_line(nodes: Path) -> None:
    rows = nodes.read_text().splitlines(keepends=True)
    nodes.write_text("".join(rows[: 1 + 2 * 144]))

    assert "before --train-to can be learned from" in refusal("forecast", nodes)
    assert "before --train-to can be learned from" in refusal("replay", nodes, "--policy", "paper")


def test_a_train_to_too_early_is_one_line(nodes: Path) -> None:
    assert "before --train-to can be learned from" in refusal(
        "forecast", nodes, "--train-to", "2020-05-02", "--from", "2020-05-06"
    )


@pytest.mark.parametrize("boot_s", ["inf", "1e9"])
def test_a_boot_without_end_is_refused(nodes: Path, boot_s: str) -> None:
    assert "--boot-s" in refusal("replay", nodes, "--policy", "none", "--boot-s", boot_s)
    assert "--boot-s" in refusal("jobs", nodes, "--nodes", "2", "--gpus-per-node", "8", "--boot-s", boot_s)


@pytest.mark.parametrize(
    ("policy", "setting", "message"),
    [
        ("rule", "keep_s=1e18", "keep_s must be at most 366 days"),
        ("rule", "keep_s=inf", "keep_s must be at most 366 days"),
        ("paper", "hold_s=inf", "hold_s must be at most 366 days"),
        ("paper", "past_s=inf", "past_s must be at most 366 days"),
        ("paper", "future_s=1e18", "future_s must be at most 366 days"),
        ("ces", "pace_events=inf", "pace_events must be above 0, and finite"),
        ("ces", "wakeups_per_day=50%", "is how often, and '50%' a share"),
        ("vanilla", "buffer_nodes=1" + "0" * 400, "must be below 10^15"),
    ],
)
def test_settings_without_bounds_are_refused(nodes: Path, policy: str, setting: str, message: str) -> None:
    assert message in refusal("replay", nodes, "--policy", policy, "--set", setting)


def test_a_buffer_and_a_risk_to_tune_it_to_are_not_both_taken(nodes: Path) -> None:
    said = refusal("replay", nodes, "--policy", "rule", "--set", "buffer_nodes=5", "--set", "wakeups_per_day=1")

    assert "buffer_nodes and a risk to tune it to exclude each other" in said


def test_a_forecast_that_is_used_is_judged_where_it_is_used(nodes: Path) -> None:
    done = run(
        "replay", nodes, "--set", "forecast=true", "--set", "forecast_s=3h", "--from", "2020-05-06", "--json", "-"
    )

    found = json.loads(done.stdout)
    assert (found["forecast_used"], found["horizon_s"]) == (True, 3 * 3600)
    assert found["quantile_loss"] > 0
    assert found["persistence_quantile_loss"] > 0
    said = "better than persistence" if found["quantile_loss"] < found["persistence_quantile_loss"] else "no better"
    assert said in found["remark"]


def test_what_a_window_is_too_short_to_tell_is_not_known(nodes: Path) -> None:
    arguments = ("replay", nodes, "--policy", "none", "--from", "2020-05-08 23:30")

    assert json.loads(run(*arguments, "--json", "-").stdout)["smape"] is None
    said = run(*arguments).stdout
    assert "not known" in said
    assert "nan" not in said


def test_rows_with_more_busy_than_there_are_are_told(nodes: Path) -> None:
    with nodes.open("a") as file:
        file.write("2020-05-08 23:55:00,120,100\n")

    assert "1, taken as all busy" in run("replay", nodes, "--policy", "none").stdout


def told(pattern: str, *arguments: str) -> dict[str, float]:
    done = run("replay", *real_files(pattern), *arguments, "--json", "-")
    assert done.exit_code == 0, done.exception
    found: dict[str, float] = json.loads(done.stdout)
    return found


NOVEMBER = ("--train-to", "2017-11-05", "--from", "2017-11-15", "--to", "2017-11-29")
PHILLY = "philly_nodes_oct_nov.csv.gz"


def test_vanilla_drs_is_that_of_an_independent_run() -> None:
    came = told(PHILLY, "--policy", "vanilla", *NOVEMBER)

    assert (came["short_intervals"], came["short_nodes"]) == (34, 153)
    assert came["wakeups_per_day"] == pytest.approx(2.43, abs=0.01)
    assert came["sleeping_nodes"] == pytest.approx(108.93, rel=0.01)


def test_the_artifacts_policy_comes_near_an_independent_run() -> None:
    came = told(PHILLY, "--policy", "paper", "--set", "features=artifact", *NOVEMBER)

    assert came["sleeping_nodes"] == pytest.approx(72.80, rel=0.25)
    assert came["wakeups_per_day"] == pytest.approx(0.50, rel=0.25)
    assert came["utilisation_after"] == pytest.approx(0.8533, rel=0.05)
    assert came["short_nodes"] == pytest.approx(55, rel=0.25)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "begin", "end"),
    [
        (PHILLY, "2017-11-15", "2017-11-29"),
        (PHILLY, "2017-10-20", "2017-11-03"),
        ("earth_vc*.csv.gz", "2020-05-15", "2020-05-22"),
    ],
)
def test_ces_stays_near_the_risk_that_was_stated(pattern: str, begin: str, end: str) -> None:
    series = read_series(real_files(pattern))
    first, last = series.index(seconds_of(begin)), series.index(seconds_of(end))
    question = Question(series=series, train_to=first, begin=first, end=last)

    for asked in (0.25, 0.5, 1.0, 2.0):
        policy = prepare("ces", {"wakeups_per_day": f"{asked}"}, question).policy
        assert figures(play(policy, series, first, last)).wakeups_per_day <= 1.5 * asked


def test_jobs_on_nodes_that_sleep_are_compared_with_those_on_nodes_that_do_not(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,7200,8\nb,3600,60,8\n")

    done = run(
        "jobs", trace, "--nodes", "2", "--gpus-per-node", "8", "--policy", "vanilla", "--set", "buffer_nodes=0",
        "--json", "-",
    )  # fmt: skip

    assert done.exit_code == 0, done.exception
    cost = json.loads(done.stdout)
    assert (cost["delayed_jobs"], cost["max_delay_s"]) == (1, 300)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "paper", "--set", "features=artifact"), "features=artifact is for replays"),
        (("--policy", "rule", "--set", "wakeups_per_day=1"), "no past to tune it on"),
        (("--policy", "sec"), "no energy policy 'sec'"),
    ],
)
def test_what_would_know_more_than_a_trace_tells_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal("jobs", "builtin:tiresias-480", "--nodes", "15", "--gpus-per-node", "4", *arguments)


def test_the_fleets_rules_and_maintenance_count_for_jobs_on_nodes_that_sleep(tmp_path: Path) -> None:
    trace, manager, closed = tmp_path / "jobs.csv", tmp_path / "manager.toml", tmp_path / "closed.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,7200,8\nb,3600,60,8\n")
    manager.write_text("power_floor = 2\npower_min_on_s = 0\n")
    closed.write_text("nodes,begin,end,planned\n*,3700,9000,3500\n")
    asked = ("jobs", trace, "--nodes", "2", "--gpus-per-node", "8", "--policy", "vanilla", "--set", "buffer_nodes=0")

    floor = json.loads(run(*asked, "--fleet", manager, "--json", "-").stdout)
    waiting = json.loads(run(*asked, "--maintenance", closed, "--json", "-").stdout)

    assert (floor["delayed_jobs"], floor["sleeping_nodes"]) == (0, 0)
    # b waits for the end of the maintenance, as it would without sleep; the node that is to be closed stays on for it.
    assert (waiting["delayed_jobs"], waiting["mean_jct_s"]) == (0, (7200 + 9000 + 60 - 3600) / 2)


def test_settings_of_a_fleets_file_that_do_not_count_are_named(tmp_path: Path) -> None:
    trace, manager = tmp_path / "jobs.csv", tmp_path / "manager.toml"
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,7200,8\n")
    manager.write_text('power_floor = 2\npower = "ces"\npower_step_s = 300\npolicy = "las"\n')
    asked = ("jobs", trace, "--nodes", "2", "--gpus-per-node", "8", "--policy", "vanilla", "--fleet", manager)

    done = run(*asked)

    assert f"--fleet {manager}: does not count here: power, power_step_s; give --policy" in done.stderr


def test_a_fleets_limits_are_not_counted_once_for_each_virtual_cluster(tmp_path: Path) -> None:
    trace, manager, nodes = tmp_path / "jobs.csv", tmp_path / "manager.toml", tmp_path / "vc.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus,vc\na,0,7200,8,x\nb,0,7200,8,y\n")
    manager.write_text("power_floor = 2\n")
    nodes.write_text("vc,nodes\nx,2\ny,2\n")
    asked = ("jobs", trace, "--vc-nodes", nodes, "--gpus-per-node", "8", "--policy", "vanilla", "--fleet", manager)

    told = refusal(*asked)

    assert "its limits are for all nodes together, and there are 2 virtual clusters; take one of them with --vc" in told
    assert run(*asked, "--vc", "x").exit_code == 0


@pytest.mark.parametrize(
    ("policy", "hint"), [("ces", "set forecast=true with --set, or leave it out"), ("none", "leave it out")]
)
def test_holidays_for_jobs_without_a_forecast_are_refused(policy: str, hint: str) -> None:
    told = refusal(
        "jobs", "builtin:tiresias-480", "--nodes", "15", "--gpus-per-node", "4", "--policy", policy,
        "--holiday", "2024-12-25",
    )  # fmt: skip

    assert f"--holidays, --holiday: is for forecasts, and {policy} makes none; {hint}" in told


@pytest.mark.parametrize(
    ("asked", "policy", "hint"),
    [
        (("--policy", "ces"), "ces", "set forecast=true with --set, or leave it out"),
        (("--policy", "rule", "--set", "wakeups_per_day=1"), "rule", "leave it out"),
        (("--policy", "vanilla"), "vanilla", "leave it out"),
        (("--policy", "none"), "none", "leave it out"),
        (("--policy", "paper", "--set", "features=lags"), "paper with features=lags", "leave it out"),
    ],
)
def test_holidays_in_a_replay_without_a_forecast_are_refused(
    nodes: Path, tmp_path: Path, asked: tuple[str, ...], policy: str, hint: str
) -> None:
    days = tmp_path / "days"
    days.write_text("2020-05-04\n")
    said = f"--holidays, --holiday: is for forecasts, and {policy} makes none; {hint}"

    assert said in refusal("replay", nodes, *asked, "--holidays", days)
    assert said in refusal("replay", nodes, *asked, "--holiday", "2020-05-04")


def test_holidays_in_a_replay_with_a_forecast_are_taken(nodes: Path) -> None:
    asked = ("--set", "forecast=true", "--set", "forecast_s=3h", "--from", "2020-05-06", "--holiday", "2020-05-04")

    assert run("replay", nodes, *asked).exit_code == 0


def test_a_sweep_of_policies_without_a_forecast_takes_no_holidays(nodes: Path) -> None:
    said = refusal("pareto", nodes, "--policy", "vanilla", "--holiday", "2020-05-04")

    assert "--holidays, --holiday: is for paper's forecast, which is not swept; leave it out" in said


def test_a_fleet_with_a_node_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    manager = tmp_path / "manager.toml"
    manager.write_text('always_on = "login1"\n')

    told = refusal("jobs", "builtin:tiresias-480", "--nodes", "15", "--gpus-per-node", "4", "--fleet", manager)

    assert "always_on: the cluster has no node login1; nodes here are called as n0" in told


@pytest.mark.long
def test_a_forecast_is_learned_from_the_trace_as_it_goes_by(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    # On each of ten days jobs come at 8, 9 and 10 o'clock, and leave after eight hours.
    starts = ((day, hour) for day in range(10) for hour in (8, 9, 10))
    rows = (f"{at},{day * 86400 + hour * 3600},28800,8" for at, (day, hour) in enumerate(starts))
    trace.write_text("job_id,submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    asked = ("jobs", trace, "--nodes", "4", "--gpus-per-node", "8", "--set", "buffer_nodes=0", "--json", "-")

    cost = json.loads(run(*asked, "--policy", "paper", "--set", "future_s=3h").stdout)

    assert 0 < cost["sleeping_nodes"] < 4
