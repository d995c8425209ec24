"""The example as a newcomer runs it: two workers, one of them killed and both started again."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.aggregation.service import service, write_key
from tests.support.waiting import text_of, until
from tests.training.models import needs_torch

pytestmark = needs_torch
SCRIPT = Path(__file__).parents[2] / "examples" / "train_shared.py"
DEADLINE_S = 240.0


class Workers:
    """Both workers of one start."""

    def __init__(self, folder: Path, unix: str, *arguments: str) -> None:
        told = {
            "FARSIDE_AGGREGATION_SERVICE": unix,
            "FARSIDE_AGGREGATION_KEY_FILE": str(folder / "key"),
            "FARSIDE_AGGREGATION_JOB": folder.name,
            "WORLD_SIZE": "2",
        }
        self.logs = [folder / f"log.{rank}" for rank in (0, 1)]
        self.processes = [self._started(rank, log, told, arguments) for rank, log in enumerate(self.logs)]

    def _started(self, rank: int, log: Path, told: dict[str, str], arguments: tuple[str, ...]) -> Any:
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, SCRIPT, *arguments],
                env={**os.environ, **told, "RANK": str(rank)},
                stdout=file,
                stderr=file,
            )

    def ended(self) -> list[int]:
        """Their exit codes."""
        return [process.wait(timeout=DEADLINE_S) for process in self.processes]

    def kill(self) -> None:
        """Ends both at once."""
        for process in self.processes:
            process.kill()
            process.wait()


def sums(workers: Workers) -> set[str]:
    """What each says of its parameters in the end."""
    return {re.findall(r"finished with parameters that sum to (\S+)", text_of(log))[-1] for log in workers.logs}


def test_two_workers_train_to_the_same_parameters_and_so_they_do_when_they_are_started_again(tmp_path: Path) -> None:
    write_key(tmp_path)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
        write_key(folder)
    with service(tmp_path) as aggregator:
        undisturbed = Workers(whole, aggregator.unix, "--steps", "60")
        assert undisturbed.ended() == [0, 0], text_of(undisturbed.logs[0])

        first = Workers(parts, aggregator.unix, "--steps", "60", "--tell-every", "5", "--pace-s", "0.2")
        until(lambda: "step 20 " in text_of(first.logs[0]), what="20 steps", deadline_s=DEADLINE_S)
        first.kill()
        second = Workers(parts, aggregator.unix, "--steps", "60")
        assert second.ended() == [0, 0], text_of(second.logs[0])

    # A worker that has done step 20 may be ahead of the other by one.
    assert int(re.findall(r"begins at step (\d+)", text_of(second.logs[0]))[-1]) >= 19
    assert len(sums(undisturbed)) == 1
    assert sums(second) == sums(undisturbed)


def test_a_worker_outside_of_a_job_says_what_is_missing_in_one_line(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FARSIDE_")}

    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("train_shared.py: this process is in no Farside job with aggregation")
    assert done.stderr.count("\n") == 1
