"""A whole cluster plane as real processes: jobs run, are preempted, resume, and outlive agents and manager."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farside import admin
from farside.errors import ConfigError, PeerError
from farside.sandbox import control
from farside.sandbox.cluster import parse_shape
from farside.sandbox.layout import Shape
from farside.sandbox.process import END_LIMIT_S, command
from farside.sandbox.session import Session, open_sandbox
from farside.sandbox.settings import PATIENCE
from farside.scheduler.manager import processes as manager_parts
from tests.agent.node import processes_with
from tests.support.job_commands import farside, until_job
from tests.support.sandbox import kill_agent
from tests.support.waiting import text_of, until


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Session]:
    with open_sandbox(("--cluster", "2x4", "--donors", "1", "--size", "64MiB")) as session:
        yield session


def submit(session: Session, out: Path, script: str, *options: str) -> str:
    """The new job's id; every rank writes to files of its own beside ``out``."""
    return farside(session, "submit", "--quiet", "--output", f"{out}.%r", *options, "--", "sh", "-c", script)


@pytest.mark.long
def test_a_sandbox_by_qssf_says_what_a_job_is_expected_to_take_and_runs_the_shorter_first(tmp_path: Path) -> None:
    options = ("--cluster", "1x1", "--donors", "1", "--size", "64MiB", "--set", "manager.policy=qssf")
    with open_sandbox(options) as session:
        for name, script in (("short", "true"), ("short", "true"), ("long", "sleep 1")):
            until_job(session, submit(session, tmp_path / "out", script, "--gpus", "1", "--name", name), "done")
        go = tmp_path / "go"
        running = submit(session, tmp_path / "out", f"until test -e {go}; do sleep 0.1; done", "--gpus", "1")
        until_job(session, running, "running")

        long = submit(session, tmp_path / "out", "sleep 1", "--gpus", "1", "--name", "long")
        short = submit(session, tmp_path / "out", "true", "--gpus", "1", "--name", "short")

        shown = json.loads(farside(session, "show", "--json", short))
        assert shown["expected_from_jobs"] == 2
        assert shown["expected_s"] < json.loads(farside(session, "show", "--json", long))["expected_s"]
        assert "from 2 jobs of this user with a similar name" in farside(session, "explain", short)
        go.touch()
        ended = until_job(session, short, "done"), until_job(session, long, "done")
    assert ended[0]["start_s"] < ended[1]["start_s"]


@pytest.mark.long
def test_a_node_that_is_left_for_later_is_new_to_the_manager_when_it_joins(tmp_path: Path) -> None:
    options = ("--cluster", "2x1", "--later", "1", "--donors", "1", "--size", "64MiB")
    with open_sandbox(options) as session:
        before = [one["name"] for one in json.loads(farside(session, "nodes", "--json"))]

        control.start_agent(session.state, "n2")

        wide = submit(session, tmp_path / "out", "true", "--gpus", "2")
        assert before == ["n1"]
        assert until_job(session, wide, "done")["nodes"] == ["n1", "n2"]


def test_a_manager_has_time_to_kill_a_part_that_does_not_end() -> None:
    assert manager_parts.END_LIMIT_S + 1 < END_LIMIT_S / PATIENCE


