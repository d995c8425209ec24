"""Time that goes on whatever the machine's clock does, also where one process follows another."""

import time
from pathlib import Path

import pytest

from farside.scheduler.manager.wall_clock import FILE, WallClock

DAY_S = 86400.0


def set_clock(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + by_s)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_the_next_process_goes_on_by_the_first_ones_time(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = WallClock(tmp_path)
    set_clock(monkeypatch, jump_s)

    after = WallClock(tmp_path)

    assert after.now_s() - before.now_s() == pytest.approx(0, abs=1e-3)


def test_a_clock_that_was_set_right_by_little_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = WallClock(tmp_path)
    set_clock(monkeypatch, 5)

    after = WallClock(tmp_path)

    assert after.now_s() - before.now_s() == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"offset_s": 1}', '{"boot_id": "another", "offset_s": 1}'])
def test_what_another_boot_or_nobody_kept_is_not_gone_by(kept: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(kept)

    assert WallClock(tmp_path).now_s() == pytest.approx(time.time(), abs=1)


def test_a_clock_behind_the_log_goes_on_from_its_last_entry_and_does_not_stand(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    last_s = clock.now_s() + DAY_S

    clock.not_before(last_s)

    first_s = clock.now_s()
    assert first_s >= last_s
    assert clock.now_s() > first_s
    assert WallClock(tmp_path).now_s() > last_s  # and so does the next process


def test_where_nothing_can_be_kept_time_goes_on_all_the_same(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "missing")

    assert clock.now_s() == pytest.approx(time.time(), abs=1)
