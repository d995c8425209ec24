"""The input of a program: data sets that packages of PyPI bring along, users' files, and drawn data, as blocks.

A block is, for NMF, an array of rows; for MLR and Lasso rows and their targets; for LDA where each document begins, and
the words of all of them.
"""

import hashlib
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farside.errors import ConfigError
from farside.training.app import synthetic
from farside.training.app.input_file import (
    check_counts,
    check_finite,
    check_labels,
    check_not_negative,
    check_target,
    mapped_matrix,
    read_documents,
    read_matrix,
)
from farside.training.app.memory_need import check_memory
from farside.training.app.program import Options

BLOCKS = 32
BLOCKS_MAX = 100_000
"""Each block is an object of Python's, with a state and a check sum, and is looked at in each iteration."""
# Which package has a data set, for which programs, and where in the package its files are.
_PACKAGED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "digits": ("scikit-learn", ("nmf", "mlr"), "sklearn/datasets/data/digits.csv.gz"),
    "breast_cancer": ("scikit-learn", ("mlr",), "sklearn/datasets/data/breast_cancer.csv"),
    "diabetes": ("scikit-learn", ("lasso",), "sklearn/datasets/data/diabetes_data_raw.csv.gz"),
    "reuters": ("lda", ("lda",), "lda/tests/reuters.ldac"),
}
SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """All input of a program.

    Attributes:
        blocks: By number; the same for any number of workers.
        rows, columns: Of all blocks together; for LDA documents and words that there are.
        classes: Of labels; 0 without.
        fingerprint: Says which input it is.
    """

    blocks: Sequence[Any]
    rows: int
    columns: int
    classes: int = 0
    fingerprint: str


def load(options: Options, *, lets_go: bool = False, workers: int = 1, here: int = 1) -> Input:
    """The input that the options name.

    Args:
        options: Those of the program.
        lets_go: No block is in memory before it is asked for, and not all of them are at once.
        workers: How many share the input.
        here: How many of them are on this machine.

    Raises:
        ConfigError: there is none, or it does not fit the program, with file, line and column; or no memory.
    """
    if options.data == SYNTHETIC:
        return _drawn(options, lets_go=lets_go, workers=workers, here=here)
    found = _mapped(options) if lets_go else _loaded(options)
    check_memory(options, rows=0, columns=found.columns, classes=found.classes, here=here)
    return found


def _loaded(options: Options) -> Input:
    if options.data in _PACKAGED:
        package, programs, inside = _PACKAGED[options.data]
        if options.app not in programs:
            fitting = ", ".join(name for name, (_, apps, _) in _PACKAGED.items() if options.app in apps)
            raise ConfigError(
                f"data: {options.data} is not for {options.app}", hint=f"use {fitting}, {SYNTHETIC} or a file"
            )
        return _LOADERS[options.app](_packaged_file(package, inside), options)
    path = Path(options.data)
    if not path.exists():
        names = ", ".join((*_PACKAGED, SYNTHETIC))
        raise ConfigError(
            f"data: there is no file '{options.data}', and no such data set", hint=f"data sets are {names}"
        )
    if not path.is_file():
        raise ConfigError(f"data: '{options.data}' is no regular file", hint="write the data to a file first")
    return _LOADERS[options.app](path, options)


def _packaged_file(package: str, inside: str) -> Path:
    # The files alone: importing the packages takes longer than most of these jobs.
    spec = importlib.util.find_spec(inside.partition("/")[0])
    path = Path(spec.origin).parent.parent / inside if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError(f"data: this data set comes with the package {package}", hint=f"pip install {package}")
    return path


def _blocks(options: Options, rows: int) -> int:
    blocks = options.blocks or min(BLOCKS, rows)
    if not 1 <= blocks <= rows:
        raise ConfigError(f"blocks: {blocks} for {rows} rows", hint="a block has at least one row")
    if blocks > BLOCKS_MAX:
        raise ConfigError(
            f"blocks: is {blocks}; at most {BLOCKS_MAX} are taken, since each takes memory and time of its own",
            hint="choose fewer: each then has more rows",
        )
    return blocks


