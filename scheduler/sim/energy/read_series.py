"""Series of busy nodes from CSV files, plain or gzip: our format, and Helios's GPU counts.

Two kinds of header are known: ``time,active,total`` in nodes, and ``time,running_gpu_num,total_gpu_num`` in GPUs; other
columns are ignored. Several files are the virtual clusters of one cluster and are summed, node by node. A time without
a zone is the cluster's local time; one with a zone is counted in UTC.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.energy.busy_series import STEP_S, NodeSeries, Zeros, from_samples
from farside.scheduler.table import Floats
from farside.units import LONGEST_SPAN_S

NODES = ("active", "total")
GPUS = ("running_gpu_num", "total_gpu_num")
GPUS_PER_NODE = 8
# What a monitoring system writes where it has no value.
_EMPTY = ("", "nan", "na", "null", "none")
_NO_TIME = np.iinfo(np.int64).min
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Samples:
    """Data of one file: busy and existing nodes by time, and the first and the last row in time."""

    path: Path
    values: dict[float, tuple[float, float]] = field(default_factory=dict)
    first: tuple[float, int, str] = (np.inf, 0, "")
    last: tuple[float, int, str] = (-np.inf, 0, "")
    above: int = 0
    pairs: int = 0

    def add(self, row: list[str], places: tuple[int, int, int], line: int) -> None:
        """One more row."""
        where = f"{self.path} line {line}"
        try:
            time, active, total = (row[place].strip() for place in places)
        except IndexError:
            raise ConfigError(f"{where}: has {len(row)} columns", hint="as many as the header names") from None
        at_s = seconds_of(time, of=f"{where}: time")
        busy, there = _number(active, where), _number(total, where)
        self.pairs += busy == busy and there == there and there > 0
        self.above += busy > there > 0
        # Two samples of one instant: a clock that was set back, or two monitors. The larger is the safer.
        before = self.values.get(at_s)
        self.values[at_s] = (busy, there) if before is None else (max(before[0], busy), max(before[1], there))
        if at_s < self.first[0]:
            self.first = at_s, line, time
        if at_s > self.last[0]:
            self.last = at_s, line, time

    def check(self) -> None:
        """Refuses what can be no series.

        Raises:
            ConfigError: It has no rows, lasts longer than any cluster, or its columns were swapped.
        """
        if not self.values:
            raise ConfigError(f"{self.path}: has no rows", hint="one row a minute, for weeks")
        if self.last[0] - self.first[0] > LONGEST_SPAN_S:
            (_, one, early), (_, other, late) = self.first, self.last
            raise ConfigError(
                f"{self.path}: from {early} (line {one}) to {late} (line {other}) are more than 20 years",
                hint="a clock was wrong: take the rows with such times out",
            )
        if self.pairs and self.above == self.pairs:
            raise ConfigError(
                f"{self.path}: in all rows more nodes are busy than there are", hint="were the two columns swapped?"
            )


def read_series(
    paths: Sequence[Path], *, gpus_per_node: int = GPUS_PER_NODE, step_s: float = STEP_S, zeros: Zeros | None = None
) -> NodeSeries:
    """Read the busy nodes of one cluster.

    Zeros are gaps in a series of nodes, and where all of several virtual clusters are zero at once; a single virtual
    cluster can be empty. ``zeros`` says otherwise.

    Raises:
        ConfigError: A file can't be read, or is no such series; with its line.
    """
    parts = [_read_one(path) for path in paths]
    kinds = {kind for kind, _ in parts}
    if len(kinds) > 1:
        raise ConfigError(f"{paths[0]} and others differ: some count nodes, some GPUs", hint="give files of one kind")
    node = gpus_per_node if kinds == {GPUS} else 0
    time_s, active, total = _summed([samples.values for _, samples in parts], node)
    if zeros is None:
        zeros = Zeros.REAL if kinds == {GPUS} and len(parts) == 1 else Zeros.GAP
    try:
        made = from_samples(time_s, active, total, step_s=step_s, zeros=zeros)
    except ValueError as error:
        raise ConfigError(f"{paths[0]}: {error}", hint="zeros count as gaps unless --zeros real") from error
    return replace(made, above_rows=sum(samples.above for _, samples in parts))


def _read_one(path: Path) -> tuple[tuple[str, str], _Samples]:
    samples = _Samples(path)
    with _opened(path) as file:
        rows = csv.reader(file)
        try:
            kind, places = _columns(path, next(rows, []))
            for row in rows:
                if row:
                    samples.add(row, places, rows.line_num)
        except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ConfigError(f"{path}: is no CSV file ({error})", hint="plain or gzip, UTF-8") from error
    samples.check()
    return kind, samples


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            yield file
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise ConfigError(f"{path}: {error.strerror or error}", hint="name a series of busy nodes") from error


def _columns(path: Path, header: list[str]) -> tuple[tuple[str, str], tuple[int, int, int]]:
    names = [name.strip().lower() for name in header]
    for kind in (NODES, GPUS):
        if {"time", *kind} <= set(names):
            return kind, (names.index("time"), names.index(kind[0]), names.index(kind[1]))
    raise ConfigError(
        f"{path}: the header has neither time,{','.join(NODES)} nor time,{','.join(GPUS)}",
        hint="name the columns in the first line",
    )


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


def _summed(parts: list[dict[float, tuple[float, float]]], unit: int) -> tuple[Floats, Floats, Floats]:
    """One row for each instant that all files have, in the order of time; ``unit``: GPUs a node; 0: these are nodes."""
    common = sorted(time for time in parts[0] if all(time in part for part in parts[1:]))
    if not common:
        raise ConfigError("the files have no time in common", hint="give files of the same weeks")
    counts = np.array([[part[time] for time in common] for part in parts])
    # Partly used nodes are busy: jobs are packed, so this is a lower bound that is nearly reached.
    values = (np.ceil(counts / unit) if unit else counts).sum(axis=0)
    return np.array(common), values[:, 0], values[:, 1]


def seconds_of(text: str, *, of: str = "time") -> float:
    """Seconds of a date such as 2017-11-15, or 2017-11-15 08:30:00, on a time line without zones; with a zone: of UTC.

    Raises:
        ConfigError: It is none.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return _seconds_of_month(text, of)
    # Whole seconds, as of all times that are read here.
    since = (found.replace(tzinfo=UTC) if found.tzinfo is None else found) - _EPOCH
    return float(since.days * 86400 + since.seconds)


def _seconds_of_month(text: str, of: str) -> float:
    """Time from text that only numpy reads, such as 2017-11."""
    try:
        # It would read a zone with a warning, words such as today by the clock, and seconds since 1970 as a year.
        is_date = re.fullmatch(r"\d{4}(-\d\d)?", text.strip()) is not None
        found = int(np.datetime64(text.strip(), "s").astype(np.int64)) if is_date else _NO_TIME
    except ValueError:
        found = _NO_TIME
    if found == _NO_TIME:
        raise ConfigError(f"{of}: '{text}' is no date", hint="write 2017-11-15 or '2017-11-15 08:30:00'")
    return float(found)
