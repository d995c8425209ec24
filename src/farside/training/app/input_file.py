"""Input of a program from a file, and what may be wrong with it: by file, line and column.

Lines of a text are counted from 1 with all others of the file, as an editor shows them; rows of an array are, too.
"""

import gzip
import itertools
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from farside.errors import ConfigError
from farside.units import format_count

WORDS_MAX, COUNT_MAX = 10_000_000, 10_000_000
"""Limits for LDA: each word is a row of the model, and each use of a word takes memory."""
LARGEST = 1e100
"""The largest number of any row: programs add up products of two numbers."""
_TEXTS = (".csv", ".gz")
_FILL_IN = "leave the row out, or fill it in"
_SCALE = f"scale the column: numbers are from {-LARGEST:g} to {LARGEST:g}"


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
        elif path.suffix in _TEXTS:
            table = _two(path, _read_text(path))
        else:
            raise ConfigError(f"{path}: is neither .csv, .npy nor .npz")
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:
        raise _no_array(path) from error
    if has_target:
        _check_columns(path, table)
    return (table[:, :-1].copy(), table[:, -1].copy()) if has_target else (table, None)


def _no_array(path: Path) -> ConfigError:
    # NumPy's own words name arguments of its functions, which nobody here can give.
    by = "numpy.savez" if path.suffix == ".npz" else "numpy.save"
    return ConfigError(f"{path}: is damaged, or no {path.suffix} file of numbers", hint=f"write it by {by}")


def _read_text(path: Path) -> Any:
    """The numbers of a text's lines.

    Raises:
        ConfigError: there are none, or a line is not such a row.
        OSError, EOFError, zlib.error: it can't be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy warns of a file without rows
            table = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise _fault_of(path) from error
    if not table.size:
        raise ConfigError(f"{path}: has no line of numbers")
    return table


def _fault_of(path: Path) -> ConfigError:
    """What is wrong with the first line that does not fit."""
    columns = 0
    for number, values in _lines(path):
        for column, value in enumerate(values, 1):
            if not _is_number(value):
                return ConfigError(
                    f"{path}: line {number}, column {column}: '{value.strip()[:40]}' is not a number",
                    hint="a line is numbers with commas between, or begins with #",
                )
        columns = columns or len(values)
        if len(values) != columns:
            has = format_count(len(values), "column")
            return ConfigError(f"{path}: line {number}: has {has}, and the lines before it have {columns}")
    return ConfigError(f"{path}: is not a table of numbers with commas between")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines of a text that are rows, by their number: what is behind # is left out, and empty lines are."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", errors="replace") as file:
        for number, line in enumerate(file, 1):
            text = line.partition("#")[0].rstrip("\r\n")
            if text:
                yield number, text.split(",")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python takes it between digits, NumPy does not


def _row(where: str, row: int) -> str:
    """What a row, counted from 0, is called: by its line in a text, otherwise by its number from 1."""
    path = Path(where)
    if path.suffix in _TEXTS and path.is_file():
        found = next(itertools.islice(_lines(path), row, None), None)
        if found is not None:
            return f"line {found[0]}"
    return f"row {row + 1}"


def mapped_matrix(path: Path, *, has_target: bool) -> Any:
    """Rows of numbers of an .npy file, of which only what is used gets into memory.

    Raises:
        ConfigError: the file is not there, or not such a table.
    """
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:
        raise _no_array(path) from error
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
    """Raises ConfigError where a number is missing, infinite or too large; ``first``: the first row's number."""
    _check(where, rows, ~np.isfinite(rows), _FILL_IN, first)
    _check(where, rows, _is_large(rows), _SCALE, first)


def check_target(where: str, target: Any) -> None:
    """Raises ConfigError where a row's target is missing, infinite or too large."""
    for bad, hint in ((~np.isfinite(target), _FILL_IN), (_is_large(target), _SCALE)):
        if bad.any():
            row = int(np.argmax(bad))
            raise ConfigError(f"{where}: {_row(where, row)}, target: is {target[row]:g}", hint=hint)


def _is_large(numbers: Any) -> Any:
    return (numbers > LARGEST) | (numbers < -LARGEST)


def check_not_negative(where: str, rows: Any, first: int = 0) -> None:
    """Raises ConfigError where a number is below zero; ``first``: the number of the first of these rows."""
    _check(where, rows, rows < 0, "this program needs numbers from 0 on", first)


def check_labels(where: str, labels: Any) -> int:
    """The number of classes of labels 0, 1, 2, ...

    Raises:
        ConfigError: one is not such a number, or all are the same.
    """
    bad = (labels != np.floor(labels)) | (labels < 0) | (labels > 100_000)
    if bad.any():
        row = int(np.argmax(bad))
        raise ConfigError(f"{where}: {_row(where, row)}: label {labels[row]:g}", hint="labels are 0, 1, 2, and so on")
    if labels.min() == labels.max():
        raise ConfigError(f"{where}: all labels are {labels[0]:g}", hint="two classes at least are needed")
    return int(labels.max()) + 1


def check_counts(where: str, rows: Any) -> None:
    """Raises ConfigError where a count is negative, not whole or too large."""
    bad = (rows < 0) | (rows != np.floor(rows)) | (rows > COUNT_MAX)
    _check(where, rows, bad, f"this program needs counts of words, up to {COUNT_MAX}")


def _check(where: str, rows: Any, bad: Any, hint: str, first: int = 0) -> None:
    if bad.any():
        row, column = (int(one) for one in np.unravel_index(int(np.argmax(bad)), rows.shape))
        place = f"{_row(where, first + row)}, column {column + 1}"
        raise ConfigError(f"{where}: {place}: is {rows[row, column]:g}", hint=hint)


def read_documents(path: Path) -> list[tuple[Any, Any]]:
    """Documents of a file in LDA-C's form, ``N word:count word:count``: of each its words and their counts.

    Raises:
        ConfigError: the file is not there, or a line is not such a document.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    documents = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        said, *pairs = line.split() or [""]
        parts = [one.partition(":") for one in pairs]
        try:
            stated = int(said)
            words, counts = [int(word) for word, _, _ in parts], [int(count) for _, _, count in parts]
        except ValueError as error:
            what = f"'{line.strip()[:40]}' is no document" if line.strip() else "is empty"
            raise ConfigError(f"{path}: line {number}: {what}", hint="a line is N word:count word:count") from error
        if stated != len(pairs):
            raise ConfigError(f"{path}: line {number}: says {stated} words and has {len(pairs)}")
        for column, (word, count) in enumerate(zip(words, counts, strict=True), 2):
            if word < 0 or count < 0:
                raise ConfigError(f"{path}: line {number}, column {column}: a number below 0")
            if word >= WORDS_MAX or count > COUNT_MAX:
                hint = f"words are less than {WORDS_MAX}, counts at most {COUNT_MAX}"
                raise ConfigError(f"{path}: line {number}, column {column}: a number too large", hint=hint)
        documents.append((np.array(words, np.int64), np.array(counts, np.int64)))
    if not documents:
        raise ConfigError(f"{path}: has no rows")
    return documents