def _bounds(options: Options, rows: int) -> list[int]:
    """The row at which each block begins, and the end of the last."""
    blocks = _blocks(options, rows)
    return [block * rows // blocks for block in range(blocks + 1)]


def _cut(options: Options, arrays: Sequence[Any], columns: int, classes: int = 0) -> Input:
    rows = len(arrays[0])
    bounds = _bounds(options, rows)
    parts = [tuple(array[first:end] for array in arrays) for first, end in itertools.pairwise(bounds)]
    return Input(
        blocks=parts if len(arrays) > 1 else [part[0] for part in parts],
        rows=rows,
        columns=columns,
        classes=classes,
        fingerprint=_fingerprint(options, *arrays),
    )


def _fingerprint(options: Options, *arrays: Any) -> str:
    check = hashlib.sha256()
    for array in arrays:
        check.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return f"{options.data} {check.hexdigest()[:16]}"


def _rows_alone(path: Path, options: Options) -> Input:
    rows, _ = read_matrix(path, has_target=False)
    if options.data == "digits":
        rows = rows[:, :-1] / 16
    check_finite(options.data, rows)
    check_not_negative(options.data, rows)
    return _cut(options, (np.ascontiguousarray(rows),), rows.shape[1])


def _rows_and_labels(path: Path, options: Options) -> Input:
    if options.data == "breast_cancer":
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        rows, labels = _standardized(table[:, :-1]), table[:, -1]
    else:
        rows, labels = read_matrix(path, has_target=True)
        if options.data == "digits":
            rows = rows / 16
    check_finite(options.data, rows)
    check_target(options.data, labels)
    classes = check_labels(options.data, labels)
    with_bias = np.column_stack([rows, np.ones(len(rows))])
    return _cut(options, (with_bias, labels.astype(np.int64)), with_bias.shape[1], classes)


def _rows_and_targets(path: Path, options: Options) -> Input:
    if options.data == "diabetes":
        rows = _standardized(np.loadtxt(path))
        targets = np.loadtxt(path.with_name("diabetes_target.csv.gz"))
        targets = targets - targets.mean()
    else:
        rows, targets = read_matrix(path, has_target=True)
    check_finite(options.data, rows)
    check_target(options.data, targets)
    if not np.square(rows).any():
        raise _all_zero(options.data)
    return _cut(options, (np.ascontiguousarray(rows), targets), rows.shape[1])


def _all_zero(where: str) -> ConfigError:
    return ConfigError(f"{where}: all columns but the target are 0")


def _standardized(rows: Any) -> Any:
    return (rows - rows.mean(axis=0)) / rows.std(axis=0)


def _documents(path: Path, options: Options) -> Input:
    if path.suffix == ".ldac":
        documents = read_documents(path)
    else:
        rows, _ = read_matrix(path, has_target=False)
        check_finite(options.data, rows)
        check_counts(options.data, rows)
        documents = [(row.nonzero()[0], row[row.nonzero()].astype(np.int64)) for row in rows]
    tokens = [np.repeat(words, counts).astype(np.int32) for words, counts in documents]
    if not sum(map(len, tokens)):
        raise ConfigError(f"{options.data}: has no words")
    columns = 1 + max(int(one.max()) for one in tokens if len(one))
    blocks = _blocks(options, len(tokens))
    cut = [tokens[block * len(tokens) // blocks : (block + 1) * len(tokens) // blocks] for block in range(blocks)]
    return Input(
        blocks=[(np.cumsum([0, *map(len, part)], dtype=np.int64), np.concatenate(part)) for part in cut],
        rows=len(tokens),
        columns=columns,
        fingerprint=_fingerprint(options, np.array([len(one) for one in tokens]), np.concatenate(tokens)),
    )


def can_leave_memory(options: Options) -> bool:
    """Whether blocks of the input that the options name are made or read when they are asked for."""
    if options.data == SYNTHETIC:
        return True
    path = Path(options.data)
    return options.app != "lda" and path.suffix == ".npy" and path.is_file()


def _mapped(options: Options) -> Input:
    """Rows of an .npy file that stay there until they are asked for; the same blocks and fingerprint as otherwise."""
    path, where = Path(options.data), options.data
    if not can_leave_memory(options):
        fitting = SYNTHETIC if options.app == "lda" else f"{SYNTHETIC} or an .npy file"
        raise ConfigError(
            f"data: '{where}' of {options.app} is in memory as a whole, so that nothing of it can be spilled",
            hint=f"use {fitting}, or leave out --spill-dir",
        )
    has_target = options.app != "nmf"
    table = mapped_matrix(path, has_target=has_target)
    columns = table.shape[1] - has_target
    bounds = _bounds(options, len(table))
    targets = np.array(table[:, -1], np.float64) if has_target else None
    classes = 0
    if targets is not None:
        check_target(where, targets)
    if options.app == "mlr":
        classes = check_labels(where, targets)
        targets = np.asarray(targets).astype(np.int64)

    def made(block: int) -> Any:
        first, end = bounds[block : block + 2]
        rows = np.array(table[first:end, :columns], np.float64, order="C")
        if options.app == "mlr":
            rows = np.column_stack([rows, np.ones(len(rows))])
        return rows if targets is None else (rows, targets[first:end])

    blocks = synthetic.DrawnBlocks(len(bounds) - 1, made)
    check, is_zero = hashlib.sha256(), True
    wide = columns + (options.app == "mlr")
    check.update(str((len(table), wide)).encode())
    for number, first in enumerate(bounds[:-1]):
        rows = blocks[number] if targets is None else blocks[number][0]
        check_finite(where, rows, first)
        if options.app == "nmf":
            check_not_negative(where, rows, first)
        is_zero = is_zero and not rows.any()
        check.update(rows.tobytes())
    if targets is not None:
        check.update(str(targets.shape).encode() + targets.tobytes())
    if options.app == "lasso" and is_zero:
        raise _all_zero(where)
    return Input(
        blocks=blocks, rows=len(table), columns=wide, classes=classes, fingerprint=f"{where} {check.hexdigest()[:16]}"
    )


_LOADERS: dict[str, Callable[[Path, Options], Input]] = {
    "nmf": _rows_alone,
    "lda": _documents,
    "mlr": _rows_and_labels,
    "lasso": _rows_and_targets,
}


def _drawn(options: Options, *, lets_go: bool, workers: int, here: int) -> Input:
    rows, columns, seed = options.rows, options.columns, options.seed
    if rows < 1 or columns < 1:
        raise ConfigError(f"{rows} rows and {columns} columns of synthetic data", hint="at least 1 each is needed")
    if options.app == "mlr" and options.classes < 2:
        raise ConfigError(f"classes: is {options.classes}; at least 2 are needed")
    blocks = _blocks(options, rows)
    classes = options.classes if options.app == "mlr" else 0
    own = rows // (blocks if lets_go else workers)
    check_memory(options, rows=own, columns=columns, classes=classes, here=here)
    words = {
        "nmf": f"rank {options.components}",
        "lda": f"{options.components} topics",
        "mlr": f"{options.classes} classes",
    }
    made = {
        "nmf": lambda: synthetic.drawn_products(seed, blocks, rows, columns, options.components),
        "lda": lambda: synthetic.drawn_documents(seed, blocks, rows, columns, options.components, options.alpha),
        "mlr": lambda: synthetic.drawn_classes(seed, blocks, rows, columns, options.classes),
        "lasso": lambda: synthetic.drawn_lines(seed, blocks, rows, columns),
    }[options.app]()
    return Input(
        blocks=made,
        rows=rows,
        columns=columns,
        classes=classes,
        fingerprint=f"synthetic {rows} x {columns} {words.get(options.app, '')} seed {seed}",
    )
