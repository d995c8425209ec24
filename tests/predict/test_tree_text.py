"""Texts of trees: whole ones are LightGBM's, broken ones never reach it."""

import re
from collections.abc import Callable

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.predict.tree_text import booster_of, checked
from farside.scheduler.table import Floats

CHANCE = np.random.default_rng(1)
ROWS = np.column_stack([CHANCE.integers(0, 9, 400), CHANCE.random((400, 2))]).astype(float)
TREES = lightgbm.train(
    {"verbosity": -1, "num_leaves": 6, "num_threads": 1, "min_data_in_leaf": 5},
    lightgbm.Dataset(ROWS, ROWS[:, 0] % 3 + ROWS[:, 1], feature_name=["a", "b", "c"], categorical_feature=["a"]),
    3,
)
TEXT = TREES.model_to_string()


def told(trees: lightgbm.Booster) -> Floats:
    """What they say of the rows."""
    return np.asarray(trees.predict(ROWS), dtype=float)


def test_a_whole_text_gives_the_same_trees() -> None:
    assert np.array_equal(told(TREES), told(booster_of(TEXT, 3)))


def test_what_stands_behind_the_trees_is_not_handed_on() -> None:
    assert checked(TEXT, 3).endswith("end of trees\n")


def test_what_was_handed_on_can_be_read_again() -> None:
    assert np.array_equal(told(TREES), told(booster_of(booster_of(TEXT, 3).model_to_string(), 3)))


def test_trees_that_never_split_are_whole() -> None:
    flat = lightgbm.train({"verbosity": -1}, lightgbm.Dataset(ROWS, np.full(400, 2.0)), 2)

    assert told(booster_of(flat.model_to_string(), 3))[0] == pytest.approx(2)


def test_a_split_that_parts_missing_values_from_all_others_is_whole() -> None:
    """LightGBM writes its threshold as infinite, and a manager's fit failed by that."""
    rows = ROWS.copy()
    rows[:, 1] -= 0.5  # of both signs: otherwise a threshold at 0 parts them
    rows[::2, 1] = np.nan
    names = ["a", "b", "c"]
    trees = lightgbm.train(
        {"verbosity": -1, "num_leaves": 6, "num_threads": 1, "min_data_in_leaf": 5},
        lightgbm.Dataset(rows, np.isnan(rows[:, 1]) + 0.1 * rows[:, 2], feature_name=names), 3,
    )  # fmt: skip
    text = trees.model_to_string()
    assert "threshold=inf " in text

    assert np.array_equal(np.asarray(trees.predict(rows)), np.asarray(booster_of(text, 3).predict(rows)))


def first(name: str, to: Callable[[list[str]], str]) -> str:
    """The text with another line in its first tree, at the size that it has then."""
    line = re.search(rf"^{name}=(.*)$", TEXT, re.MULTILINE)
    assert line is not None
    words = to(line[1].split(" "))
    changed = f"{TEXT[: line.start()]}{name}={words}{TEXT[line.end() :]}"
    sizes = re.search(r"^tree_sizes=(\d+)", changed, re.MULTILINE)
    assert sizes is not None
    grown = int(sizes[1]) + len(words) - len(line[1])
    return f"{changed[: sizes.start(1)]}{grown}{changed[sizes.end(1) :]}"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (first("left_child", lambda words: " ".join(["0", *words[1:]])), "has a child 0"),
        (first("left_child", lambda words: " ".join(["99", *words[1:]])), "has a child 99"),
        (first("right_child", lambda words: " ".join([*words[:-1], "-99"])), "has a child -99"),
        (first("left_child", lambda words: " ".join(words[:-1])), "left_child is not 5 whole numbers"),
        (first("num_leaves", lambda words: "2147483647"), "is not 2147483646 finite numbers"),
        (first("num_leaves", lambda words: "-1"), "of another kind"),
        (first("split_feature", lambda words: " ".join(["3", *words[1:]])), "a feature that there is not"),
        (first("leaf_value", lambda words: " ".join(["nan", *words[1:]])), "leaf_value is not 6 finite numbers"),
        (first("threshold", lambda words: " ".join([*words[:-1], "nan"])), "threshold is not 5 finite numbers"),
        (first("threshold", lambda words: " ".join([*words[:-1], "inf"])), "an infinite threshold, and no missing"),
        (first("decision_type", lambda words: " ".join(["99", *words[1:]])), "decides in a way"),
        (first("cat_boundaries", lambda words: " ".join([*words[:-1], "1000000000"])), "cat_threshold is not"),
        (first("is_linear", lambda words: "1"), "is linear"),
        (TEXT.replace("max_feature_idx=2", "max_feature_idx=7"), "of other features"),
        (TEXT.replace("tree_sizes=", "tree_sizes=9"), "tree 1 is not where|tree 0|do not end where|Tree=1"),
        (TEXT.replace("num_class=1", "num_class=5"), "num_class is 5"),
        (TEXT.replace("objective=regression", "objective=custom"), "objective is"),
        (TEXT[: len(TEXT) // 4], "no text of LightGBM"),
        ("", "no text of LightGBM"),
    ],
)  # fmt: skip
def test_a_broken_tree_is_refused_in_one_line(broken: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        checked(broken, 3)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(TEXT) - 1), st.sampled_from("0123456789-. =\n"))
def test_a_byte_that_was_changed_is_refused_or_does_no_harm(at: int, byte: str) -> None:
    changed = TEXT[:at] + byte + TEXT[at + 1 :]

    try:
        found = booster_of(changed, 3)
    except ConfigError:
        return
    assert np.isfinite(told(found)).all()
