"""`farside sim aggregation` as a user runs it."""

import contextlib
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farside.cli.app import main
from farside.scheduler.sharing.aggregation.placement import Profile
from farside.scheduler.sim.aggregation.drawn import drawn_mix
from tests.aggregation.mixes import as_events, check


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The whole command within this process, which has imported all of it."""
    words, out, err = ["farside", "sim", "aggregation", *map(str, arguments)], io.StringIO(), io.StringIO()
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        try:
            main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


def written(tmp_path: Path, mixes: object) -> Path:
    path = tmp_path / "mixes.json"
    path.write_text(mixes if isinstance(mixes, str) else json.dumps(mixes))
    return path


MODEL = {"chunks": [[64, 1 << 18]], "members": 4, "byte_s": 2.5e-10, "chunk_s": 1e-4}


def event(**arrive: Any) -> dict[str, Any]:
    return {"at_s": 0, "arrive": {"job": "a", "iteration_s": 1.0, "tasks_s": [0.1, 0.2], **arrive}}


@pytest.mark.parametrize("variant", ["printed", "corrected", "cycles"])
def test_the_state_after_each_event_is_written_and_can_be_checked(tmp_path: Path, variant: str) -> None:
    jobs = [drawn_mix(random.Random(seed), tensors=(16,)) for seed in range(10)]
    out = tmp_path / "placed.json"

    done = run(written(tmp_path, [as_events(mix) for mix in jobs]), "--variant", variant, "--json", out)

    assert done.returncode == 0, done.stderr
    overloaded = 0
    for mix, states in zip(jobs, json.loads(out.read_bytes()), strict=True):
        running: dict[str, Profile] = {}
        mix_load = 0.0
        for job, state in zip([*mix, *mix], states, strict=True):
            if running.pop(job.job, None) is None:
                running[job.job] = job
            load, losses = check(running, state["aggregators"])
            assert state["loss"] == pytest.approx(losses)
            assert state["refused"] is None
            mix_load = max(mix_load, load)
            assert variant == "printed" or all(share < 0.1 for share in losses.values())
        assert states[-1] == {"aggregators": [], "loss": {}, "refused": None}
        overloaded += mix_load > 1 + 1e-9
    assert (overloaded > 2) == (variant == "printed")
    assert overloaded == 0 or variant == "printed"


def test_the_table_says_how_many_servers_it_takes(tmp_path: Path) -> None:
    events = [event(), event(job="b"), {"at_s": 5, "exit": "a"}]

    done = run(written(tmp_path, [events]))

    assert done.returncode == 0, done.stderr
    figures = {
        line.split("│")[1].strip(): line.split("│")[2].strip() for line in done.stdout.splitlines() if "│" in line
    }
    assert figures["jobs of a mix, where it has the most"] == "2.0"
    assert figures["Aggregators then"] == "1.00"
    assert figures["mixes in which an Aggregator is overloaded"] == "0.0 %"


def test_a_process_of_its_own_says_the_same(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "farside", "sim", "aggregation"]
    for mixes, code in (([[event()]], 0), ([[event(servers=0)]], 2)):
        file = written(tmp_path, mixes)

        done = subprocess.run([*words, str(file)], capture_output=True, text=True, check=False, timeout=60)

        here = run(file)
        assert (done.returncode, done.stdout, done.stderr) == (code, here.stdout, here.stderr)


def test_a_refused_job_is_told_why_and_its_exit_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "placed.json"
    events = [event(), event(job="big", tasks_s=[1.5]), {"at_s": 5, "exit": "big"}, {"at_s": 6, "exit": "a"}]

    done = run(written(tmp_path, [events]), "--json", out)

    assert done.returncode == 0, done.stderr
    states = json.loads(out.read_bytes())[0]
    assert [state["refused"] is None for state in states] == [True, False, True, True]
    assert states[1]["refused"].startswith("job big: its largest task takes 1.5 CPU seconds")
    assert states[2] == {**states[0]}


def test_a_model_with_what_chunks_and_bytes_cost_is_placed_by_the_managers_tasks(tmp_path: Path) -> None:
    out = tmp_path / "placed.json"
    # 4 members push 16 MiB in 64 chunks: 0.0168 s by bytes, 0.0064 s by chunks.
    fits, exceeds = event(tasks_s=None, model=MODEL, iteration_s=0.0233), event(job="b", tasks_s=None, model=MODEL)
    exceeds["arrive"]["iteration_s"] = 0.0231

    run(written(tmp_path, [[fits, exceeds]]), "--json", out)

    first, second = json.loads(out.read_text())[0]
    assert first["refused"] is None
    assert [task for held in first["aggregators"] for _, task in held["tasks"]] == list(range(16))
    assert "too much for servers=1" in second["refused"]


def test_more_cores_hold_more_jobs(tmp_path: Path) -> None:
    out = tmp_path / "placed.json"
    mixes = written(tmp_path, [[event(tasks_s=[0.9]), event(job="b", tasks_s=[0.9])]])

    for cores, servers in ((1, 2), (2, 1)):
        assert run(mixes, "--capacity", cores, "--json", out).returncode == 0
        assert len(json.loads(out.read_bytes())[0][-1]["aggregators"]) == servers


@pytest.mark.parametrize(
    ("mixes", "said"),
    [
        ("[[", "mixes.json: Input data was truncated"),
        ({}, "mixes.json: Expected `array`, got `object`"),
        ({"a": 1}, "mixes.json: Expected `array`, got `object`"),
        ([1], "mix 1: Expected `array`, got `int`"),
        ([event()], "mix 1: Expected `array`, got `object`"),
        ([[event(iteration_s=0)]], "mix 1, event 1: Expected `float` >= 1e-06, in arrive.iteration_s"),
        ([[event(iteration_s=1e300)]], "mix 1, event 1: Expected `float` <= 1000000.0, in arrive.iteration_s"),
        ([[], [event(), {"at_s": 1, "exit": 7}]], "mix 2, event 2: Expected `str | null`, got `int`, in exit"),
        ([[event(tasks_s=[])]], "tasks_s"),
        ([[event(tasks_s=[-1])]], "tasks_s"),
        ([[event(servers=0)]], "servers"),
        ([[event(speed=1)]], "unknown field `speed`"),
        ([[event(), event()]], "mix 1, event 2: job 'a' has arrived already"),
        ([[], [{"at_s": 0, "exit": "a"}]], "mix 2, event 1: no job 'a' has arrived"),
        ([[{"at_s": 0}]], "mix 1, event 1: needs one of arrive and exit"),
        ([[event(tasks_s=None)]], "mix 1, event 1: arrive needs one of tasks_s and model"),
        ([[event(model=MODEL)]], "mix 1, event 1: arrive needs one of tasks_s and model"),
        ([[event(model={**MODEL, "chunks": [[1, 1 << 30]]})]], "chunks"),
        ([[{**event(), "exit": "b"}]], "mix 1, event 1: needs one of arrive and exit"),
        ([[{"at_s": 9, **event(job="b")}, {**event(), "at_s": -1}]], "mix 1, event 2: at_s -1 is before the event"),
        ('[[{"at_s": 0, "arrive": {"job": "a", "iteration_s": 1e999, "tasks_s": [1]}}]]', "mixes.json"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, mixes: object, said: str) -> None:
    out = tmp_path / "placed.json"

    done = run(written(tmp_path, mixes), "--json", out)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("farside: ")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--capacity", "0"), "--capacity 0: is no number of cores"),
        (("--capacity", "nan"), "--capacity nan: is no number of cores"),
        (("--loss-limit", "1"), "--loss-limit 1: is no share"),
        (("--variant", "best"), "best"),
    ],
)
def test_an_option_out_of_bounds_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(written(tmp_path, [[event()]]), *arguments)

    assert done.returncode == 2
    assert said in done.stderr


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path / "none.json")

    assert done.returncode == 2
    assert "none.json: No such file or directory" in done.stderr


def test_the_result_never_replaces_the_mixes(tmp_path: Path) -> None:
    mixes = written(tmp_path, [[event()]])

    done = run(mixes, "--json", mixes)

    assert done.returncode == 2
    assert json.loads(mixes.read_bytes()) == [[event()]]


LOG = """\
job_id,submit_s,gpus,duration_s
1,0,8,600
2,60,8,600
3,60,1,6000
4,120,4,60
"""


def log(tmp_path: Path, text: str = LOG) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return path


def test_a_job_log_says_how_much_server_time_is_saved(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"

    done = run(log(tmp_path), "--json", out, "--seed", "3")

    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_bytes())
    assert told["jobs"] == 3
    assert told["saved_share"] == pytest.approx(1 - told["held_core_s"] / told["asked_core_s"])
    assert len(told["asked"]) == len(told["held"]) == 10
    assert "jobs of more than one GPU, which aggregate" in done.stdout


def test_the_same_seed_draws_the_same_jobs(tmp_path: Path) -> None:
    first, again, other = (run(log(tmp_path), "--seed", seed).stdout for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_small_pool_makes_jobs_wait(tmp_path: Path) -> None:
    done = run(log(tmp_path), "--servers-max", "2")

    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines() if "│" in line]
    waited = {row[1]: row[2] for row in rows}["jobs that waited for Aggregators"]
    assert int(waited) >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--variant", "printed"), "--variant printed is for mixes"),
        (("--capacity", "2"), "--capacity is for mixes"),
        (("--period-s", "0"), "--period-s 0: is no period"),
    ],
)
def test_an_option_that_a_job_log_does_not_take_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run(log(tmp_path), *arguments)

    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,0,8,-5\n", "jobs.csv, line 2, column duration_s"),
        ("1,0,8,-5\n2,0,8,-5\n", "jobs.csv: 2 rows cannot be used; fix them"),
    ],
)
def test_bad_rows_of_a_job_log_are_told_without_an_option_that_there_is_not(
    tmp_path: Path, text: str, said: str
) -> None:
    done = run(log(tmp_path, f"job_id,submit_s,gpus,duration_s\n{text}"))

    assert done.returncode == 2
    assert said in done.stderr
    assert "--on-bad" not in done.stderr


def test_phillys_job_log_is_one_though_it_is_json(tmp_path: Path) -> None:
    done = run(log(tmp_path, '[{"jobid": "", "submitted_time": "2017-10-09 00:00:00", "attempts": []}]'))

    assert done.returncode == 2
    assert "line 1, column jobid: is empty" in done.stderr


def test_an_option_of_job_logs_is_refused_for_mixes(tmp_path: Path) -> None:
    done = run(written(tmp_path, [[event()]]), "--seed", "1", "--period-s", "60")

    assert done.returncode == 2
    assert "--seed, --period-s is for a job log" in done.stderr


def test_a_log_without_jobs_that_aggregate_is_refused(tmp_path: Path) -> None:
    done = run(log(tmp_path, "job_id,submit_s,gpus,duration_s\n1,0,1,60\n"))

    assert done.returncode == 2
    assert "no job has more than one GPU" in done.stderr
