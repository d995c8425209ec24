"""Series of busy nodes from CSV files, plain or gzip: ours, and GPU counts of virtual clusters as Helios has them.

Two kinds of header are known: ``time,active,total`` in nodes, and ``time,running_gpu_num,total_gpu_num`` in GPUs; other
columns are ignored. Several files are the virtual clusters of one cluster and are summed, node by node.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.energy.series import STEP_S, NodeSeries, Zeros, from_samples
from farside.scheduler.table import Floats

NODES = ("active", "total")
GPUS = ("running_gpu_num", "total_gpu_num")
GPUS_PER_NODE = 8
# What a monitoring system writes where it has no value.
_NO_TIME = np.iinfo(np.int64).min
_EMPTY = ("", "nan", "na", "null", "none")


def read_series(
    paths: Sequence[Path], *, gpus_per_node: int = GPUS_PER_NODE, step_s: float = STEP_S, zeros: Zeros | None = None
) -> NodeSeries:
    """The busy nodes of one cluster.

    Zeros are gaps in a series of nodes, and where all of several virtual clusters are zero at once; a single virtual
    cluster can be empty. ``zeros`` says otherwise.

    Raises:
        ConfigError: A file can't be read, or is no such series; with its line.
    """
    parts = [_read_one(path, gpus_per_node) for path in paths]
    kinds = {kind for kind, _ in parts}
    if len(kinds) > 1:
        raise ConfigError(f"{paths[0]} and others differ: some count nodes, some GPUs", hint="give files of one kind")
    time_s, active, total = _summed([samples for _, samples in parts])
    if zeros is None:
        zeros = Zeros.REAL if kinds == {GPUS} and len(parts) == 1 else Zeros.GAP
    try:
        return from_samples(time_s, active, total, step_s=step_s, zeros=zeros)
    except ValueError as error:
        raise ConfigError(f"{paths[0]}: {error}", hint="zeros count as gaps unless --zeros real") from error


def _read_one(path: Path, gpus_per_node: int) -> tuple[tuple[str, str], dict[str, tuple[float, float]]]:
    samples: dict[str, tuple[float, float]] = {}
    with _opened(path) as file:
        rows = csv.reader(file)
        try:
            kind, places = _columns(path, next(rows, []))
            for row in rows:
                if row:
                    _add(samples, row, places, f"{path} line {rows.line_num}")
        except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise ConfigError(f"{path}: is no CSV file ({error})", hint="plain or gzip, UTF-8") from error
    if not samples:
        raise ConfigError(f"{path}: has no rows", hint="one row a minute, for weeks")
    if kind == GPUS:
        # Partly used nodes are busy: jobs are packed, so this is a lower bound that is nearly reached.
        for time, (running, there) in samples.items():
            samples[time] = float(np.ceil(running / gpus_per_node)), float(np.ceil(there / gpus_per_node))
    return kind, samples


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            yield file
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise ConfigError(f"{path}: {error.strerror or error}", hint="a series of busy nodes") from error


def _columns(path: Path, header: list[str]) -> tuple[tuple[str, str], tuple[int, int, int]]:
    names = [name.strip().lower() for name in header]
    for kind in (NODES, GPUS):
        if {"time", *kind} <= set(names):
            return kind, (names.index("time"), names.index(kind[0]), names.index(kind[1]))
    raise ConfigError(
        f"{path}: the header has neither time,{','.join(NODES)} nor time,{','.join(GPUS)}",
        hint="name the columns in the first line",
    )


def _add(samples: dict[str, tuple[float, float]], row: list[str], places: tuple[int, int, int], where: str) -> None:
    try:
        time, active, total = (row[place].strip() for place in places)
    except IndexError:
        raise ConfigError(f"{where}: has {len(row)} columns", hint="as many as the header names") from None
    before = samples.get(time)
    here = _number(active, where), _number(total, where)
    # Two samples of one instant: a clock that was set back, or two monitors. The larger is the safer.
    samples[time] = here if before is None else (max(before[0], here[0]), max(before[1], here[1]))


def _number(text: str, where: str) -> float:
    if text.lower() in _EMPTY:
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: '{text}' is no number", hint="leave it empty where there is none") from None
    if value < 0:
        raise ConfigError(f"{where}: {text} nodes", hint="leave it empty where there is no value")
    return value


def _summed(parts: list[dict[str, tuple[float, float]]]) -> tuple[Floats, Floats, Floats]:
    """One row for each instant that all files have, in the order of time."""
    common = [time for time in parts[0] if all(time in part for part in parts[1:])]
    if not common:
        raise ConfigError("the files have no time in common", hint="give files of the same weeks")
    values = np.array([[part[time] for time in common] for part in parts]).sum(axis=0)
    time_s = np.array([seconds_of(time) for time in common])
    order = np.argsort(time_s, kind="stable")
    return time_s[order], values[order, 0], values[order, 1]


def seconds_of(text: str, *, of: str = "time") -> float:
    """Seconds of a date such as 2017-11-15, or 2017-11-15 08:30:00, on a time line without zones.

    Raises:
        ConfigError: It is none.
    """
    try:
        found = int(np.datetime64(text.strip().replace(" ", "T"), "s").astype(np.int64))
    except ValueError:
        found = _NO_TIME
    if found == _NO_TIME or "today" in text or "now" in text:  # numpy's own words for times that pass
        raise ConfigError(f"{of}: '{text}' is no date", hint="write 2017-11-15 or '2017-11-15 08:30:00'")
    return float(found)
