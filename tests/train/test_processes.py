"""`farside train` with workers as processes: the same bits alone, paused and resumed, killed and resumed."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from farside import admin
from farside.errors import ConfigError
from farside.training.launch import Launch, launch
from farside.training.static_plan import static_plan_from
from tests.aggregation.service import Service, service
from tests.support.waiting import text_of, until
from tests.train.executors import executor, overlapping, two_nodes
from tests.train.programs import ended, model_of, train

# Sized so that an iteration takes a few milliseconds.
APPS: dict[str, tuple[object, ...]] = {
    "nmf": ("nmf", "--iterations", 120, "--blocks", 8),
    "mlr": ("mlr", "--iterations", 160, "--blocks", 8),
    "lasso": ("lasso", "--iterations", 200, "--blocks", 4),
    "lda": ("lda", "--iterations", 40, "--blocks", 8),
}
SLOW = [pytest.param(app, marks=() if app == "lasso" else pytest.mark.long) for app in APPS]


def needs_numba(app: str) -> None:
    if app == "lda":
        pytest.importorskip("numba", reason="numba is not installed: requirements/training.txt")


def trained(tmp_path: Path, name: str, *words: object) -> dict[str, bytes]:
    code, out, errors = ended(train(*words, "--out", tmp_path / name))
    assert code == 0, errors
    assert "objective" in out
    return model_of(tmp_path / name)


def workers_of(launcher: int, name: str = "train_worker") -> list[int]:
    """Its workers, or its Aggregator."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == launcher and name.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def newest(folder: Path) -> int:
    """The newest complete checkpoint's iteration; 0 without one."""
    return max((int(path.parent.name[2:]) for path in folder.glob("i-*/complete")), default=0)


@pytest.mark.long
@pytest.mark.parametrize("app", SLOW)
def test_two_workers_that_are_paused_and_killed_end_with_the_same_bits(tmp_path: Path, app: str) -> None:
    needs_numba(app)
    wanted = trained(tmp_path, "alone.npz", *APPS[app], "--workers", 2)

    folder = tmp_path / "kept"
    kept = ("--workers", 2, "--checkpoint-dir", folder, "--checkpoint-s", 0.01, "--retries", 2)
    paused = train(*APPS[app], *kept)
    until(lambda: newest(folder), what="a checkpoint")
    paused.terminate()
    code, _, errors = ended(paused)
    assert code == 75, errors
    assert "farside: paused in iteration" in errors
    before = newest(folder)

    killed = train(*APPS[app], *kept, "--out", tmp_path / "resumed.npz")
    until(lambda: newest(folder) > before, what="a newer checkpoint")
    os.kill(workers_of(killed.pid)[-1], signal.SIGKILL)
    code, _, errors = ended(killed)
    assert code == 0, errors
    assert "a worker was killed; all start again" in errors
    assert model_of(tmp_path / "resumed.npz") == wanted


def test_two_jobs_that_take_turns_on_a_node_end_with_the_same_bits(tmp_path: Path) -> None:
    words = ("lasso", "--iterations", 60, "--blocks", 4)
    wanted = trained(tmp_path, "alone", *words)

    with executor(tmp_path) as shared:
        how = ("--executor", shared.socket)
        running = {name: train(*words, *how, "--out", tmp_path / name) for name in ("one", "other")}
        for name, process in running.items():
            code, _, errors = ended(process)
            assert code == 0, errors
            assert model_of(tmp_path / name) == wanted
        rows = shared.trace()

    assert sum(row[6] for row in rows) > 100
    assert overlapping(rows, ("INIT_COMP", "COMP")) == overlapping(rows, ("INIT_PUSH", "PULL", "PUSH")) == []


@pytest.mark.long
def test_several_workers_on_a_node_ask_for_no_turns_of_an_executor_that_the_agent_named(tmp_path: Path) -> None:
    with executor(tmp_path) as shared:
        words = ("lasso", "--iterations", 20, "--blocks", 4, "--workers", 2, "--out", tmp_path / "model")
        code, _, errors = ended(train(*words, environment={"FARSIDE_EXECUTOR": str(shared.socket)}))

        assert code == 0, errors
        assert shared.trace() == []


