"""The fence: tasks end a while after their node lost its manager, whoever of its agent is still there [M4]."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farside.agent.run.fence import FenceWatch, HeardRecord, now_s
from tests.agent.node import Node
from tests.agent.node import node as made_node
from tests.agent.process import agent, write_config
from tests.support.waiting import until

FENCE_S = 2.0
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.fixture
def fenced(tmp_path: Path) -> Iterator[tuple[Node, HeardRecord]]:
    record = HeardRecord(tmp_path / "heard", FENCE_S)
    with made_node(tmp_path / "n", fence=str(tmp_path / "heard")) as node:
        yield node, record
    record.close()


def until_running(node: Node, record: HeardRecord) -> None:
    """Until then the manager is heard: to start a process may take longer than these fences."""

    def look() -> bool:
        record.heard(now_s())
        return node.state().state == "running"

    until(look, what="the task")


def test_a_task_ends_by_itself_when_nobody_hears_of_the_manager(fenced: tuple[Node, HeardRecord]) -> None:
    node, record = fenced
    node.start(STUBBORN)
    until_running(node, record)
    record.heard(begun_s := now_s())

    # Nothing of an agent works here but this look: its supervisor ends the task.
    ended = node.ended()

    assert ended.state == "lost"
    assert f"has not heard of the manager for {FENCE_S:g} s" in ended.cause
    assert now_s() - begun_s > FENCE_S


def test_a_task_runs_on_while_the_manager_is_heard(fenced: tuple[Node, HeardRecord], tmp_path: Path) -> None:
    node, record = fenced
    node.start(f"until test -e {tmp_path}/go; do sleep 0.05; done")
    until_running(node, record)
    end_s = now_s() + 3 * FENCE_S

    def is_heard_for_long() -> bool:
        record.heard(now_s())
        return now_s() >= end_s

    until(is_heard_for_long, what="three times the fence")

    assert node.state().state == "running"
    (tmp_path / "go").touch()
    assert (node.ended().state, node.ended().exit_code) == ("exited", 0)


def test_a_task_that_would_begin_after_the_fence_does_not(fenced: tuple[Node, HeardRecord], tmp_path: Path) -> None:
    node, record = fenced
    record.heard(now_s() - 10)

    node.start(f"touch {tmp_path}/begun")

    assert node.ended().state == "lost"
    assert not (tmp_path / "begun").exists()


def test_an_agent_that_begins_anew_has_heard_nobody(tmp_path: Path) -> None:
    record = HeardRecord(tmp_path / "heard", FENCE_S)
    record.heard(now_s() - 10)
    record.close()
    watch = FenceWatch(str(tmp_path / "heard"))

    HeardRecord(tmp_path / "heard", FENCE_S).close()
    watch.look()
    assert watch.is_over


@pytest.mark.parametrize("setting_s", [0.0, 600.0])
def test_a_longer_fence_or_none_counts_only_once_the_manager_was_heard(tmp_path: Path, setting_s: float) -> None:
    """Until then the manager starts the node's jobs elsewhere by the fence that it knows."""
    record = HeardRecord(tmp_path / "heard", FENCE_S)
    record.heard(now_s() - 10)
    record.close()
    watch = FenceWatch(str(tmp_path / "heard"))

    HeardRecord(tmp_path / "heard", setting_s).close()
    record = HeardRecord(tmp_path / "heard", setting_s)
    watch.look()
    before = watch.is_over
    record.heard(now_s() - 10)
    watch.look()
    record.close()

    assert (before, watch.is_over) == (True, False)


def test_a_shorter_fence_counts_at_once(tmp_path: Path) -> None:
    record = HeardRecord(tmp_path / "heard", 600.0)
    record.heard(now_s() - 10)
    record.close()
    watch = FenceWatch(str(tmp_path / "heard"))

    HeardRecord(tmp_path / "heard", FENCE_S).close()
    watch.look()
    assert watch.is_over


def test_a_record_that_cannot_be_read_counts_as_it_was_before(tmp_path: Path) -> None:
    record = HeardRecord(tmp_path / "heard", FENCE_S)
    record.heard(now_s() - 10)
    record.close()
    watch = FenceWatch(str(tmp_path / "heard"))
    watch.look()

    for damage in (b"", b"x" * 24, b"x" * 7):
        (tmp_path / "heard").write_bytes(damage)
        watch.look()
        assert watch.is_over
    (tmp_path / "heard").unlink()
    watch.look()
    assert watch.is_over


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"fence_s": 0.5}, "at least 0.9"), ({"fence_s": 9, "accept_unproved_manager": True}, "does not know of it")],
)
def test_a_fence_that_could_not_hold_is_refused_in_one_line(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    with agent(write_config(tmp_path, "ws://127.0.0.1:1", **settings)) as process:
        _, said = process.communicate(timeout=60)

    assert process.returncode == 2
    assert why in said
    assert "Traceback" not in said


def test_the_record_is_made_by_the_agent(tmp_path: Path) -> None:
    with agent(write_config(tmp_path, "ws://127.0.0.1:1", fence_s=9)):
        until((tmp_path / "state/manager.heard").exists, what="the record", deadline_s=30)