def test_a_job_over_two_nodes_runs_with_what_it_asked_for(sandbox: Session, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT has $CUDA_VISIBLE_DEVICES"'

    job = until_job(sandbox, submit(sandbox, out, script, "--gpus", "8"), "done")

    lines = [(tmp_path / f"out.{rank}").read_text().split() for rank in (0, 1)]
    assert [line[:3] for line in lines] == [["0", "of", "2"], ["1", "of", "2"]]
    assert lines[0][4] == lines[1][4]
    assert [line[-1] for line in lines] == ["0,1,2,3", "0,1,2,3"]
    assert (job["exit_code"], job["starts"], job["preemptions"]) == (0, 1, 0)


def test_no_other_user_reaches_the_manager_as_whose_starter_all_jobs_run(sandbox: Session) -> None:
    assert (sandbox.state / "manager.sock").stat().st_mode & 0o777 == 0o600
    assert sandbox.state.stat().st_mode & 0o777 == 0o700


def test_a_job_s_exit_code_is_kept(sandbox: Session, tmp_path: Path) -> None:
    job = submit(sandbox, tmp_path / "out", "exit 3", "--gpus", "1")

    assert until_job(sandbox, job, "failed")["exit_code"] == 3


def test_a_long_job_is_preempted_for_short_ones_and_resumes_where_it_was(sandbox: Session, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    go = tmp_path / "go"
    # Counts until it may end, keeps its place at SIGTERM, and says each time where it began.
    script = f"""
        at=$(cat $FARSIDE_CHECKPOINT_DIR/$RANK 2>/dev/null || echo 0)
        echo "resume=$FARSIDE_RESUME from $at"
        trap 'echo $at > $FARSIDE_CHECKPOINT_DIR/$RANK; exit 0' TERM
        until [ -e {go} ]; do sleep 0.1 & wait $! 2>/dev/null; at=$((at + 1)); done
        echo finished
    """
    long = submit(sandbox, tmp_path / "long", script, "--gpus", "8", "--checkpoint", str(checkpoint))
    until(lambda: all("resume=" in text_of(tmp_path / f"long.{rank}") for rank in (0, 1)), what="both ranks")

    # Both at once, and each until the other is there: between the two the long one would have its turn.
    both = f"test -e {tmp_path}/begun1 && test -e {tmp_path}/begun2"
    short = [
        submit(
            sandbox, tmp_path / f"short{n}", f"touch {tmp_path}/begun{n}; until {both}; do sleep 0.1; done",
            "--gpus", "4", "--hold",
        )
        for n in (1, 2)
    ]  # fmt: skip
    farside(sandbox, "release", *short)
    for job in short:
        until_job(sandbox, job, "done")
    until_job(sandbox, long, "running", "failed")
    until(lambda: all("resume=1" in text_of(tmp_path / f"long.{rank}") for rank in (0, 1)), what="both ranks")
    go.touch()
    end = until_job(sandbox, long, "done", "failed")

    assert (end["state"], end["exit_code"], end["starts"], end["preemptions"]) == ("done", 0, 2, 1)
    for rank in (0, 1):
        first, second, last = (tmp_path / f"long.{rank}").read_text().splitlines()
        assert first == "resume= from 0"
        assert second.startswith("resume=1 from ")
        assert int(second.split()[-1]) > 0
        assert last == "finished"


def test_a_checkpoint_folder_that_no_node_can_use_is_refused_in_one_line(sandbox: Session, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = json.loads(farside(sandbox, "queue", "--all", "--json"))

    wrong = ("--checkpoint", str(tmp_path / "file" / "run"), "--", "true")
    done = subprocess.run(command("submit", "--state", str(sandbox.state), *wrong), capture_output=True, text=True)

    assert done.returncode != 0
    assert done.stderr.startswith("farside: --checkpoint: ")
    assert "on node n" in done.stderr
    assert "Not a directory" in done.stderr
    assert json.loads(farside(sandbox, "queue", "--all", "--json")) == before


def test_a_checkpoint_folder_that_is_not_there_is_made_as_the_user(sandbox: Session, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"

    job = submit(sandbox, tmp_path / "out", "test -w $FARSIDE_CHECKPOINT_DIR", "--checkpoint", str(folder))

    assert until_job(sandbox, job, "done", "failed")["state"] == "done"
    assert list(folder.iterdir()) == []


def test_workers_find_their_parameter_server_which_ends_when_they_have(sandbox: Session, tmp_path: Path) -> None:
    server = """
import os, socket
host, port = os.environ["FARSIDE_HOSTS_PS"].rsplit(":", 1)
with socket.create_server((host, int(port))) as listener:
    while True:
        with listener.accept()[0] as worker:
            worker.sendall(b"weights")
"""
    worker = """
import os, socket, time
host, port = os.environ["FARSIDE_HOSTS_PS"].rsplit(":", 1)
while True:
    try:
        with socket.create_connection((host, int(port))) as server:
            print(os.environ["FARSIDE_ROLE"], os.environ["RANK"], os.environ["WORLD_SIZE"], server.recv(64).decode())
            break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""
    file = tmp_path / "job.toml"
    file.write_text(
        f"output = {json.dumps(str(tmp_path / 'out.%r'))}\n"
        f'[[role]]\nname = "worker"\ncommand = {json.dumps([sys.executable, "-c", worker])}\ncount = 8\n'
        f'[[role]]\nname = "ps"\ncommand = {json.dumps([sys.executable, "-c", server])}\ngpus = 0\nservice = true\n'
    )

    end = until_job(sandbox, farside(sandbox, "submit", "--quiet", str(file)), "done", "failed")

    assert (end["state"], end["exit_code"]) == ("done", 0), end["reason"]
    assert [(tmp_path / f"out.{rank}").read_text() for rank in range(8)] == [
        f"worker {rank} 8 weights\n" for rank in range(8)
    ]
    assert [task["role"] for task in end["tasks"]] == ["worker"] * 8 + ["ps"]


@pytest.mark.long
def test_what_ran_is_simulated_and_shown_beside_it(sandbox: Session, tmp_path: Path) -> None:
    until_job(sandbox, submit(sandbox, tmp_path / "out", "sleep 1", "--gpus", "2"), "done")
    trace = tmp_path / "trace.csv"

    page = farside(sandbox, "sim", "replay", "--state", str(sandbox.state), "--trace", str(trace))
    told = json.loads(farside(sandbox, "sim", "replay", "--state", str(sandbox.state), "--json"))
    again = farside(sandbox, "sim", "run", str(trace), "--policy", "las", "--nodes", "2", "--gpus-per-node", "4")

    assert "mean JCT" in page
    assert "half of the jobs are predicted within" in page
    assert "7.1 % apart" in page
    assert (told["policy"], len(told["jobs"]) > 0) == ("las", True)
    assert all(job["predicted_s"] > 0 for job in told["jobs"])
    assert "jobs" in again


def test_a_folder_without_a_manager_has_nothing_to_replay(tmp_path: Path) -> None:
    done = subprocess.run(command("sim", "replay", "--state", str(tmp_path)), capture_output=True, text=True)

    assert done.returncode == 2
    assert "no manager's settings there" in done.stderr


def test_a_killed_agent_costs_no_job_anything(sandbox: Session, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo begun; until test -e {go}; do sleep 0.05; done; echo done"
    job = submit(sandbox, tmp_path / "out", script, "--gpus", "8")
    until_job(sandbox, job, "running")

    kill_agent(sandbox.state, "n1")
    go.touch()
    control.start_agent(sandbox.state, "n1")
    end = until_job(sandbox, job, "done", "failed")

    assert (end["state"], end["exit_code"], end["starts"]) == ("done", 0, 1)
    assert [(tmp_path / f"out.{rank}").read_text() for rank in (0, 1)] == ["begun\ndone\n"] * 2


def test_a_killed_manager_costs_no_job_anything(sandbox: Session, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo begun; until test -e {go}; do sleep 0.05; done; echo done"
    job = submit(sandbox, tmp_path / "out", script, "--gpus", "8")
    until_job(sandbox, job, "running")

    control.kill_manager(sandbox.state)
    go.touch()
    control.start_manager(sandbox.state)
    end = until_job(sandbox, job, "done", "failed")

    assert (end["state"], end["exit_code"], end["starts"]) == ("done", 0, 1)
    assert [(tmp_path / f"out.{rank}").read_text() for rank in (0, 1)] == ["begun\ndone\n"] * 2


def test_status_knows_manager_and_agents(sandbox: Session) -> None:
    told = json.loads(farside(sandbox, "status", "--json", "--state", str(sandbox.state)))

    roles = [(process["name"], process["role"], process["answers"]) for process in told["processes"]]
    assert ("manager", "manager", True) in roles
    assert ("n1", "agent", True) in roles
    assert ("n2", "agent", True) in roles
    assert all(psutil.pid_exists(process["pid"]) for process in told["processes"])
    assert [len(agent["gpus"]) for agent in told["agents"]] == [4, 4]


@pytest.mark.long
def test_nothing_is_left_of_a_cluster_whose_agents_were_killed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with open_sandbox(("--cluster", "1x1", "--donors", "1", "--size", "64MiB"), state=state) as session:
        script = f"trap '' TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.05; done"
        submit(session, tmp_path / "out", script, "--gpus", "1")
        until(lambda: text_of(tmp_path / "pid"), what="the job's process id")
        task = psutil.Process(int((tmp_path / "pid").read_text()))
        kill_agent(state, "n1")
        assert task.is_running()

    until(lambda: not task.is_running(), what="the job's process has gone")
    assert processes_with(str(state)) == []
    assert not state.exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["manager", "n1"])
def test_a_sandbox_says_who_was_killed_and_the_command_that_starts_it_again(tmp_path: Path, name: str) -> None:
    state = tmp_path / "state"
    argv = command("sandbox", "--cluster", "1x1", "--donors", "1", "--size", "64MiB", "--state", str(state))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sandbox:
        assert sandbox.stdout is not None
        assert sandbox.stderr is not None
        try:
            assert [sandbox.stdout.readline().split()[0] for _ in range(2)] == ["ready"] * 2
            if name == "manager":
                control.kill_manager(state)
            else:
                kill_agent(state, name)

            who, _, again = (
                sandbox.stderr.readline().strip().removesuffix("`").partition("; start it again by `farside ")
            )
            done = subprocess.run(command(*shlex.split(again)), capture_output=True, text=True)
        finally:
            sandbox.terminate()
            sandbox.communicate()

    assert who == f"farside: {name} was killed by SIGKILL"
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_sandbox_whose_manager_does_not_start_says_why_and_no_more(tmp_path: Path) -> None:
    """Its folder is gone then: no file is in it, and nothing is started there again."""
    state = tmp_path / "state"
    options = ("--cluster", "1x1", "--donors", "1", "--size", "64MiB", "--set", "manager.policy=nope")

    done = subprocess.run(command("sandbox", *options, "--state", str(state)), capture_output=True, text=True)

    (line,) = done.stderr.splitlines()
    assert done.returncode != 0
    assert line.count("no policy 'nope'") == 1
    assert str(state) not in line
    assert "start_manager" not in line


def test_an_agent_that_is_to_be_started_must_be_named(sandbox: Session) -> None:
    with pytest.raises(PeerError, match="name= is missing: the agent to start, one of n1, n2"):
        admin.call(sandbox.state / "sandbox.sock", "start_agent")


@pytest.mark.parametrize("text", ["4", "4x", "x8", "0x8", "4x0", "99999x1", "65x1", "4x8x2", "-1x8"])
def test_a_cluster_that_is_none_is_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError, match="write NODESxGPUS, such as 4x8"):
        parse_shape(text)


def test_a_cluster_is_nodes_and_gpus() -> None:
    assert parse_shape("4x8") == Shape(nodes=4, gpus_per_node=8)
