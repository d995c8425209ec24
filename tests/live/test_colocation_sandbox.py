"""A program of `farside train` as co-located jobs of a sandbox: grouped, moved or not, with the model it has alone."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farside import admin
from farside.kmod_shim.disk_backing import find_backing
from farside.sandbox.control import kill_manager, start_agent, start_manager
from farside.sandbox.session import Session, open_sandbox
from tests.support.job_commands import asked, farside, until_job
from tests.support.waiting import until
from tests.train.programs import ended, train

DEADLINE_S = 150.0
# Each iteration takes as long as it is told, without using a processor for it. It ends once there is a file, or after
# as many iterations as it is told. The rows of a file that is named are mapped, and not read.
PROGRAM = """
import pathlib, sys, time
import numpy as np
from farside import training

out, pause_s, last = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
rows = np.load(sys.argv[4], mmap_mode="r") if sys.argv[4:] else np.arange(800.0).reshape(8, -1, 20) / 7
width = rows.shape[-1]
with training.begin(rows, keys={"sum": (width,), "ends": np.zeros((), np.int64)}, iterations=100_000) as job:
    centre = job.model.setdefault("centre", np.zeros(width))
    while job.goes_on():
        total = job.pull()
        centre += 0.1 * total["sum"] / rows.size
        time.sleep(pause_s)
        ends = int(out.with_name("end").exists())
        job.push({"sum": sum((block.data - centre).sum(axis=0) for block in job.blocks()), "ends": ends})
        done = job.iteration
        if done == last or total["ends"]:  # the same sums at all workers
            job.finish()
    job.pull()
    if job.rank == 0:
        np.savez(out, centre=centre, last=done)
"""


def submit(session: Session, folder: Path, name: str, rows: Path | None = None, **more: object) -> str:
    home, file = folder / name, folder / f"{name}.toml"
    home.mkdir()
    words = ["train", str(folder / "program.py"), str(home / "model.npz"), "0.1", "100001"]
    words += [str(rows)] if rows else []
    command = [sys.executable, "-m", "farside", *words]
    keys = {"command": command, "colocate": True, "memory": "256MiB", "checkpoint_dir": str(home), "cwd": str(home)}
    keys |= more
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    return farside(session, "submit", "--quiet", str(file))


@pytest.mark.long
def test_a_node_that_is_set_aside_and_left_for_later_runs_co_located_jobs_once_it_joins(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--cluster", "2x1", "--executors", "1", "--later", "1", "--donors", "1", "--size", "64MiB")
    with open_sandbox(options) as session:
        assert [one["name"] for one in json.loads(farside(session, "nodes", "--json"))] == ["n1"]

        start_agent(session.state, "n2")

        job = submit(session, tmp_path, "first")
        (tmp_path / "first" / "end").touch()
        end = until_job(session, job, "done", "failed", deadline_s=DEADLINE_S)
    assert (end["state"], end["nodes"]) == ("done", ["n2"])


@pytest.mark.long
def test_programs_are_grouped_by_a_manager_that_is_killed_and_end_with_the_model_of_each_alone(tmp_path: Path) -> None:
    def plan() -> tuple[Any, Any] | None:
        """Groups and who waits, once both are measured: whether the second stays follows from what it was measured."""
        told = asked(session, "groups")
        plans = [group["plan"] for group in told["groups"] if group["plan"]]
        is_measured = plans and plans[0]["predicted_s"] is not None and len(plans[0]["jobs"] + told["waiting"]) == 2
        return (plans, told["waiting"]) if is_measured else None

    (tmp_path / "program.py").write_text(PROGRAM)
    with open_sandbox(("--cluster", "1x1", "--executors", "1", "--donors", "1", "--size", "64MiB")) as session:
        jobs = {name: submit(session, tmp_path, name) for name in ("first", "second")}
        until(plan, what="two measured jobs", deadline_s=DEADLINE_S, every_s=0.2)
        table = farside(session, "groups")
        before = until(plan, what="the groups", deadline_s=DEADLINE_S)
        kill_manager(session.state)
        start_manager(session.state)
        after = until(plan, what="the groups again", deadline_s=DEADLINE_S)
        for name, job in jobs.items():
            until_job(session, job, "running", deadline_s=DEADLINE_S)
            (tmp_path / name / "end").touch()
            found = until_job(session, job, "done", "failed", deadline_s=DEADLINE_S)
            assert found["state"] == "done"

    assert before is not None
    assert after is not None
    # What they are measured goes on changing by a little, and the prediction with it.
    assert [one["jobs"] for one in after[0]] == [one["jobs"] for one in before[0]]
    assert after[0][0]["predicted_s"] == pytest.approx(before[0][0]["predicted_s"], rel=0.5)
    assert after[1] == before[1]
    assert "iteration as decided" in table
    for name in jobs:
        assert_as_alone(tmp_path, name)


def assert_as_alone(folder: Path, name: str, *how: object, rows: Path | None = None) -> None:
    """A job's model has the bits of one that had all to itself."""
    with np.load(folder / name / "model.npz") as model:
        alone = folder / f"{name}.npz"
        words = (alone, "0", int(model["last"]), *([rows] if rows else []))
        code, _, errors = ended(train("file", *how, folder / "program.py", *words))
        assert code == 0, errors
        with np.load(alone) as expected:
            assert model["last"] == expected["last"]
            assert model["centre"].tobytes() == expected["centre"].tobytes()


