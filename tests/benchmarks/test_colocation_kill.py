"""Kills under jobs that take turns: their table, and the models that jobs end with."""

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.colocation_kill import VICTIMS, Killed, Stage, _table

KILLS = 5


def test_a_bar_is_met_only_if_every_kill_met_it() -> None:
    found = {
        "worker": Killed(still_s=[0.1, 0.2], turn_s=[0.01, 0.49], back_s=[2.0, 3.0]),
        "executor": Killed(still_s=[0.1, 0.2], turn_s=[0.1, 2.1]),
        "agent": Killed(still_s=[0.1, 1.1], back_s=[1.0, 1.0]),
    }

    rows = _table(found)["rows"]

    assert rows[0] == [
        "worker", "2", "0.15 s (0.20 s)", "0.25 s (0.49 s)", "2.50 s (3.00 s)", "1 s, turns 0.5 s", "yes",
    ]  # fmt: skip
    assert [row[-1] for row in rows] == ["yes", "no", "no"]


@pytest.mark.long  # twenty kills; tests/train has one of a worker and of an executor, tests/live of a manager
def test_jobs_of_a_group_end_with_their_models_whichever_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")  # a job's variables are its own
    with tempfile.TemporaryDirectory(prefix="farside-kill-") as folder, ExitStack() as stack:
        stage = Stage(Path(folder), stack, random.Random(1))
        for victim in VICTIMS:
            stage.kill(victim, KILLS)

        assert stage.ended_equal()
        assert stage.faults(worker_kills=KILLS) == ()
