"""Nodes that nobody let in, against a real manager: they get no job, no environment and no donor's address."""

from collections.abc import Callable
from pathlib import Path

import pytest

from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.errors import FarsideError
from farside.scheduler.manager.auth.token_file import Role, add_token
from tests.agent.process import agent, status, until_connected, write_config
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

LIMIT_S = 120.0


def for_any_node(manager: Manager) -> str:
    """A token as the quick start of versions before made it."""
    token = add_token(manager.tokens, "any", Role.NODE)
    manager.tokens.write_text(manager.tokens.read_text().replace('name = "any"', 'name = ""'))
    return token


def of_another_node(manager: Manager) -> str:
    return manager.node_token("n7")


def revoked(manager: Manager) -> str:
    """[M9]"""
    manager.node_token("n0")
    before = manager.tokens.read_text()
    token = add_token(manager.tokens, "n1", Role.NODE)
    manager.tokens.write_text(before)
    return token


@pytest.mark.long
@pytest.mark.parametrize(
    ("token_of", "refusal"),
    [
        (for_any_node, "`farside token n1` makes"),
        (of_another_node, "may not speak for node n1"),
        (revoked, "this token is not known here"),
    ],
)
def test_a_node_that_nobody_let_in_gets_no_job_and_no_donors(
    token_of: Callable[[Manager], str], refusal: str, tmp_path: Path
) -> None:
    """[H3] A made-up agent joined by the any-node token, and got a job of another user with its environment."""
    with running_manager(tmp_path / "m") as manager:
        (tmp_path / "true").mkdir()
        (tmp_path / "false").mkdir()
        token = token_of(manager)
        with agent(write_config(tmp_path / "true", manager.url, token=manager.node_token("n0"), node="n0")):
            until_connected(tmp_path / "true")
            holder = manager.submit("sleep", "600", gpus=8)
            waiting = manager.submit("true", gpus=8)

            config = write_config(tmp_path / "false", manager.url, token=token, declared_gpus=16)
            with agent(config) as process:
                until(
                    lambda: refusal in status(tmp_path / "false").get("problem", ""), what=refusal, deadline_s=LIMIT_S
                )
                with (
                    pytest.raises(FarsideError, match=r"no more|may not ask|not known"),
                    ManagerClient(ManagerAddress(endpoint=f"http://127.0.0.1:{manager.port}", token=token)) as client,
                ):
                    client.get("donors", node="n1")
                assert process.poll() is None

            assert [node["name"] for node in manager.get("nodes")["nodes"]] == ["n0"]
            until(lambda: manager.job(holder)["state"] == "running", what="the job of the node that was let in")
            assert manager.job(waiting)["state"] == "waiting"
            manager.post("jobs", holder, "cancel")
