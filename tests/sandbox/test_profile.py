"""A job's profile from its messages to what its user reads: through agent, manager and command line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.agent.profile.ring_file import LIBRARY
from farside.sandbox.session import Session, open_sandbox
from tests.profile.training import TENSORS
from tests.sandbox.test_examples import farside, until_job

PROGRAM = Path(__file__).parents[1] / "profile/training.py"
JOB = """
profile = true

[[role]]
name = "worker"
command = ["sh", "-c", 'exec "{python}" "{program}" worker ${{FARSIDE_HOSTS_PS##*:}} 12']
[[role]]
name = "ps"
gpus = 0
command = ["sh", "-c", 'exec "{python}" "{program}" server ${{FARSIDE_HOSTS_PS##*:}} 12']
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Session]:
    if not LIBRARY.exists():
        pytest.skip("the profiler's library was not built")
    with open_sandbox(("--cluster", "1x2", "--donors", "1", "--size", "64MiB")) as session:
        yield session


@pytest.mark.long
def test_show_tells_model_and_skew_of_a_worker_and_its_server(sandbox: Session, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(python=sys.executable, program=PROGRAM))
    output = ("--output", str(tmp_path / "log.%r"))

    job = farside(sandbox, "submit", "--quiet", *output, str(tmp_path / "job.toml"))
    end = until_job(sandbox, job, "done", "failed")

    assert end["state"] == "done", [path.read_text() for path in tmp_path.glob("log.*")]
    assert (end["profile"]["model_bytes"], end["profile"]["problem"]) == (sum(TENSORS), "")
    assert end["profile"]["skew"] == pytest.approx(600_000 / sum(TENSORS))
    assert "largest tensor 90.0% of it" in farside(sandbox, "show", job)
    told = json.loads(farside(sandbox, "show", "--json", job))
    assert told["profile"]["processes"] == 2
