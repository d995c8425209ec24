"""The benchmark of answers while models are fitted: what it judges, and that its rules reach the estimator."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.load import BenchmarkError
from benchmarks.manager_fit import Fits, Turn, figures, judge, main
from benchmarks.manager_load import latency_of
from farside.errors import PeerError


def turn(p99_ms: float, *, fits: int, is_fitting: bool) -> Turn:
    return Turn(
        is_fitting=is_fitting, latency=latency_of([1.0] * 98 + [p99_ms] * 2), fits=fits, trained_on=1000 if fits else 0
    )  # fmt: skip


def test_judged_is_the_median_of_turns_so_that_one_out_of_line_says_nothing() -> None:
    plain = [turn(ms, fits=0, is_fitting=False) for ms in (10.0, 900.0, 10.0)]
    fitting = [turn(ms, fits=3, is_fitting=True) for ms in (10.5, 10.5, 900.0)]

    found = figures([*plain, *fitting])

    assert (found["p99_ms"], found["p99_fitting_ms"], found["fits"], found["trained_on"]) == (10.0, 10.5, 9, 1000)
    assert judge(found).is_met
    assert not judge(figures([*plain, *(turn(12.0, fits=1, is_fitting=True) for _ in range(3))])).is_met


@pytest.mark.parametrize("wrong", [turn(1.0, fits=0, is_fitting=True), turn(1.0, fits=1, is_fitting=False)])
def test_a_turn_without_the_fits_that_it_was_to_have_is_no_measurement(wrong: Turn) -> None:
    with pytest.raises(BenchmarkError, match="1 of 3 turns had fits where none was wanted, or none"):
        figures([turn(1.0, fits=0, is_fitting=False), turn(1.0, fits=1, is_fitting=True), wrong])


LEARNS = """
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.gpu_time_fit import learned_from
from tests.predict.log import past, repeating
times = LearnedTimes(history=past(repeating(400)))
print(times.service.learnable, times.lesson(0.0) is None)
wanted.touch()
lesson = times.lesson(0.0)
times.take(learned_from(lesson))
print(times.lesson(1.0) is not None)
"""


@pytest.mark.long
def test_a_manager_fits_to_all_of_the_history_while_a_file_exists_and_each_model_is_counted(tmp_path: Path) -> None:
    fits = Fits(tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", fits.first(300) + LEARNS], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip

    assert done.stdout.split() == ["300", "True", "True"]
    assert fits.trained_on() == [300]


def test_fits_have_ended_when_each_that_was_begun_has_its_model_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = Fits(tmp_path)
    fits.begin()
    (tmp_path / "begun").write_text("a fit\na fit\n")
    (tmp_path / "taken").write_text("300\n")
    monkeypatch.setattr("benchmarks.manager_fit.FIT_LIMIT_S", 0.0)
    with pytest.raises(PeerError, match="the last fit's model"):
        fits.end()
    (tmp_path / "taken").write_text("300\n301\n")

    fits.end()

    assert fits.trained_on() == [300, 301]


def test_a_history_too_small_for_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--history", "10"])
    assert "at least 1000" in capsys.readouterr().err