@pytest.mark.long
def test_two_jobs_of_two_workers_take_turns_on_two_nodes_whatever_is_killed_and_end_as_each_alone(
    tmp_path: Path,
) -> None:
    def groups() -> list[Any]:
        return list(asked(session, "groups")["groups"])

    def both_take_turns() -> dict[str, Any] | None:
        """The plan, once both jobs have had turns on both nodes, whose executors are in its group."""
        there = [group for group in groups() if group["plan"] and len(group["plan"]["jobs"]) == 2]
        turns = [{one["job"] for one in group["jobs"] if one["turns"] > one["let_through"]} for group in there]
        are_one = all(group["turns_epoch"] == group["plan"]["epoch"] for group in there)
        return there[0]["plan"] if turns == [{*jobs.values()}] * 2 and are_one else None

    def worker_of(name: str, rank: int) -> int | None:
        """The process that trains as this worker of a job."""
        words = {f"FARSIDE_CHECKPOINT_DIR={tmp_path / name}".encode(), f"RANK={rank}".encode()}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_worker = b"train_worker" in (path / "cmdline").read_bytes()
                if is_worker and words <= {*(path / "environ").read_bytes().split(b"\0")}:
                    return int(path.name)
        return None

    def executor_pid() -> int:
        found = admin.call(session.state / "executors" / "x2" / "admin.sock", "status")
        return int(found["pid"]) if found["group"] else 0

    (tmp_path / "program.py").write_text(PROGRAM)
    wanted = ("--cluster", "2x1", "--executors", "2", "--aggregators", "2", "--donors", "1", "--size", "64MiB")
    with open_sandbox(wanted) as session:
        jobs = {name: submit(session, tmp_path, name, workers="2", grace="4s") for name in ("first", "second")}
        plan = until(both_take_turns, what="turns of both on both nodes", deadline_s=DEADLINE_S, every_s=0.2)
        assert plan is not None
        before = executor_pid()
        os.kill(before, signal.SIGKILL)
        until(lambda: executor_pid() not in (0, before), what="the next executor in the group", deadline_s=DEADLINE_S)
        kill_manager(session.state)
        start_manager(session.state)
        after = until(lambda: [group["plan"] for group in groups() if group["plan"]], what="groups", deadline_s=60)
        worker = until(lambda: worker_of("first", 1), what="a worker of the first job", deadline_s=DEADLINE_S)
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        until(lambda: asked(session, "jobs", jobs["first"])["failures"], what="its end", deadline_s=DEADLINE_S)
        for name, job in jobs.items():
            until_job(session, job, "running", deadline_s=DEADLINE_S)
            (tmp_path / name / "end").touch()
            found = until_job(session, job, "done", "failed", deadline_s=DEADLINE_S)
            assert (found["state"], found["failures"]) == ("done", int(name == "first"))

    assert plan["nodes"] == ["n1", "n2"]
    assert all((one["nodes"], one["epoch"]) == (plan["nodes"], plan["epoch"]) for one in after)
    for name in jobs:
        assert_as_alone(tmp_path, name, "--workers", 2)


@pytest.mark.long
def test_a_job_whose_input_does_not_fit_its_memory_runs_spilled_and_ends_with_the_bits_that_it_has_in_memory(
    tmp_path: Path,
) -> None:
    def reading() -> dict[str, Any] | None:
        """What the manager shows of the job's input, once it reads some of it back."""
        found = [one["spill"] for group in asked(session, "groups")["groups"] for one in group["jobs"]]
        return next((spill for spill in found if spill and spill["disk_bytes"]), None)

    if find_backing(tmp_path).is_memory:
        pytest.skip("the tests' folder is in memory")
    (tmp_path / "program.py").write_text(PROGRAM)
    rows, blocks = tmp_path / "rows.npy", tmp_path / "blocks"
    blocks.mkdir()
    np.save(rows, np.random.default_rng(4).random((56, 256, 1024)))  # 2 MiB a block, which a program needs besides
    wanted = ("--cluster", "1x1", "--executors", "1", "--donors", "1", "--size", "64MiB")
    with open_sandbox((*wanted, "--set", f"agent.spill_dir={blocks}")) as session:
        job = submit(session, tmp_path, "first", rows, memory="128MiB")
        spill = until(reading, what="input that is read back", deadline_s=DEADLINE_S, every_s=0.2)
        table, explained = farside(session, "groups"), farside(session, "explain", job)
        (tmp_path / "first" / "end").touch()
        state = until_job(session, job, "done", "failed", deadline_s=DEADLINE_S)["state"]

    assert spill is not None
    assert state == "done"
    assert spill["input_bytes"] == 56 << 21
    assert 0 < spill["spilled"] <= 1
    assert "112 MiB" in table
    assert "of 112 MiB is not in memory" in explained
    assert list(blocks.iterdir()) == []
    assert_as_alone(tmp_path, "first", rows=rows)
