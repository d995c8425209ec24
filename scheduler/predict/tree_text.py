"""Check of LightGBM's text of trees before LightGBM reads it. PURE.

LightGBM believes what it reads: a count that is too large or a child that is its own ancestor ends the process, or
never returns. So a text is taken apart here. Of each tree every array must be as long as the tree says, every number
finite, every feature one of the model's, and every node and leaf the child of exactly one node of a lower number: then
there is no cycle, and nothing is out of reach. One number may be infinite: the threshold of a split that parts missing
values from all others. What stands behind the trees (parameters of the fit, importances) is not handed on.

Rejected: reading it in a child process with a deadline. That would keep the process, but not say what is wrong, and
broken trees that do answer would be believed.
"""

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from farside.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    import lightgbm

END = "end of trees\n"
_INTEGER = re.compile(r"-?[0-9]{1,10}")
# With the value that the trees of this project have; None: looked at below.
_HEADER: Mapping[str, str | None] = {
    "version": "v4", "num_class": "1", "num_tree_per_iteration": "1", "label_index": "0", "max_feature_idx": None,
    "objective": None, "feature_names": None, "feature_infos": None, "tree_sizes": None,
}  # fmt: skip
_OBJECTIVES = ("regression", "quantile")
_CATEGORICAL = 1  # this bit of a node's decision type
_MISSING, _MISSING_IS_NAN = 12, 8  # these bits of it, and what they are where a missing value is NaN
_SPLITS = ("split_gain", "threshold", "internal_value", "internal_weight", "internal_count")
_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")


def booster_of(text: str, features: int) -> "lightgbm.Booster":
    """LightGBM's trees of a text that has been looked through.

    Args:
        text: As `lightgbm.Booster.model_to_string` gives it.
        features: How many the trees must have.

    Raises:
        ConfigError: It is no such text, its trees are broken, or it is of other features.
        Unavailable: LightGBM is not installed.
    """
    try:
        import lightgbm  # takes a second to import, and only models from files need it here
    except ImportError as error:
        raise Unavailable("a model of run times needs LightGBM", hint="pip install lightgbm") from error
    try:
        return lightgbm.Booster(model_str=checked(text, features))
    except lightgbm.basic.LightGBMError as error:
        raise ConfigError(f"the model is no text of LightGBM: {error}", hint="fit it again") from error


def checked(text: str, features: int) -> str:
    """The part of a text that holds trees, when all of them are whole.

    Raises:
        ConfigError: It is no such text, its trees are broken, or it is of other features.
    """
    try:
        return _checked(text, features)
    except ValueError as error:
        raise ConfigError(f"the model is no text of LightGBM: {error}", hint="fit it again") from error


def _checked(text: str, features: int) -> str:
    # Sizes of trees are in bytes and the text is cut by characters: in ASCII these are the same.
    if not text.isascii():
        raise ValueError("it has letters that none has")
    head, gap, rest = text.partition("\n\n")
    kind, _, lines = head.partition("\n")
    if kind != "tree" or not gap:
        raise ValueError("it does not begin with 'tree'")
    header = _pairs(lines, "the header")
    sizes = _check_header(header, features)
    at = 0
    for number, size in enumerate(sizes):
        block = rest[at : at + size]
        if size < 1 or not block.startswith(f"Tree={number}\n"):
            raise ValueError(f"tree {number} is not where tree_sizes says")
        _check_tree(_pairs(block.strip("\n").partition("\n")[2], f"tree {number}"), f"tree {number}", features)
        at += size
    if not rest.startswith(END, at):
        raise ValueError("its trees do not end where tree_sizes says")
    return f"{head}\n\n{rest[: at + len(END)]}"


