"""The examples as a newcomer runs them: submitted, preempted, resumed, finished, and nothing learnt is lost."""

import re
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from farside.sandbox.session import Session, open_sandbox
from tests.support import job_commands
from tests.support.waiting import text_of, until

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0  # four interpreters that load PyTorch at once, on a busy machine
farside = partial(job_commands.farside, cwd=ROOT, limit_s=DEADLINE_S)
until_job = partial(job_commands.until_job, deadline_s=DEADLINE_S, every_s=0.5)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Session]:
    with open_sandbox(("--cluster", "2x8", "--donors", "1", "--size", "64MiB")) as session:
        yield session


def preempt(session: Session, job: str) -> None:
    """Another job takes the GPUs for a moment, once the job has had more than its share."""
    other = farside(session, "submit", "--quiet", "--gpus", "1", "--output", "/dev/null", "--", "true")
    assert until_job(session, other, "done", "failed")["state"] == "done"
    until_job(session, job, "waiting", "placed", "starting", "running", "stopping", "done", "failed")


def losses(log: Path) -> dict[int, float]:
    """By step; a step that is told twice fails."""
    told = re.findall(r"^step (\d+) loss ([\d.]+)$", log.read_text(), re.MULTILINE)
    found = {int(step): float(loss) for step, loss in told}
    assert len(found) == len(told)
    return found


@needs_torch
def test_two_workers_train_on_after_a_preemption_as_if_there_had_been_none(sandbox: Session, tmp_path: Path) -> None:
    train = ("--gpus", "16", "--checkpoint", str(tmp_path / "run"), "--output", str(tmp_path / "log.%r"))
    steps = ("--", "python3", "examples/train.py", "--steps", "150")
    job = farside(sandbox, "submit", "--quiet", *train, *steps, "--pace-s", "0.2")
    until(lambda: "step 10 " in text_of(tmp_path / "log.0"), what="ten steps", deadline_s=DEADLINE_S, every_s=0.5)

    preempt(sandbox, job)
    end = until_job(sandbox, job, "done", "failed")
    alone = ("--gpus", "16", "--checkpoint", str(tmp_path / "alone"), "--output", str(tmp_path / "alone.%r"))
    undisturbed = farside(sandbox, "submit", "--quiet", *alone, *steps)
    until_job(sandbox, undisturbed, "done", "failed")

    text = (tmp_path / "log.0").read_text()
    stopped, began = re.findall(r"stops at step (\d+)", text), re.findall(r"begins at step (\d+) with 2 workers", text)
    assert (end["state"], end["starts"], end["preemptions"]) == ("done", 2, 1), text
    assert began == ["0", *stopped]
    assert end["pause_s"] > 0
    assert end["resume_s"] > 0
    found = losses(tmp_path / "log.0")
    assert found == losses(tmp_path / "alone.0")
    assert found[150] < found[10] / 2


@needs_torch
def test_four_workers_of_the_job_file_train_together(sandbox: Session, tmp_path: Path) -> None:
    where = ("--checkpoint", str(tmp_path / "run"), "--output", str(tmp_path / "log.%r"))

    job = farside(sandbox, "submit", "--quiet", *where, "examples/train.toml")
    end = until_job(sandbox, job, "done", "failed")

    assert end["state"] == "done", (tmp_path / "log.0").read_text()
    assert "with 4 workers" in (tmp_path / "log.0").read_text()
    found = losses(tmp_path / "log.0")
    assert found[500] < found[10] / 2
    assert (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.long
def test_the_shell_job_counts_on_after_a_preemption(sandbox: Session, tmp_path: Path) -> None:
    where = ("--gpus", "16", "--checkpoint", str(tmp_path / "run"), "--output", str(tmp_path / "log.%r"))
    job = farside(sandbox, "submit", "--quiet", *where, "--", "examples/count.sh", "250")
    until_job(sandbox, job, "running")

    preempt(sandbox, job)
    end = until_job(sandbox, job, "done", "failed")

    assert (end["state"], end["starts"], end["preemptions"]) == ("done", 2, 1)
    for rank in (0, 1):
        lines = (tmp_path / f"log.{rank}").read_text().splitlines()
        stopped = lines[1].removeprefix("stops at ")
        assert lines == ["begins at 0", f"stops at {stopped}", f"begins at {stopped}", "finished at 250"]
        assert 0 < int(stopped) < 250
