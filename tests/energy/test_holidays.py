"""Public holidays of a file, in forecasts live and in replays."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from farside.config import ManagerConfig, load_config
from farside.errors import ConfigError
from farside.scheduler.energy.catalog import make_online
from farside.scheduler.energy.forecast_features import causal_features, causal_row
from farside.scheduler.energy.forecast_lesson import Learned, Lesson
from farside.scheduler.energy.holidays import holiday, read_holidays
from farside.scheduler.energy.learning_policy import LearningPolicy, recall
from farside.scheduler.power.rules import online_policy
from tests.support.busy_nodes import wandering

FORECAST = "forecast=true; forecast_s=2h"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "holidays"
    path.write_bytes(text.encode("latin-1"))
    return path


def test_dates_are_days_since_1970_and_remarks_are_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, "# days off\n2024-12-25  # a Wednesday\n\n1970-01-02\r\n")

    assert read_holidays(path) == {1, (date(2024, 12, 25) - date(1970, 1, 1)).days}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2024-12-25\n25.12.2024\n", "holidays, line 2: '25.12.2024' is not a date; write it as 2024-12-25"),
        ("2024-02-30\n", "holidays, line 1: '2024-02-30' is not a date"),
        ("# none yet\n", "holidays: has no date"),
        ("\xff\xfe", "holidays: can't be read: it is not UTF-8"),
        ("2024-12-25\n" * 100_000, "holidays: is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_holidays(written(tmp_path, text))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: can't be read: No such file or directory; a file with a date a line"):
        read_holidays(tmp_path / "none")


def test_the_newest_interval_of_a_holiday_has_the_features_of_one() -> None:
    series = wandering(2)
    days_off = frozenset({int(series.end_s - series.step_s) // 86400})

    assert np.allclose(causal_row(series, days_off), causal_features(series, days_off)[-1], equal_nan=True)
    assert not np.allclose(causal_row(series), causal_row(series, days_off), equal_nan=True)


def test_what_is_learned_live_knows_the_holidays_of_the_settings(tmp_path: Path) -> None:
    path = written(tmp_path, "1970-01-06\n")
    config = load_config(
        ManagerConfig, (), {"power": "ces", "power_settings": FORECAST, "holidays_file": str(path)}
    )  # fmt: skip
    make_policy = online_policy(config)
    assert make_policy is not None
    policy = make_policy(100)
    assert isinstance(policy, LearningPolicy)
    lessons: list[Lesson] = []

    def fit(lesson: Lesson) -> Learned | str:
        lessons.append(lesson)
        return "not today"

    recall(policy, wandering(5).active.tolist(), 100.0, fit)

    assert [lesson.holidays for lesson in lessons] == [{holiday("1970-01-06", of="here")}]


@pytest.mark.parametrize(
    ("power", "settings", "hint"),
    [("rule", "", "leave it out"), ("ces", "", "set forecast=true in power_settings, or leave it out")],
)
def test_holidays_for_a_policy_without_a_forecast_are_refused(
    tmp_path: Path, power: str, settings: str, hint: str
) -> None:
    path = written(tmp_path, "2024-12-25\n")
    config = load_config(
        ManagerConfig, (), {"power": power, "power_settings": settings, "holidays_file": str(path)}
    )  # fmt: skip

    with pytest.raises(ConfigError, match=f"holidays_file: is for forecasts, and {power} makes none; {hint}"):
        online_policy(config)


def test_holidays_where_no_node_sleeps_are_refused(tmp_path: Path) -> None:
    config = load_config(ManagerConfig, (), {"holidays_file": str(written(tmp_path, "2024-12-25\n"))})

    with pytest.raises(ConfigError, match="holidays_file: is for forecasts, and power = none makes none; leave it out"):
        online_policy(config)


@pytest.mark.long
def test_holidays_change_what_is_forecast() -> None:
    series = wandering(12)
    learned = []
    for holidays in (frozenset[int](), frozenset({6, 7, 8, 13, 14})):
        policy = make_online("ces", {"forecast": "true", "forecast_s": "2h"}, holidays=holidays)(100)
        assert isinstance(policy, LearningPolicy)
        policy.begin(series.start_s)
        recall(policy, series.active.tolist(), 100.0)
        learned.append(policy.first_lesson())

    one, other = (causal_features(lesson.series, lesson.holidays) for lesson in learned)
    assert not np.array_equal(one, other, equal_nan=True)
