"""The benchmark of recalls: which recalls it makes, and what it judges."""

from collections import Counter

import pytest

from benchmarks.recall_time import MIB, SIZES_MIB, Recalled, figures, judge, main, sizes, table_of


def recall(start_s: float, predicted_s: float | None, *, mib: int = 48) -> Recalled:
    return Recalled(
        node="n1", asked_bytes=mib * MIB, recalled_bytes=mib * MIB, predicted_s=predicted_s, samples=1, back_s=start_s,
        start_s=start_s,
    )  # fmt: skip


def test_every_size_comes_as_often_and_the_same_seed_has_the_same_order() -> None:
    drawn = list(sizes(20, 1))

    assert drawn == list(sizes(20, 1))
    assert Counter(drawn) == dict.fromkeys((mib * MIB for mib in SIZES_MIB), 5)


def test_a_recall_without_a_prediction_is_counted_and_not_judged() -> None:
    found = figures([recall(9.0, None), recall(1.0, 1.0), recall(1.3, 1.0)])

    assert (found["recalls"], found["predicted"], found["within"]) == (3, 2, 1)
    assert (found["within_share"], found["worst_ratio"]) == (0.5, 1.3)


def test_all_jobs_have_to_start_within_the_bar_and_long_predictions_do_not_pass() -> None:
    assert [bar.is_met for bar in judge([recall(1.2, 1.0), recall(0.9, 1.0)])] == [True, True]
    assert [bar.is_met for bar in judge([recall(1.21, 1.0), recall(0.9, 1.0)])] == [False, True]
    assert [bar.is_met for bar in judge([recall(1.0, 60.0), recall(2.0, 60.0)])] == [True, False]


def test_the_table_has_a_row_for_each_size() -> None:
    rows = table_of([recall(1.0, None), recall(1.0, 2.0), recall(4.0, 2.0, mib=96)])["rows"]

    assert rows == [
        ["48 MiB", "1", "2.00 s", "1.00 s", "1 of 1", "0.50", "0.50"],
        ["96 MiB", "1", "2.00 s", "4.00 s", "0 of 1", "2.00", "2.00"],
    ]


def test_a_single_recall_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--recalls", "1"])
    assert "at least 2" in capsys.readouterr().err
