"""Shared aggregation under the manager as real processes: jobs share, move and outlive kills, bit for bit."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farside.agent.aggregator.engine_job import engine_job
from farside.agent.aggregator.layout import make_layout
from farside.kmod_shim.engine.aggregation import Job
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.store.event_store import EventStore
from tests.live import aggregated_member
from tests.support.job_commands import asked, farside, until_job
from tests.support.sandbox import kill_agent
from tests.support.waiting import text_of, until

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
MEMBERS = 2


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Session]:
    options = ("--cluster", "3x2", "--aggregators", "3", "--donors", "1", "--size", "64MiB")
    with open_sandbox(options) as session:
        yield session


class Training:
    """A job of two members, and what it leaves in its folder."""

    def __init__(self, session: Session, folder: Path, *, pace_s: float = 0.05, retries: int = 0) -> None:
        folder.mkdir()
        self.session, self.folder = session, folder
        file = folder / "job.json"
        text = [
            f"command = {json.dumps([sys.executable, '-m', 'tests.live.aggregated_member', str(folder), str(pace_s)])}",
            f"gpus = {MEMBERS}", 'ranks = "gpu"', 'aggregation = "shared"', f"retries = {retries}",
            f"cwd = {json.dumps(str(ROOT))}", f"output = {json.dumps(f'{folder}/out.%r')}",
        ]  # fmt: skip
        file = folder / "job.toml"
        file.write_text("\n".join(text) + "\n")
        self.job = farside(session, "submit", "--quiet", str(file)).strip()

    @property
    def iteration(self) -> int:
        """The last that all members have done."""
        told = [text_of(self.folder / f"at.{rank}") for rank in range(MEMBERS)]
        return min(int(one or 0) for one in told)

    def until_trained(self, more: int) -> None:
        """Waits for so many iterations from now on."""
        goal = self.iteration + more
        until(lambda: self.iteration >= goal, what=f"iteration {goal} of job {self.job}", deadline_s=DEADLINE_S)

    def row(self) -> dict[str, Any]:
        """What the manager says of it."""
        told = asked(self.session, "aggregation")
        return next((row for row in told["jobs"] if row["job"] == self.job), {})

    def until_at(self, is_so: Any, what: str) -> dict[str, Any]:
        """Waits until it is placed, all moves done, and as asked; its row."""

        def there() -> dict[str, Any]:
            row = self.row()
            return row if row.get("state") == "placed" and is_so(row) else {}

        # The manager answers each look, and that costs it more than the job does.
        return until(there, what=f"job {self.job} {what}", deadline_s=DEADLINE_S, every_s=0.2)

    def end(self) -> None:
        """Lets it come to its end, which is that of one process to the bit."""
        (self.folder / "end.new").write_text(str(self.iteration + 40))
        os.replace(self.folder / "end.new", self.folder / "end")
        until_job(self.session, self.job, "done")
        done = {(self.folder / f"done.{rank}").read_text() for rank in range(MEMBERS)}
        (line,) = done
        iterations, digest = line.split()
        assert digest == aggregated_member.expected(_job(), int(iterations))


def _job() -> Job:
    return engine_job(make_layout(aggregated_member.TENSORS), rule="sgd", members=MEMBERS)


def entries(session: Session) -> list[Any]:
    store = EventStore(f"sqlite:///{session.state}/manager/store.db")
    try:
        return list(store.read_all())
    finally:
        store.close()


def aggregator_on(node: str) -> str:
    return f"a{node.removeprefix('n')}"


@pytest.mark.long
def test_jobs_share_an_aggregator_whose_node_was_left_for_later_once_that_joins(tmp_path: Path) -> None:
    options = ("--cluster", "2x2", "--aggregators", "2", "--later", "1", "--donors", "1", "--size", "64MiB")
    with open_sandbox(options) as session:
        control.start_agent(session.state, "n2")
        farside(session, "drain", "n1", "--reason", "new disks")

        training = Training(session, tmp_path / "one")

        assert training.until_at(lambda row: len(row["nodes"]) == 1, "to be placed")["nodes"] == ["n2"]
        training.end()


@pytest.mark.long
def test_two_jobs_share_an_aggregator_and_go_on_through_a_drain_and_every_kill(
    sandbox: Session, tmp_path: Path
) -> None:
    first, second = Training(sandbox, tmp_path / "first", retries=1), Training(sandbox, tmp_path / "second")
    (node,) = first.until_at(lambda row: len(row["nodes"]) == 1, "to be placed")["nodes"]
    second.until_at(lambda row: row["nodes"] == [node], "to share the first one's Aggregator")

    farside(sandbox, "drain", node, "--reason", "new disks")
    for one in (first, second):
        moved = one.until_at(lambda row: node not in row["nodes"], "to leave the node that drains")
        one.until_trained(20)
    assert moved["is_loss_accepted"] is False
    assert 0 < moved["chunk_s"] * moved["chunks"] + moved["byte_s"] * MEMBERS * moved["size_bytes"] < 1
    assert "processor time of aggregation: " in farside(sandbox, "aggregation", second.job)

    (node,) = first.row()["nodes"]
    control.kill_aggregator(sandbox.state, aggregator_on(node))
    for one in (first, second):
        one.until_trained(20)

    control.kill_manager(sandbox.state)
    for one in (first, second):
        one.until_trained(20)
    control.start_manager(sandbox.state)

    kill_agent(sandbox.state, "n1")
    for one in (first, second):
        one.until_trained(20)
    control.start_agent(sandbox.state, "n1")

    # A killed member ends its start: all ranks go on from the Aggregators, and the other job does not notice.
    before, others = first.iteration, second.iteration
    (first.folder / "die.1").touch()
    until(
        lambda: text_of(first.folder / "out.0").count("begins after") == 2, what="the next start", deadline_s=DEADLINE_S
    )
    first.until_trained(20)
    second.until_trained(20)
    assert int(text_of(first.folder / "out.0").splitlines()[-1].rsplit(" ", 1)[1]) >= before
    assert second.iteration > others
    second.until_at(lambda row: True, "in its place")
    assert text_of(second.folder / "out.0").count("begins after") == 1

    for one in (first, second):
        one.end()
    assert list(violations(entries(sandbox))) == []
