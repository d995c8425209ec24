"""How long iterations take, as a process of a job reports it to its agent."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.agent.messages import IterationTimes
from farside.agent.run.ready_lines import ReadyLines
from farside.training.iteration_report import READY, READY_PIPE, IterationReport

WORKER = """
import os
from farside.training.iteration_report import IterationReport
report = IterationReport()
for now_s in (1.0, 1.5, 2.0):
    report.over(now_s)
"""


class Pipe:
    """A task supervisor's pipe, and what a task's environment says of it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        found = os.fstat(self.writer)
        self.environment = {READY: f"/dev/fd/{self.writer}", READY_PIPE: f"{found.st_dev}:{found.st_ino}"}

    def heard(self) -> IterationTimes | None:
        lines = ReadyLines()
        lines.hear(os.read(self.reader, 1 << 16))
        return lines.iterations()

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    try:
        yield made
    finally:
        made.close()


def test_each_iteration_but_the_first_is_reported_as_the_agent_reads_it(pipe: Pipe) -> None:
    report = IterationReport(pipe.environment)
    for now_s in (10.0, 10.5, 12.5, 13.25):
        report.over(now_s)
    report.close()

    assert pipe.heard() == IterationTimes(count=3, median_s=0.75)


def test_a_worker_whose_launcher_has_closed_the_pipe_finds_it_at_the_launcher(pipe: Pipe) -> None:
    environment = {**os.environ, **pipe.environment}
    # As torchrun starts its workers: without the descriptors that it has inherited.
    subprocess.run([sys.executable, "-c", WORKER], env=environment, close_fds=True, check=True)

    assert pipe.heard() == IterationTimes(count=2, median_s=0.5)


def test_another_file_of_that_number_is_never_written_to(pipe: Pipe, tmp_path: Path) -> None:
    other = tmp_path / "results"
    with other.open("wb") as file:
        report = IterationReport({**pipe.environment, READY: f"/dev/fd/{file.fileno()}"})
        for now_s in (1.0, 2.0):
            report.over(now_s)

    assert other.read_bytes() == b""


def test_a_file_that_took_the_pipes_number_while_it_was_opened_is_never_written_to(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, opened = tmp_path / "results", os.open

    def late(path: str, flags: int) -> int:
        with other.open("wb") as file:
            os.dup2(file.fileno(), pipe.writer)
        return opened(path, flags)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", late)
        report = IterationReport(pipe.environment)
    for now_s in (1.0, 2.0):
        report.over(now_s)
    report.close()

    assert other.read_bytes() == b""
    assert len(os.listdir("/proc/self/fd")) == before  # none was left open


@pytest.mark.parametrize(
    "environment", [{}, {READY: "/dev/fd/1"}, {READY: "/etc/passwd", READY_PIPE: "1:2"}, {READY_PIPE: "1:2"}]
)
def test_outside_of_a_job_nothing_is_reported(environment: dict[str, str]) -> None:
    report = IterationReport(environment)
    for now_s in (1.0, 2.0):
        report.over(now_s)
    report.close()


def test_training_waits_for_nobody_who_does_not_read(pipe: Pipe) -> None:
    report = IterationReport(pipe.environment)
    for now_s in range(20_000):  # more than a pipe holds
        report.over(float(now_s))
    report.close()

    assert pipe.heard() is not None


def test_training_goes_on_when_the_reader_is_gone() -> None:
    made = Pipe()
    report = IterationReport(made.environment)
    made.close()

    for now_s in (1.0, 2.0):
        report.over(now_s)
    report.close()
