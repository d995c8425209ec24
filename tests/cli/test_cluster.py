"""`farside submit`, `queue`, `cancel` and the others, as a user has them, against a manager with one node."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from farside.cli.cluster_logs import follow_output
from farside.client.manager_client import find_manager
from farside.errors import ConfigError
from farside.scheduler.manager.auth.token_file import Role, add_token, read_tokens
from tests.live.fake_agent import FakeNode
from tests.live.manager import Manager, running_manager
from tests.support.programs import Outcome


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    folder = tmp_path_factory.mktemp("m")
    with running_manager(folder, node_timeout_s=3600) as made:

        async def join() -> None:
            async with FakeNode("n0").connected(made.url, made.node_token()):
                pass

        asyncio.run(join())
        yield made


def farside(manager: Manager, *arguments: str, cwd: Path | None = None) -> Outcome:
    env = {**os.environ, "FARSIDE_MANAGER": manager.address.endpoint}
    argv = [sys.executable, "-m", "farside", *arguments]
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    return Outcome(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def held(manager: Manager, count: int = 1) -> list[str]:
    body = {"argv": ["true"], "cwd": "/", "hold": True, "count": count}
    ids: list[str] = manager.post("jobs", body=body)["ids"]
    return ids


def job_file(folder: Path, text: str = "") -> Path:
    (folder / "x.toml").write_text(f'command = ["true"]\n{text}\n')
    return folder / "x.toml"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--gpu 4 -- sleep 1", "no such option --gpu; did you mean --gpus"),
        ("--gpus 4 --tiem 5m -- sleep 1", "no such option --tiem; did you mean --time"),
        ("x.toml --gpus=4 --quies=1", "no such option --quies; did you mean --quiet"),
        ("x.toml --xyzzy", "no such option --xyzzy; `farside submit --help` lists them; a command goes after `--`"),
        ("x.toml -- true", "x.toml: more words follow the job file: true; put a command after `--`"),
        ("--set gpu=1 -- true", "--set gpu: no such key; did you mean 'gpus'?"),
        ("-t -5s -- true", "--time: must be 0 to 4e+09 seconds"),
        ("--aggregation all -- true", "--aggregation: "),
        ("--aggregation shared --gpus 2 -- true", "--aggregation: no node offers an Aggregator; start"),
    ],
)
def test_a_slip_is_one_line_and_nothing_is_submitted(manager: Manager, words: str, says: str, tmp_path: Path) -> None:
    job_file(tmp_path)
    before = manager.get("jobs", all="true")

    done = farside(manager, "submit", *words.split(), cwd=tmp_path)

    assert (done.status, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"farside: {says}")
    assert manager.get("jobs", all="true") == before


def test_what_stands_behind_two_dashes_is_a_command_whatever_it_looks_like(manager: Manager, tmp_path: Path) -> None:
    job_file(tmp_path)

    first = farside(manager, "submit", "-q", "--hold", "--", "./x.toml", cwd=tmp_path).stdout.strip()
    second = farside(manager, "submit", "-q", "--hold", "--", "--gpu").stdout.strip()
    third = farside(manager, "submit", "-q", "--hold", "python", "t.py", "--lr", "3").stdout.strip()

    argvs = [manager.job(job)["spec"]["argv"] for job in (first, second, third)]
    assert argvs == [["./x.toml"], ["--gpu"], ["python", "t.py", "--lr", "3"]]


def test_a_file_may_hold_its_jobs_and_ask_for_several(manager: Manager, tmp_path: Path) -> None:
    ids = farside(manager, "submit", "-q", str(job_file(tmp_path, "hold = true\ncount = 3"))).stdout.split()

    assert [manager.job(job)["state"] for job in ids] == ["held"] * 3
    more = farside(manager, "submit", "-q", str(tmp_path / "x.toml"), "--array", "2", "--set", "env.X=1").stdout.split()
    assert [manager.job(job)["spec"]["env"]["X"] for job in more] == ["1"] * 2


def test_each_of_several_jobs_is_acted_on_whatever_becomes_of_the_others(manager: Manager) -> None:
    one, two = held(manager) + held(manager)

    done = farside(manager, "cancel", one, "999999", two)
    drained = farside(manager, "drain", "nowhere", "n0")
    farside(manager, "undrain", "n0")

    assert (done.status, done.stdout) == (1, f"job {one}: stopping\njob {two}: stopping\n")
    assert done.stderr == "farside: job 999999: you have no such job\n"
    assert (drained.status, drained.stdout.split(":")[0], drained.stderr.count("\n")) == (1, "n0", 1)


def test_json_of_several_jobs_is_one_document_of_those_that_were_done(manager: Manager) -> None:
    (one,) = held(manager)

    done = farside(manager, "cancel", "999999", one, "--json")

    assert (done.status, [job["id"] for job in json.loads(done.stdout)]) == (1, [one])


def test_the_number_of_an_array_means_all_its_tasks_or_is_told_what_they_are(manager: Manager) -> None:
    ids = held(manager, 3)
    number = ids[0].partition("_")[0]
    (over,) = held(manager)
    farside(manager, "cancel", ids[1], over)

    waits = farside(manager, "submit", "-q", "--after", number, "--", "true").stdout.strip()
    shown = farside(manager, "show", number)
    ended = farside(manager, "cancel", number)

    assert shown.stderr == f"farside: job {number} is an array: {ids[0]} to {ids[2]}; name one of them\n"
    assert manager.job(waits)["spec"]["after"] == ids
    assert (ended.status, ended.stdout) == (0, f"job {ids[0]}: stopping\njob {ids[2]}: stopping\n")


def test_a_listing_says_what_a_waiting_job_waits_for(manager: Manager) -> None:
    (other,) = held(manager)
    job = manager.submit("true", after=[other], cwd="/")

    lines = farside(manager, "queue").stdout.splitlines()

    (line,) = [line for line in lines if line.split()[:1] == [job]]
    assert line.strip().endswith(f"waits for the end of job {other}")


def test_a_held_job_says_how_it_is_released(manager: Manager) -> None:
    (job,) = held(manager)

    assert f"`farside release {job}` lets it start" in farside(manager, "explain", job).stdout


def test_a_job_that_could_not_be_started_says_why_instead_of_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").touch()
    task = {"rank": 0, "node": "n0", "output": str(tmp_path / "out"), "cause": "./x: Permission denied"}

    follow_output(lambda: {"id": "7", "state": "failed", "tasks": [task]}, 0, is_following=False)

    assert capsys.readouterr().err == "farside: job 7, rank 0: ./x: Permission denied\n"


def test_a_reader_of_output_that_leaves_is_no_fault_of_the_jobs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("much\n")
    closed = Mock(**{"buffer.write.side_effect": BrokenPipeError})
    monkeypatch.setattr(sys, "stdout", closed)
    task = {"rank": 0, "node": "n0", "output": str(tmp_path / "out"), "cause": ""}

    with pytest.raises(BrokenPipeError):
        follow_output(lambda: {"id": "7", "state": "completed", "tasks": [task]}, 0, is_following=False)


def test_which_manager_is_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FARSIDE_STATE", "one")
    assert find_manager().endpoint == f"unix:{tmp_path}/one/manager.sock"

    monkeypatch.setenv("FARSIDE_MANAGER", "unix:/there")
    assert find_manager().endpoint == "unix:/there"
    assert find_manager(state=Path("two")).endpoint == f"unix:{tmp_path}/two/manager.sock"
    assert find_manager("unix:/here").endpoint == "unix:/here"


def test_a_manager_that_is_named_twice_or_nowhere_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--manager and --state both say"):
        find_manager("unix:/here", tmp_path)
    with pytest.raises(ConfigError, match=r"--state .*/none: no such folder"):
        find_manager(state=tmp_path / "none")


@pytest.mark.long
@pytest.mark.parametrize("way", ["option", "variable"])
def test_the_store_of_a_sandbox_is_checked_where_its_folder_is_told(manager: Manager, tmp_path: Path, way: str) -> None:
    (tmp_path / "manager").mkdir()
    (tmp_path / "manager/config.toml").write_text(f'store_url = "{manager.store_url}"\n')
    argv = [sys.executable, "-m", "farside", "store", "check", *(["--state", str(tmp_path)] * (way == "option"))]
    env = {**os.environ, **({"FARSIDE_STATE": str(tmp_path)} if way == "variable" else {})}

    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (0, "the log is sound\n"), done.stderr


def tokens_told(state: Path, *words: str) -> Outcome:
    """A command about tokens in a terminal of this sandbox."""
    env = {**os.environ, "FARSIDE_STATE": str(state)}
    argv = [sys.executable, "-m", "farside", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    return Outcome(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def test_in_a_sandbox_s_terminal_tokens_are_the_sandbox_s(tmp_path: Path) -> None:
    own, other = tmp_path / "own.toml", tmp_path / "other.toml"
    (tmp_path / "manager").mkdir()
    (tmp_path / "manager/config.toml").write_text(f'tokens_file = "{own}"\n')
    for file in (own, other):
        add_token(file, "n1", Role.NODE)

    made = tokens_told(tmp_path, "token", "n2")
    revoked = tokens_told(tmp_path, "tokens", "revoke", "n1")
    listed = tokens_told(tmp_path, "tokens", "list", "--json")
    named = tokens_told(tmp_path, "tokens", "revoke", "n1", "--file", str(other))

    assert [one.status for one in (made, revoked, listed, named)] == [0] * 4
    assert [row["name"] for row in json.loads(listed.stdout)] == ["n2"]
    assert [row.name for row in read_tokens(own)] == ["n2"]
    assert read_tokens(other) == ()


@pytest.mark.parametrize(
    ("has_manager", "said"),
    [(True, "tokens.toml: No such file or directory; make tokens by"), (False, "no manager's settings there")],
)
def test_a_sandbox_without_tokens_is_one_line(has_manager: bool, said: str, tmp_path: Path) -> None:
    if has_manager:
        (tmp_path / "manager").mkdir()
        (tmp_path / "manager/config.toml").write_text(f'tokens_file = "{tmp_path}/tokens.toml"\n')

    done = tokens_told(tmp_path, "tokens", "list")

    (line,) = done.stderr.splitlines()
    assert done.status == 2
    assert said in line
    assert str(tmp_path) in line


@pytest.mark.long
def test_a_folder_without_a_manager_has_no_store(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "farside", "store", "backup", "--state", str(tmp_path), str(tmp_path / "copy")]

    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr.count("no manager's settings there")) == (2, 1)
