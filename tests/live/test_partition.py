"""A node that is cut off, with a fence: at no moment do two starts of a job run [M4]."""

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from farside.scheduler.manager.model.check_log import violations
from tests.agent.process import agent, write_config
from tests.live.manager import Manager, running_manager
from tests.support.waiting import text_of, until

FENCE_S = 4.0
# Ignores SIGTERM, and says all the time that it is there.
SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as said:
    while not os.path.exists(sys.argv[2]):
        print(os.environ["FARSIDE_START"], file=said, flush=True)
        time.sleep(0.02)
"""


@pytest.mark.parametrize("partitions", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_two_starts_of_a_job_never_run_at_once(partitions: int, tmp_path: Path) -> None:
    """[M4] Two starts wrote into one file for as long as the first one's node was cut off."""
    for number in range(partitions):
        one_partition(tmp_path / str(number))


def one_partition(folder: Path) -> None:
    folder.mkdir()
    said, go = folder / "said", folder / "go"
    with running_manager(folder / "m", node_timeout_s=1) as manager:

        def joined(name: str) -> AbstractContextManager["subprocess.Popen[str]"]:
            (folder / name).mkdir()
            token = manager.node_token(name)
            return agent(
                write_config(folder / name, manager.url, token=token, node=name, declared_gpus=1, fence_s=FENCE_S)
            )

        with joined("far") as far:
            until(lambda: len(manager.get("nodes")["nodes"]) == 1, what="a node", deadline_s=60)
            job = manager.submit("python3", "-c", SCRIPT, str(said), str(go), gpus=1, grace_s=600)
            until(lambda: text_of(said), what="the job to begin", deadline_s=60)
            with joined("near"):
                until(lambda: len(manager.get("nodes")["nodes"]) == 2, what="the other node", deadline_s=60)

                os.kill(far.pid, signal.SIGSTOP)  # as if its cable were cut: neither side says or hears anything
                until(lambda: len(set(text_of(said).split())) == 2, what="its second start", deadline_s=120)
                guards = manager.job(job)["safeguards"]
                go.touch()
                until(lambda: manager.job(job)["state"] == "done", what="the job's end", deadline_s=60)
                os.kill(far.pid, signal.SIGCONT)

        who = said.read_text().split()
        assert who == sorted(who), "both wrote in turns"
        assert [(one["starts"], one["fence_s"]) for one in guards] == [([1], FENCE_S), ([2], FENCE_S)]
        assert manager.job(job)["starts"] == 2
        assert list(violations(manager.entries(), is_complete=True)) == []


@pytest.mark.long
def test_where_no_fence_is_set_show_says_so_before_and_while_both_starts_may_run(tmp_path: Path) -> None:
    """[M4] With the fence off the first start runs on: that must not come as a surprise."""
    with running_manager(tmp_path / "m", node_timeout_s=1) as manager, ExitStack() as stack:
        agents, go = {}, tmp_path / "go"
        for name in ("far", "near"):
            (tmp_path / name).mkdir()
            token = manager.node_token(name)
            config = write_config(tmp_path / name, manager.url, token=token, node=name, declared_gpus=1)
            agents[name] = stack.enter_context(agent(config))
        until(lambda: len(manager.get("nodes")["nodes"]) == 2, what="the nodes", deadline_s=60)
        job = manager.submit("sh", "-c", f"until test -e {go}; do sleep 0.05; done", gpus=1)
        until(lambda: manager.job(job)["state"] == "running", what="the job", deadline_s=60)
        (first,) = manager.job(job)["nodes"]
        before = shown(manager, job)

        os.kill(agents[first].pid, signal.SIGSTOP)
        until(lambda: manager.job(job)["starts"] == 2, what="its second start", deadline_s=120)
        during = shown(manager, job)
        go.touch()
        until(lambda: manager.job(job)["state"] == "done", what="the job's end", deadline_s=60)
        os.kill(agents[first].pid, signal.SIGCONT)

    assert f"  fence     off on {first}: while the node is cut off its processes run on" in before
    assert f"  memory    no limit on {first}" in before
    assert f"  fence     start 1 may still run on {first}, until {first} is back" in during


def shown(manager: Manager, job: str) -> str:
    command = [sys.executable, "-m", "farside", "show", job, "--manager", f"unix:{manager.folder}/manager.sock"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