def _pairs(lines: str, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines.splitlines():
        name, equals, value = line.partition("=")
        if not equals or name in found:
            raise ValueError(f"{where} has a line '{line[:40]}'")
        found[name] = value
    return found


def _check_header(header: Mapping[str, str], features: int) -> list[int]:
    """The sizes of the trees, in bytes."""
    if header.keys() != _HEADER.keys():
        wrong = sorted(header.keys() ^ _HEADER.keys())
        raise ValueError(f"its header lacks, or should lack, {', '.join(wrong)[:80]}")
    for name, value in _HEADER.items():
        if value is not None and header[name] != value:
            raise ValueError(f"{name} is {header[name][:20]}, not {value}")
    if (header["objective"].split() or [""])[0] not in _OBJECTIVES:
        raise ValueError(f"objective is '{header['objective'][:20]}'")
    (last,) = _whole(header["max_feature_idx"], 1, "max_feature_idx")
    if last != features - 1:
        raise ConfigError("the model is of other features than this version's", hint="fit it again")
    for name in ("feature_names", "feature_infos"):
        if len(header[name].split(" ")) != features:
            raise ValueError(f"{name} are not {features}")
    return _whole(header["tree_sizes"], None, "tree_sizes")


def _check_tree(tree: Mapping[str, str], where: str, features: int) -> None:
    known = {"num_leaves", "num_cat", "is_linear", "shrinkage", "split_feature", "decision_type", "left_child",
             "right_child", *_SPLITS, *_LEAVES}  # fmt: skip
    (leaves,), (categories,) = (_whole(tree.get(name, ""), 1, f"{where}: {name}") for name in ("num_leaves", "num_cat"))
    known |= {"cat_boundaries", "cat_threshold"} if categories else set()
    if tree.keys() - known or leaves < 1 or not 0 <= categories < leaves:
        raise ValueError(f"{where} is of another kind")
    if tree.get("is_linear", "0") != "0":
        raise ValueError(f"{where} is linear")
    _real(tree.get("shrinkage", "1"), 1, f"{where}: shrinkage")
    if leaves == 1:  # a constant: LightGBM leaves the rest out, or empty
        _real(tree.get("leaf_value", ""), 1, f"{where}: leaf_value")
        if any(tree.get(name) for name in ("split_feature", "left_child", "right_child", *_SPLITS)):
            raise ValueError(f"{where} has one leaf, and splits")
        return
    numbers = {
        name: _real(tree.get(name, ""), leaves - 1, f"{where}: {name}", may_be_infinite=name == "threshold")
        for name in _SPLITS
    }
    for name in _LEAVES:
        _real(tree.get(name, ""), leaves, f"{where}: {name}")
    splits = {name: _whole(tree.get(name, ""), leaves - 1, f"{where}: {name}")
              for name in ("split_feature", "decision_type", "left_child", "right_child")}  # fmt: skip
    if not all(0 <= one < features for one in splits["split_feature"]):
        raise ValueError(f"{where} splits by a feature that there is not")
    if not all(0 <= one < 16 for one in splits["decision_type"]):
        raise ValueError(f"{where} decides in a way that there is not")
    _check_children(splits["left_child"], splits["right_child"], where)
    if categories:
        _check_categories(tree, categories, where)
    decisions = [*zip(numbers["threshold"], splits["decision_type"], strict=True)]
    if not all(at < math.inf or of & _MISSING == _MISSING_IS_NAN for at, of in decisions):
        raise ValueError(f"{where} has an infinite threshold, and no missing values that it parts from others")
    sets = [at for at, of in decisions if of & _CATEGORICAL]
    if not all(at.is_integer() and 0 <= at < categories for at in sets):
        raise ValueError(f"{where} has a set of categories that there is not")


def _check_children(left: list[int], right: list[int], where: str) -> None:
    """Every node but the first and every leaf is the child of one node, and of one of a lower number."""
    seen: set[int] = set()
    for node, both in enumerate(zip(left, right, strict=True)):
        for child in both:
            if child in seen or not (node < child < len(left) or -len(left) - 1 <= child < 0):
                raise ValueError(f"{where}: node {node} has a child {child}")
            seen.add(child)


def _check_categories(tree: Mapping[str, str], categories: int, where: str) -> None:
    bounds = _whole(tree.get("cat_boundaries", ""), categories + 1, f"{where}: cat_boundaries")
    if bounds[0] or any(low >= high for low, high in pairwise(bounds)):
        raise ValueError(f"{where}: cat_boundaries do not ascend from 0")
    words = _whole(tree.get("cat_threshold", ""), bounds[-1], f"{where}: cat_threshold")
    if not all(0 <= one < 1 << 32 for one in words):
        raise ValueError(f"{where}: cat_threshold has a number that is none of 32 bits")


def _whole(text: str, count: int | None, where: str) -> list[int]:
    words = text.split(" ") if text else []
    if (count is not None and len(words) != count) or not all(map(_INTEGER.fullmatch, words)):
        raise ValueError(f"{where} is not {'' if count is None else count} whole numbers")
    return [int(word) for word in words]


def _real(text: str, count: int, where: str, *, may_be_infinite: bool = False) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(" ")] if text else []
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(one) or (may_be_infinite and one == math.inf) for one in numbers):
        raise ValueError(f"{where} is not {count} finite numbers")
    return numbers
