"""A node that joins by an invitation, with real processes: it is used once, and its own token outlives a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farside.agent.token import LASTING_FILE
from tests.agent.process import agent, kill, status, until_connected, write_config
from tests.live.manager import Manager, running_manager
from tests.live.test_metrics import scraped
from tests.support.ports import free_port
from tests.support.waiting import until

LIMIT_S = 60.0


def said(manager: Manager, *command: str) -> str:
    """What a command of an operator prints."""
    address = f"unix:{manager.folder}/manager.sock"
    done = subprocess.run(
        [sys.executable, "-m", "farside", *command, "--manager", address], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "is_killed",
    [
        pytest.param(False, id="settled"),
        pytest.param(True, id="killed before the manager answered", marks=pytest.mark.long),
    ],
)
def test_a_node_joins_by_an_invitation_and_comes_back_by_its_own_token(is_killed: bool, tmp_path: Path) -> None:
    """[H3] What the operator copied to the node is worth nothing afterwards."""
    with running_manager(tmp_path / "m") as manager:
        (tmp_path / "a").mkdir()
        invitation = said(manager, "node", "invite", "n1", "--gpus", "8")
        config = write_config(tmp_path / "a", manager.url, token=invitation)
        with agent(config) as process:
            until_connected(tmp_path / "a")
            kill(process)
        lasting = tmp_path / "a/state" / LASTING_FILE
        if is_killed:
            # As if the agent had ended between HELLO and WELCOME.
            unsettle(lasting)
        with agent(config):
            until_connected(tmp_path / "a")
        (tmp_path / "thief").mkdir()
        with agent(write_config(tmp_path / "thief", manager.url, token=invitation)):
            refusal = "an invitation counts once"
            until(lambda: refusal in status(tmp_path / "thief").get("problem", ""), what=refusal, deadline_s=LIMIT_S)
        rows = json.loads(said(manager, "node", "list", "--json"))

    assert [(row["name"], row["state"], row["gpus"], row["excess"]) for row in rows] == [("n1", "joined", 8, "")]
    assert lasting.stat().st_mode & 0o077 == 0


def unsettle(lasting: Path) -> None:
    from farside.agent.run.record_file import read_record, write_record

    record = read_record(lasting, dict)
    assert record is not None
    assert record["is_settled"] is True
    write_record(lasting, {**record, "is_settled": False})


@pytest.mark.long
def test_a_revoked_node_stays_out_until_it_is_invited_again(tmp_path: Path) -> None:
    """[M9]"""
    with running_manager(tmp_path / "m") as manager:
        config = write_config(tmp_path, manager.url, token=said(manager, "node", "invite", "n1"))
        with agent(config):
            until_connected(tmp_path)
            assert said(manager, "node", "revoke", "n1") == "n1: revoked"
            until(lambda: "not known" in status(tmp_path)["problem"], what="it is out", deadline_s=LIMIT_S)
            (tmp_path / "agent.token").write_text(said(manager, "node", "invite", "n1") + "\n")
            until_connected(tmp_path)
        listed = said(manager, "node", "list")

    assert "joined" in listed


@pytest.mark.long
def test_a_node_that_comes_back_with_more_than_before_is_told_of_until_an_operator_accepts_it(tmp_path: Path) -> None:
    """[H3] Real processes: the log, the listings and the metric of FarsideNodeGrew say it; jobs go on meanwhile."""
    port = free_port()
    with running_manager(tmp_path / "m", metrics_listen=f"127.0.0.1:{port}") as manager:

        def until_grown(nodes: int) -> None:
            what = f"{nodes} nodes in the metric"
            until(lambda: scraped(port).get("farside_manager_nodes_grown") == nodes, what=what, deadline_s=LIMIT_S)

        invitation = said(manager, "node", "invite", "n1", "--gpus", "2")
        with agent(write_config(tmp_path, manager.url, token=invitation, declared_gpus=2)) as process:
            until_connected(tmp_path)
            until_grown(0)
            kill(process)
        more = {"declared_gpus": 16, "memory_total_bytes": 1 << 50}
        with agent(write_config(tmp_path, manager.url, token=invitation, **more)):
            until_connected(tmp_path)
            until(lambda: "more than anybody vouched for" in manager.log(), what="the line", deadline_s=LIMIT_S)
            (row,) = json.loads(said(manager, "node", "list", "--json"))
            listed = said(manager, "nodes")
            until_grown(1)
            job = manager.submit("true", gpus=1)
            until(lambda: manager.job(job)["state"] == "done", what="a job meanwhile", deadline_s=LIMIT_S)
            said(manager, "node", "accept", "n1")
            until_grown(0)
            accepted = manager.get("nodes", "n1")["excess"]

    (line,) = [line for line in manager.log().splitlines() if "more than anybody vouched for" in line]
    assert row["excess"].startswith("16 GPUs instead of 2, 1024 TiB of memory instead of ")
    assert "node=n1" in line
    assert f'has="{row["excess"]}"' in line
    assert "farside node accept n1" in line
    assert "farside node revoke n1" in line
    assert "says that it has 16 GPUs instead of 2" in " ".join(listed.split())
    assert accepted == ""
