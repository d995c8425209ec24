"""Input of a program from a file, and what may be wrong with it: by file, row and column."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from farside.errors import ConfigError

WORDS_MAX, COUNT_MAX = 10_000_000, 10_000_000
"""Limits for LDA: each word is a row of the model, and each use of a word takes memory."""


def read_matrix(path: Path, *, has_target: bool) -> tuple[Any, Any]:
    """Rows of numbers, and the target of each: the last column, or ``y`` of an .npz file.

    Returns:
        Float64 of (rows, columns); float64 of (rows,), or None without a target.

    Raises:
        ConfigError: the file is not there, of an unknown kind, or not such a table.
    """
    try:
        if path.suffix == ".npz":
            # Opened here: NumPy leaves open what it can't read.
            with path.open("rb") as file:
                found = np.load(file, allow_pickle=False)
                if isinstance(found, np.ndarray):
                    raise ConfigError(f"{path}: holds one array; an .npz file has X{' and y' if has_target else ''}")
                if "X" not in found.files or (has_target and "y" not in found.files):
                    raise ConfigError(f"{path}: lacks {'X or y' if has_target else 'X'}")
                table = _two(path, found["X"])
                target = np.asarray(found["y"], np.float64).ravel() if has_target else None
            if target is not None and len(target) != len(table):
                raise ConfigError(f"{path}: X has {len(table)} rows and y has {len(target)}")
            return table, target
        if path.suffix == ".npy":
            table = _two(path, np.load(path, allow_pickle=False))
        elif path.suffix in (".csv", ".gz"):
            table = _two(path, np.loadtxt(path, delimiter=",", ndmin=2))
        else:
            raise ConfigError(f"{path}: is neither .csv, .npy nor .npz")
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except (ValueError, UserWarning) as error:  # NumPy warns of a file without rows
        raise ConfigError(f"{path}: {error}") from error
    if has_target:
        _check_columns(path, table)
    return (table[:, :-1].copy(), table[:, -1].copy()) if has_target else (table, None)


def mapped_matrix(path: Path, *, has_target: bool) -> Any:
    """Rows of numbers of an .npy file, of which only what is used gets into memory.

    Raises:
        ConfigError: the file is not there, or not such a table.
    """
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    _check_table(path, table)
    if has_target:
        _check_columns(path, table)
    return table


def _check_columns(path: Path, table: Any) -> None:
    if table.shape[1] < 2:
        raise ConfigError(f"{path}: has one column; the last one is the target, and others are needed")


def _two(path: Path, table: Any) -> Any:
    table = np.asarray(table)
    _check_table(path, table)
    return np.ascontiguousarray(table, np.float64)


def _check_table(path: Path, table: Any) -> None:
    if table.dtype.kind not in "fiub":
        raise ConfigError(f"{path}: holds {table.dtype}, not numbers")
    if table.ndim != 2 or not table.size:
        raise ConfigError(f"{path}: has no rows and columns; its shape is {table.shape}")


def check_finite(where: str, rows: Any, first: int = 0) -> None:
    """Raises ConfigError where a number is missing or infinite; ``first``: the number of the first of these rows."""
    _check(where, rows, ~np.isfinite(rows), "leave the row out, or fill it in", first)


def check_target(where: str, target: Any) -> None:
    """Raises ConfigError where a row's target is missing or infinite."""
    bad = ~np.isfinite(target)
    if bad.any():
        row = int(np.argmax(bad))
        raise ConfigError(
            f"{where}: row {row + 1}, target: is {target[row]:g}", hint="leave the row out, or fill it in"
        )


def check_not_negative(where: str, rows: Any, first: int = 0) -> None:
    """Raises ConfigError where a number is below zero; ``first``: the number of the first of these rows."""
    _check(where, rows, rows < 0, "this program needs numbers from 0 on", first)


def check_labels(where: str, labels: Any) -> int:
    """The number of classes of labels 0, 1, 2, ...

    Raises:
        ConfigError: one is not such a number, or there is one class only.
    """
    bad = (labels != np.floor(labels)) | (labels < 0) | (labels > 100_000)
    if bad.any():
        row = int(np.argmax(bad))
        raise ConfigError(f"{where}: row {row + 1}: label {labels[row]:g}", hint="labels are 0, 1, 2, and so on")
    classes = int(labels.max()) + 1
    if classes < 2:
        raise ConfigError(f"{where}: all labels are 0", hint="two classes at least are needed")
    return classes


def check_counts(where: str, rows: Any) -> None:
    """Raises ConfigError where a count is negative, not whole or too large."""
    bad = (rows < 0) | (rows != np.floor(rows)) | (rows > COUNT_MAX)
    _check(where, rows, bad, f"this program needs counts of words, up to {COUNT_MAX}")


def _check(where: str, rows: Any, bad: Any, hint: str, first: int = 0) -> None:
    if bad.any():
        row, column = (int(one) for one in np.unravel_index(int(np.argmax(bad)), rows.shape))
        raise ConfigError(f"{where}: row {first + row + 1}, column {column + 1}: is {rows[row, column]:g}", hint=hint)


def read_documents(path: Path) -> list[tuple[Any, Any]]:
    """Documents of a file in LDA-C's form, ``N word:count word:count``: of each its words and their counts.

    Raises:
        ConfigError: the file is not there, or a line is not such a document.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    documents = []
    for number, line in enumerate(lines, 1):
        said, *pairs = line.split() or [""]
        parts = [one.partition(":") for one in pairs]
        try:
            stated = int(said)
            words, counts = [int(word) for word, _, _ in parts], [int(count) for _, _, count in parts]
        except ValueError as error:
            raise ConfigError(f"{path}: row {number}: {error}", hint="a row is N word:count word:count") from error
        if stated != len(pairs):
            raise ConfigError(f"{path}: row {number}: says {stated} words and has {len(pairs)}")
        for column, (word, count) in enumerate(zip(words, counts, strict=True), 2):
            if word < 0 or count < 0:
                raise ConfigError(f"{path}: row {number}, column {column}: a number below 0")
            if word >= WORDS_MAX or count > COUNT_MAX:
                hint = f"words are less than {WORDS_MAX}, counts at most {COUNT_MAX}"
                raise ConfigError(f"{path}: row {number}, column {column}: a number too large", hint=hint)
        documents.append((np.array(words, np.int64), np.array(counts, np.int64)))
    if not documents:
        raise ConfigError(f"{path}: has no rows")
    return documents