@pytest.mark.long
def test_workers_train_by_the_key_that_a_manager_gives_to_their_start_alone(tmp_path: Path) -> None:
    key = bytes(range(32))
    told = {"WORLD_SIZE": "2", "FARSIDE_AGGREGATION_JOB": "7", "FARSIDE_AGGREGATION_START": "3"}

    def worker(rank: int, given: bytes = key) -> "subprocess.Popen[str]":
        environment = told | {"RANK": str(rank), "FARSIDE_AGGREGATION_KEY": given.hex()}
        environment["FARSIDE_AGGREGATION_SERVICE"] = f"{one.unix},{two.unix}"
        return train("lasso", "--iterations", 20, "--blocks", 4, environment=environment)

    def refused_early(by: Service) -> int:
        return int(by.status()["refused"].get("plan", 0))

    with service(tmp_path, "a") as one, service(tmp_path, "b", static=False) as two:
        early = [worker(rank) for rank in (0, 1)]  # before the manager's word has come
        for each in (one, two):
            until(partial(refused_early, each), what="workers that come early")
            admin.call(
                each.socket, "plan", plans=[], grants=[{"job": "7", "start": 3, "key": msgspec.to_builtins(key)}]
            )
        for process in early:
            code, _, errors = ended(process)
            assert code == 0, errors
        _, _, errors = ended(worker(0, given=bytes(32)))
        assert "the key is not that of job 7" in errors


def test_a_worker_of_several_nodes_starts_no_others_and_takes_no_damaged_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARSIDE_AGGREGATION_START", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--workers 2 in a job of 2 workers"):
        launch(Launch(argv=["true"], workers=2, environment={}))
    damaged = {"FARSIDE_AGGREGATION_SERVICE": "unix:/a", "FARSIDE_AGGREGATION_KEY": "7a"}
    for more in ({}, {"FARSIDE_AGGREGATION_KEY": "x"}, {"FARSIDE_AGGREGATION_START": "x"}):
        with pytest.raises(ConfigError, match="is damaged"):
            static_plan_from(damaged | {"RANK": "0", "WORLD_SIZE": "2", "FARSIDE_AGGREGATION_JOB": "7"} | more)


@pytest.mark.long
def test_four_jobs_that_take_turns_on_two_nodes_end_with_the_same_bits(tmp_path: Path) -> None:
    needs_numba("lda")
    wanted = {app: trained(tmp_path, f"{app}.alone", *words, "--workers", 2) for app, words in APPS.items()}
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(service(tmp_path))
        nodes = [stack.enter_context(executor(tmp_path, *words, name=words[1])) for words in two_nodes(tmp_path)]
        until(lambda: not any(node.status()["is_apart"] for node in nodes), what="a group of two")
        running = []
        for app, words in APPS.items():
            for rank, node in enumerate(nodes):
                told = {"RANK": str(rank), "WORLD_SIZE": "2", "FARSIDE_AGGREGATION_JOB": app}
                told |= {"FARSIDE_AGGREGATION_SERVICE": shared.unix, "FARSIDE_AGGREGATION_KEY_FILE": f"{tmp_path}/key"}
                how = ("--workers", 0, "--executor", node.socket, "--out", tmp_path / f"{app}.{rank}")
                running.append(train(*words, *how, environment=told))
        for process in running:
            code, _, errors = ended(process)
            assert code == 0, errors
        assert {app: model_of(tmp_path / f"{app}.0") for app in APPS} == wanted
        for node in nodes:
            rows = node.trace()
            assert {row[0].partition(":")[2] for row in rows if row[6]} == set(APPS)
            assert overlapping(rows, ("INIT_COMP", "COMP")) == []


@pytest.mark.long
def test_another_number_of_workers_differs_in_the_last_bits_alone(tmp_path: Path) -> None:
    one = trained(tmp_path, "one.npz", *APPS["nmf"])
    two = trained(tmp_path, "two.npz", *APPS["nmf"], "--workers", 2)

    for name, data in one.items():
        assert np.frombuffer(data) == pytest.approx(np.frombuffer(two[name]), rel=1e-6, abs=1e-9)


@pytest.mark.long
def test_a_checkpoint_is_good_for_any_number_of_workers(tmp_path: Path) -> None:
    kept = ("--checkpoint-dir", tmp_path / "kept", "--checkpoint-s", 0)
    words: tuple[Any, ...] = ("lasso", "--blocks", 6, *kept)
    trained(tmp_path, "one.npz", *words, "--iterations", 10)

    code, out, errors = ended(train(*words, "--iterations", 201, "--workers", 3))

    assert code == 0, errors
    assert "iteration 20 of 201" in out
    assert "objective 1444.30" in out


@pytest.mark.long
def test_frozen_topics_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    needs_numba("lda")
    words = (*APPS["lda"], "--frozen", "--iterations", 10)
    one, two = trained(tmp_path, "1.npz", *words), trained(tmp_path, "2.npz", *words, "--workers", 2)

    assert one["in_word"] == two["in_word"]


PROGRAM = """
import sys
import numpy as np
from farside import training

rows = np.arange(40.0).reshape(8, 5)
with training.begin(rows, keys={"sum": (5,)}, iterations=int(sys.argv[1])) as job:
    while job.goes_on():
        total = job.pull()["sum"]
        if sys.argv[2:] == [str(job.rank)] and job.iteration == 1:
            raise RuntimeError("by request")
        job.push({"sum": sum(block.data for block in job.blocks())})
    if job.rank == 0:
        print(job.pull()["sum"].sum())
    else:
        job.pull()
"""


