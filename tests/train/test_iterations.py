"""Jobs that are started again with another number of iterations: the bits of a job that made them all at once."""

from pathlib import Path
from typing import Any

import pytest

from farside.errors import ConfigError
from farside.training.app.catalog import PROGRAMS
from farside.training.app.dataset import load
from farside.training.app.program import AppName, Options, Outcome, nobody_watches
from farside.training.loop.job import CHECKPOINT_DIR, CHECKPOINT_S
from tests.train.programs import ended, job_of, train, walk

SMALL: dict[str, Any] = {"data": "synthetic", "rows": 60, "columns": 8, "classes": 3, "components": 2, "blocks": 3}
REFUSED = (
    "iterations: checkpoint i-5 is from the middle of a job of more iterations; "
    "ask for 6 or more, or name another checkpoint folder"
)
NAMES: tuple[AppName, ...] = ("nmf", "mlr", "lasso")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs of this process have a checkpoint of each iteration."""
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / "kept"))
    monkeypatch.setenv(CHECKPOINT_S, "0")
    return tmp_path / "kept"


def trained(app: AppName, iterations: int, tolerance: float = 0.0) -> Outcome:
    wanted = Options(app=app, iterations=iterations, tolerance=tolerance, **SMALL)
    return PROGRAMS[app](load(wanted), wanted, nobody_watches)


def bits(outcome: Outcome) -> tuple[Any, ...]:
    model = {name: array.tobytes() for name, array in outcome.model.items()}
    return outcome.iterations, outcome.objective, outcome.figures, model


def at_once(monkeypatch: pytest.MonkeyPatch, app: AppName, iterations: int, tolerance: float = 0.0) -> tuple[Any, ...]:
    """The bits of a job that had no checkpoints."""
    with monkeypatch.context() as without:
        without.delenv(CHECKPOINT_DIR)
        return bits(trained(app, iterations, tolerance))


@pytest.mark.parametrize("app", NAMES)
def test_more_iterations_later_end_with_the_bits_of_all_at_once(
    app: AppName, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for iterations in (1, 6, 6, 20):
        assert bits(trained(app, iterations)) == at_once(monkeypatch, app, iterations), iterations


@pytest.mark.parametrize("app", NAMES)
def test_a_job_that_its_tolerance_has_ended_ends_there_again_and_goes_on_without_it(
    app: AppName, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bits(trained(app, 400, 1e-3))
    assert 6 < first[0] < 400
    again = bits(trained(app, 500, 1e-3))
    on = bits(trained(app, first[0] + 3))

    assert first == again == at_once(monkeypatch, app, 400, 1e-3)
    assert on == at_once(monkeypatch, app, first[0] + 3)
    with pytest.raises(ConfigError, match="iterations: is 5, and checkpoint i-"):
        trained(app, 5, 1e-3)


@pytest.mark.long
def test_fewer_iterations_than_are_made_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    words = ("lasso", "--workers", 2, "--checkpoint-dir", tmp_path, "--iterations")
    assert ended(train(*words, 9))[0] == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))

    code, out, errors = ended(train(*words, 5))

    assert (code, out) == (2, "")
    hint = "ask for 9 or more, or name another checkpoint folder"
    assert errors == f"farside: iterations: is 5, and checkpoint i-9 has 9; {hint}\n"
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_program_of_a_user_s_own_is_told_so_too(tmp_path: Path) -> None:
    walk(job_of(folder=tmp_path, iterations=6))

    with pytest.raises(ConfigError, match="iterations: is 5, and checkpoint i-6 has 6"):
        walk(job_of(folder=tmp_path, iterations=5))


@pytest.mark.long
@pytest.mark.parametrize(
    ("app", "option", "theirs", "ours"),
    [("mlr", "penalty", 0.1, 0.10000004), ("lasso", "penalty", 0.1, 0.10000004), ("lda", "alpha", 0.1, 0.10000004),
     ("lda", "eta", 0.01, 0.010000004), ("lasso", "penalty", 1234567.0, 1234568.0)],
)  # fmt: skip
def test_a_checkpoint_of_an_option_that_differs_in_its_seventh_digit_is_refused(
    app: AppName, option: str, theirs: float, ours: float, kept: Path
) -> None:
    if app == "lda":
        pytest.importorskip("numba")
    first, other = (Options(**{**SMALL, "app": app, "iterations": 2, option: value}) for value in (theirs, ours))
    PROGRAMS[app](load(first), first, nobody_watches)

    with pytest.raises(ConfigError, match=f"a checkpoint of another job: {app} .*this one is {app} "):
        PROGRAMS[app](load(other), other, nobody_watches)
    PROGRAMS[app](load(first), first, nobody_watches)


@pytest.mark.parametrize("app", ["mlr", "lasso"])
def test_as_many_iterations_as_a_longer_job_had_made_by_then_are_refused_and_one_more_is_taken(
    app: AppName, kept: Path
) -> None:
    """Its last step was none then, so what it takes for the objective of the result is not there."""
    trained(app, 6)
    (kept / "i-6" / "complete").unlink()

    with pytest.raises(ConfigError, match=REFUSED):
        trained(app, 5)
    assert trained(app, 6).iterations == 6
