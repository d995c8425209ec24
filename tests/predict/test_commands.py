"""`farside predict`, and `farside sim run` with what it made, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOG = "builtin:repeating"
CLUSTER = ("--gpus-per-node", "8", "--nodes", "16")


def farside(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farside", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    done = farside("predict", "fit", LOG, "--models", folder)
    assert done.returncode == 0, done.stderr
    assert "believed: model" in done.stdout
    return folder


@pytest.mark.long
def test_a_model_that_was_fitted_is_used_from_the_first_job(models: Path, tmp_path: Path) -> None:
    done = farside("sim", "run", LOG, "--policy", "qssf", *CLUSTER, "--set", "estimator=model", "--models", models,
                   "--to", "2024-01-05", "--json", tmp_path / "out.json")  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["estimation"]
    assert set(found["sources"]) == {"model"}


@pytest.mark.long
def test_a_model_that_was_cut_short_is_told_and_done_without(models: Path, tmp_path: Path) -> None:
    for path in models.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: 1000 if path.suffix == ".txt" else None])

    done = farside("sim", "run", LOG, "--policy", "qssf", *CLUSTER, "--set", "estimator=model", "--models", tmp_path,
                   "--to", "2024-01-05")  # fmt: skip

    assert done.returncode == 0
    assert "has 1000 bytes, not the" in done.stderr
    assert "went by gpus" in done.stderr


def test_a_model_does_not_take_the_place_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "qssf.json"
    log.write_text("[]")

    done = farside("predict", "fit", log, "--models", tmp_path)

    assert done.returncode != 0
    assert "is the file of the log as well" in done.stderr
    assert log.read_text() == "[]"


def test_train_to_splits_a_trace(tmp_path: Path) -> None:
    done = farside("sim", "run", LOG, "--policy", "qssf", *CLUSTER, "--set", "estimator=rolling", "--train-to",
                   "2024-01-14", "--json", tmp_path / "out.json")  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert 0 < found["jobs"] < 4000
    assert any("learned from:" in fact and "2024-01-01" in fact for fact in found["facts"])


@pytest.mark.long
def test_a_log_may_be_the_history_of_another_trace() -> None:
    done = farside("sim", "run", "builtin:philly-like", "--policy", "qssf", *CLUSTER, "--set", "estimator=model",
                   "--history", LOG)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "learned from: 4,000 jobs" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "fifo", "--train-to", "2024-01-14"), "none of these policies learns from a trace"),
        (("--policy", "qssf", "--history", LOG), "none of these policies learns from past jobs"),
        (("--policy", "qssf", "--models", "here"), "none of these policies learns from a trace"),
        (("--policy", "qssf", "--set", "estimator=model", "--train-to", "2099-01-01"), "no job is left"),
        (("--policy", "qssf", "--set", "estimator=model", "--train-to", "soon"), "--train-to: 'soon' is not a time"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: tuple[str, ...], message: str) -> None:
    done = farside("sim", "run", LOG, *CLUSTER, *options)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_too_short_a_log_makes_no_model(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("job_id,submit_s,gpus,duration_s\n1,0,1,5\n2,1,1,5\n")

    done = farside("predict", "fit", log, "--models", tmp_path / "models")

    assert done.returncode == 2
    assert "too few jobs for a model" in done.stderr
    assert not (tmp_path / "models").exists()


def test_rebalancing_says_who_could_have_lent_to_whom(tmp_path: Path) -> None:
    rows = [f"b{at},{at * 60},8,3600,busy" for at in range(40)] + [f"c{at},{at * 7200},8,60,calm" for at in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(["job_id,submit_s,gpus,duration_s,vc", *rows]) + "\n")
    (tmp_path / "nodes.csv").write_text("vc,node num\nbusy,1\ncalm,4\n")

    done = farside(
        "predict", "rebalance", tmp_path / "log.csv", "--vc-nodes", tmp_path / "nodes.csv", "--gpus-per-node", "8"
    )

    assert done.returncode == 0, done.stderr
    lent = [line for line in done.stdout.splitlines() if "calm" in line and "busy" in line]
    assert len(lent) == 1