LONG = """
import time
import numpy as np
from farside import training

with training.begin(np.ones((2, 1)), keys={"sum": (1,)}, iterations=10**6) as job:
    while job.goes_on():
        job.pull()
        if BREAKS and job.rank and job.iteration == 1:
            break
        job.push({"sum": np.ones(1)})
        if job.iteration == job.rank == 0:
            print("runs", flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose sockets' paths are short enough."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def long_run(folder: Path, *, breaks: bool = False) -> "subprocess.Popen[str]":
    """Two workers of a job that does not end soon; temporary folders are in `folder`."""
    file = folder / "long.py"
    file.write_text(LONG.replace("BREAKS", str(breaks)))
    process = train("file", "--workers", 2, file, environment={"TMPDIR": str(folder)})
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    return process


@pytest.mark.long
def test_a_worker_that_leaves_its_loop_early_ends_all(folder: Path) -> None:
    code, _, errors = ended(long_run(folder, breaks=True))

    assert code == 1
    assert "farside: rank 1 left the loop in iteration 1, before its end; end with `finish`" in errors
    assert "farside: rank 1 failed in iteration 1" in errors


@pytest.mark.long
def test_a_job_whose_own_aggregator_was_killed_ends_in_one_line(folder: Path) -> None:
    process = long_run(folder)
    os.kill(workers_of(process.pid, "train_aggregator")[0], signal.SIGKILL)

    code, _, errors = ended(process)

    assert code == 1
    assert "this job's own Aggregator has ended with status -9; start the job again" in errors
    assert not list(folder.glob("farside-train-*"))


def test_a_killed_job_leaves_neither_its_aggregator_nor_its_folder(folder: Path) -> None:
    process = long_run(folder)
    aggregator = workers_of(process.pid, "train_aggregator")[0]

    process.kill()

    until(lambda: not text_of(Path(f"/proc/{aggregator}/cmdline")), what="the Aggregator gone")
    until(lambda: not list(folder.glob("farside-train-*")), what="its folder gone")
    ended(process)


def test_a_jobs_own_aggregator_that_is_told_to_end_while_it_starts_says_nothing(folder: Path) -> None:
    # Libraries are imported in the meantime, and some print an exception that comes out in the middle of it.
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def tell(event, arguments):\n"
        "    if event == 'compile' and '<decorator-gen' in str(arguments[1]):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.addaudithook(tell)\n"
    )
    own = folder / "own"
    own.mkdir()
    (own / "aggregator.toml").write_text("")

    aggregator = subprocess.run(
        [sys.executable, "-m", "farside.cli.train_aggregator", own, "aggregator", "--config", own / "aggregator.toml"],
        env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=60.0,
    )  # fmt: skip

    assert (aggregator.returncode, aggregator.stdout, aggregator.stderr) == (1, "", "")
    assert not own.exists()


@pytest.mark.long
def test_a_second_signal_ends_workers_that_hang(folder: Path) -> None:
    process = long_run(folder)
    worker = workers_of(process.pid)[0]
    os.kill(worker, signal.SIGSTOP)

    def status(name: str) -> str:
        words = Path(f"/proc/{worker}/status").read_text().split()
        return words[words.index(name) + 1]

    def is_told() -> bool:
        return bool(int(status("ShdPnd:"), 16) & 1 << signal.SIGTERM - 1)

    # Of two signals that wait, the kernel gives SIGTERM first.
    until(lambda: status("State:") == "T", what="the worker to stand still")
    process.terminate()
    until(is_told, what="the first signal")
    process.terminate()

    assert ended(process)[0] == 128 + signal.SIGKILL


@pytest.mark.long
def test_a_users_own_program_runs_and_its_error_ends_all_workers(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(PROGRAM)

    assert ended(train(file, 3)) == (0, "780.0\n", "")
    code, _, errors = ended(train("file", "--workers", 2, file, 3, 1))
    assert code == 1
    assert "RuntimeError: by request" in errors
    assert "farside: rank 1 failed in iteration 1; its own line says why" in errors


@pytest.mark.long
def test_a_worker_computes_with_as_many_threads_as_it_was_given(tmp_path: Path) -> None:
    libraries = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    file = tmp_path / "own.py"
    file.write_text(f"import os\nprint(*[os.environ[f'{{name}}_NUM_THREADS'] for name in {libraries}])\n")

    assert ended(train(file)) == (0, "1 1 1 1\n", "")
    assert ended(train("file", "--threads", 2, file)) == (0, "2 2 2 2\n", "")
