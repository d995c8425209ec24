"""Farside N and N-1 as processes: an agent of each recorded commit with our manager, and ours with its manager."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.agent.process import agent, kill, status, until_connected, write_config
from tests.live.manager import running_manager
from tests.live.test_versions import RECORDED
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
# Settings that an agent of the version before would refuse.
NEW = dict.fromkeys(
    (
        "aggregator_socket", "aggregation_socket", "executor_socket", "executor_admin_socket", "blockdev_socket",
        "swap_device",
    )
)  # fmt: skip


# Of those that are recorded; the older ones are long.
NEWEST = "a2318a8"


@pytest.fixture(
    params=[pytest.param(folder.name, marks=() if folder.name == NEWEST else pytest.mark.long) for folder in RECORDED]
)
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The prefix of a command that runs it in the sources of that commit.

    All tests and all workers have the same copy of them: what the first one compiles, none compiles again.
    """
    commit = str(request.param)
    base = tmp_path_factory.getbasetemp()
    # A worker of pytest-xdist has a folder of its own in that of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"sources-{commit}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _write_sources(commit, folder)
    return ("env", f"PYTHONPATH={folder / 'src'}")


def _write_sources(commit: str, folder: Path) -> None:
    made = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no commit {commit} here (a shallow clone, or no clone): git fetch --unshallow")
    part = folder.with_suffix(".part")
    part.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", part], input=made.stdout, check=True)
    # It has its name only when it is whole.
    part.rename(folder)


def accepting(old_manager: tuple[str, ...]) -> dict[str, bool]:
    """The setting by which an agent of ours obeys a manager of before over ws://: it can't prove itself."""
    return {"accept_unproved_manager": True} if old_manager else {}


def has_setting(on: tuple[str, ...], name: str, part: str) -> bool:
    """Whether a manager or an agent has a setting."""
    sources = Path(on[-1].removeprefix("PYTHONPATH=")) if on else ROOT / "src"
    return name in (sources / f"farside/config/{part}.py").read_text()


def knows_run_as(on: tuple[str, ...]) -> bool:
    """Whether a manager has that setting; older ones refuse nobody."""
    return has_setting(on, "run_as", "manager")


@pytest.mark.parametrize("which", ["manager", "agent"])
def test_one_of_the_version_before_runs_and_ends_jobs_with_the_other_of_ours(
    which: str, before: tuple[str, ...], tmp_path: Path
) -> None:
    old_manager, old_agent = (before if which == "manager" else ()), (before if which == "agent" else ())
    told = {} if knows_run_as(old_manager) else {"run_as": None}
    with running_manager(tmp_path / "m", token_submit="true", on=old_manager, **told) as manager:
        (tmp_path / "a").mkdir()
        token = manager.node_token("n1")
        names = NEW if old_agent else {}
        config = write_config(
            tmp_path / "a", manager.url, token=token, declared_gpus=2, **accepting(old_manager), **names
        )  # fmt: skip
        with agent(config, on=old_agent):
            until_connected(tmp_path / "a")
            if old_agent and not has_setting(old_agent, "accept_unproved_manager", "agent"):
                until(lambda: "a node takes any manager's word" in manager.log(), what="the line that says so")
            well = manager.submit("sh", "-c", "exit 0", cwd=str(tmp_path))
            badly = manager.submit("sh", "-c", "exit 3", cwd=str(tmp_path), gpus=2)
            for job, state in ((well, "done"), (badly, "failed")):
                until(lambda: manager.job(job)["state"] == state, what=f"job {job} {state}", deadline_s=60)  # noqa: B023
            long = manager.submit("sleep", "600", cwd=str(tmp_path), grace_s=1)
            until(lambda: manager.job(long)["state"] == "running", what="a job that runs", deadline_s=60)
            manager.post("jobs", long, "cancel")
            until(lambda: manager.job(long)["state"] == "cancelled", what="its end", deadline_s=60)


@pytest.mark.long
@pytest.mark.parametrize("before", ["384bdad"], indirect=True)
def test_over_ws_one_of_ours_does_without_the_other_of_the_version_before_unless_a_setting_says_so(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    """[H2] What cannot prove itself gets no token and no obedience; and where nodes are up to date, no session."""
    (tmp_path / "a").mkdir()
    with running_manager(tmp_path / "m", on=before) as manager:
        with agent(write_config(tmp_path / "a", manager.url, token=manager.node_token("n1"))):
            refusal = "the manager cannot prove itself"
            until(lambda: refusal in status(tmp_path / "a").get("problem", ""), what=refusal, deadline_s=60)
        nodes = manager.get("nodes")["nodes"]
    (tmp_path / "b").mkdir()
    with (
        running_manager(tmp_path / "m2", accept_unproved_agents="false") as manager,
        agent(write_config(tmp_path / "b", manager.url, token=manager.node_token("n1"), **NEW), on=before),
    ):
        refusal = "the manager refuses this node's token"
        until(lambda: refusal in status(tmp_path / "b").get("problem", ""), what=refusal, deadline_s=60)

    assert nodes == []


@pytest.mark.long
@pytest.mark.parametrize("before", ["384bdad"], indirect=True)
def test_store_settings_and_agent_of_the_version_before_are_taken_over_while_jobs_run(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    waits, jobs = "until test -e end; do sleep 0.05; done; exit", {0: "done", 3: "failed"}
    with running_manager(tmp_path / "m", token_submit="true", on=before) as manager:
        token = manager.node_token("n1")
        config = write_config(tmp_path / "a", manager.url, token=token, declared_gpus=3, **NEW)
        with agent(config, on=before) as process:
            until_connected(tmp_path / "a")
            ids = [manager.submit("sh", "-c", f"{waits} {code}", cwd=str(tmp_path), gpus=code or 2) for code in jobs]
            behind = manager.submit("true", cwd=str(tmp_path), gpus=3)
            until(lambda: manager.job(ids[0])["state"] == "running", what="a job that runs", deadline_s=60)
            kill(process)
            manager.stop()

            manager.on = ()
            manager.start()
            config = write_config(tmp_path / "a", manager.url, token=token, declared_gpus=3)
            with agent(config):
                until_connected(tmp_path / "a")
                during = [manager.job(job)["state"] for job in (*ids, behind)]
                (tmp_path / "end").touch()
                for job, state in zip((*ids, behind), (*jobs.values(), "done"), strict=True):
                    until(lambda: manager.job(job)["state"] == state, what=f"job {job} {state}", deadline_s=60)  # noqa: B023
                starts = [manager.job(job)["starts"] for job in (*ids, behind)]

    assert during == ["running", "waiting", "waiting"]
    assert starts == [1, 1, 1]
