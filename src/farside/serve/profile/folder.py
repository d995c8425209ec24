"""A profile as a folder: what it is of, what was measured, and the tables that plans are made from.

profile.json   the device, the versions and the models: a profile of others is refused by name
runs.csv       a row for each cell and round, in the order in which they were measured; only ever added to
models.csv, NAME-LATENCY.csv, NAME-INTERFERENCE.csv   made of it, for `farside serve plan --table FOLDER`
"""

import csv
import io
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from farside.agent.serving.model_file import ModelFile
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.fit import CO_RUNS_MIN
from farside.serve.profile.cells import WHOLE_PCT, Cell, Side, batches_of, monotone, needed
from farside.whole_file import write_whole

VERSION = 1
HEADER, RUNS = "profile.json", "runs.csv"
SLO_TIMES = 2  # an SLO is twice what the largest batch takes on a whole device [glet §5.1]
_MB = 1 << 20
_Ms = Annotated[float, msgspec.Meta(gt=0, le=86_400_000)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The device that was measured: its driver, what it is, how much of it, and how much of that parts get."""

    driver: str
    name: str
    cores: tuple[int, ...] = ()
    capacity_pct: int = 100
    memory_mb: float
    runtimes: Mapping[str, str]


class ProfiledModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was measured: its file's hash, its largest batch, what it is promised, and its inputs' rows."""

    file: str
    sha256: str
    max_batch: int
    slo_ms: float | None = None
    memory_mb: float
    input: str


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile is of.

    ``process_mb``: what an executor takes besides its models; 0: not measured yet; None: the driver does not count it.
    """

    version: int
    device: Fingerprint
    models: Mapping[str, ProfiledModel]
    parts: tuple[int, ...]
    process_mb: float | None
    seed: int

    @property
    def largest(self) -> Mapping[str, int]:
        """The largest batch of each model."""
        return {name: model.max_batch for name, model in self.models.items()}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a cell in one round: what its batches took, and what the device gave.

    ``noise_pct``: how much longer a fixed loop took before it than at best. ``is_noisy``: still too much after it was
    measured anew. Empty are what this machine does not tell.
    """

    round: Annotated[int, msgspec.Meta(ge=0)]
    model: str
    part_pct: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_PCT)]
    batch: _Count
    other_model: str = ""
    other_part_pct: int = 0
    other_batch: int = 0
    p50_ms: _Ms
    p95_ms: _Ms
    p99_ms: _Ms
    runs: _Count
    threads: _Count
    share_asked_pct: float
    share_got_pct: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    noise_pct: float
    is_noisy: int

    @property
    def side(self) -> Side:
        """The model that was measured."""
        return Side(self.model, self.part_pct, self.batch)

    @property
    def other(self) -> Side | None:
        """Its neighbour; None: it was alone."""
        return Side(self.other_model, self.other_part_pct, self.other_batch) if self.other_model else None


_COLUMNS = tuple(field.name for field in msgspec.structs.fields(Run))


# ---- header


def read_header(folder: Path) -> Header | None:
    """What a folder's profile is of; None: there is none.

    Raises:
        ConfigError: The file can't be read or is of another version.
    """
    path = folder / HEADER
    try:
        header = msgspec.json.decode(path.read_bytes(), type=Header)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name another folder") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: is no profile ({error})", hint="measure anew into an empty folder") from error
    if header.version != VERSION:
        raise ConfigError(f"{path}: has version {header.version}", hint="measure anew into an empty folder")
    return header


def profile_problem(folder: Path, header: Header, device: Fingerprint, models: Iterable[ModelFile]) -> str:
    """Why a profile does not describe this device, or these models of these files and shapes; "" where it does."""
    known = header.device
    for what, theirs, ours in (
        ("driver", known.driver, device.driver),
        ("device", known.name, device.name),
        ("number of cores", len(known.cores), len(device.cores)),
        ("capacity", f"{known.capacity_pct} %", f"{device.capacity_pct} %"),
    ):
        if theirs != ours:
            return f"{folder}: is a profile of another {what}, {theirs} instead of {ours}"
    for model in models:
        measured = header.models.get(model.name)
        if measured is None:
            return f"{folder}: does not have the model {model.name}"
        if measured.sha256 != model.sha256:
            return f"{folder}: the file of model {model.name} has changed since it was measured"
        if measured.input != rows_of(model):
            return f"{folder}: model {model.name} was measured with rows {measured.input} instead of {rows_of(model)}"
    for name, version in device.runtimes.items():
        if name in known.runtimes and known.runtimes[name] != version:
            return f"{folder}: was measured with {name} {known.runtimes[name]} instead of {version}"
    return ""


def rows_of(model: ModelFile) -> str:
    """A row's shape and datatype of each input."""
    return " ".join(f"{'x'.join(map(str, one.shape))} {one.datatype}" for one in model.inputs)


def write_header(folder: Path, header: Header) -> None:
    """Leaves it, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / HEADER, msgspec.json.format(msgspec.json.encode(header), indent=1) + b"\n")


# ---- runs


class RunsFile:
    """The rows that were measured: those there were, and new ones, each on the disk when `add` returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUNS
        self.rows = list(_read_runs(self._path))

    def done(self) -> set[tuple[int, Cell]]:
        """Rounds and cells that need not be measured again."""
        found: set[tuple[int, Cell]] = set()
        for row in self.rows:
            found.add((row.round, (row.side,) if row.other is None else (row.side, row.other)))
        return found

    def add(self, rows: Sequence[Run]) -> None:
        """Adds the rows of one cell in one write, that of its first side last: the cell is done once that is there.

        A row that a killed run left half is dropped when the file is read.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        is_new = not self._path.exists() or not self._path.stat().st_size  # the first row was left half
        if is_new:
            writer.writerow(_COLUMNS)
        for row in reversed(rows):
            writer.writerow("" if value is None else value for value in msgspec.structs.astuple(row))
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, text.getvalue().encode())
        finally:
            os.close(fd)
        self.rows += rows


def _read_runs(path: Path) -> Iterable[Run]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name another folder with --out") from error
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:  # a run was killed while it wrote
        write_whole(path, whole)
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            cells = next(csv.reader([line.decode()], strict=True), [])
            if number == 1 and tuple(cells) != _COLUMNS:
                raise ValueError(f"has other columns than {', '.join(_COLUMNS)}")
            if number > 1 and cells:
                yield _run_of(cells)
        except (ValueError, csv.Error) as error:
            hint = "correct or remove the row" if number > 1 else "measure into an empty folder"
            raise ConfigError(f"{path}, line {number}: {error}", hint=hint) from error


def _run_of(cells: Sequence[str]) -> Run:
    if len(cells) != len(_COLUMNS):
        raise ValueError(f"has {len(cells)} cells of {len(_COLUMNS)}")
    return msgspec.convert(
        {name: cell for name, cell in zip(_COLUMNS, cells, strict=True) if cell != ""}, Run, strict=False
    )


# ---- tables


def missing(header: Header, rows: Sequence[Run]) -> int:
    """How many of the cells that a plan needs have not been measured."""
    return len(set(needed(header.largest, header.parts)) - {(row.side,) for row in rows if row.other is None})


def write_tables(folder: Path, header: Header, rows: Sequence[Run]) -> None:
    """Makes the tables anew of all that was measured: medians over rounds, of quiet ones where there are any.

    Batches that were not measured are linear between those that were, and marked.
    """
    alone, pairs = _by_cell(rows)
    name = header.device.driver
    _write_latency(folder / f"{name}-LATENCY.csv", header, alone)
    lines = [
        (side.model, side.batch, side.part_pct, other.model, other.batch, _ms(found, "p95_ms"),
         _ms(found, "p50_ms"), sum(row.runs for row in found), int(all(row.is_noisy for row in found)))
        for (side, other), found in sorted(pairs.items())
        if side in alone
    ]  # fmt: skip
    if len(lines) >= CO_RUNS_MIN:
        columns = (
            "model",
            "batch",
            "part_pct",
            "other_model",
            "other_batch",
            "latency_ms",
            "p50_ms",
            "runs",
            "is_noisy",
        )
        _write_csv(folder / f"{name}-INTERFERENCE.csv", columns, lines)
    models = []
    for model, profiled in header.models.items():
        largest_ms = _ms(alone[Side(model, WHOLE_PCT, profiled.max_batch)], "p95_ms")
        slo_ms = profiled.slo_ms if profiled.slo_ms is not None else round(SLO_TIMES * largest_ms, 3)
        models.append((model, slo_ms, round(profiled.memory_mb, 1), profiled.input))
    _write_csv(folder / "models.csv", ("model", "slo_ms", "mem_mb", "input"), models)


Alone = Mapping[Side, Sequence[Run]]


def _by_cell(rows: Sequence[Run]) -> tuple[Alone, Mapping[tuple[Side, Side], Sequence[Run]]]:
    alone, pairs = defaultdict(list), defaultdict(list)
    for row in rows:
        if row.other is None:
            alone[row.side].append(row)
        else:
            pairs[row.side, row.other].append(row)
    return alone, pairs


def _write_latency(path: Path, header: Header, alone: Alone) -> None:
    columns = ("model", "part_pct", "batch", "throughput_per_s", "latency_ms", "p50_ms", "p95_ms", "p99_ms", "runs",
               "threads", "share_asked_pct", "share_got_pct", "clock_mhz", "temperature_c", "is_noisy",
               "source")  # fmt: skip
    lines: list[tuple[object, ...]] = []
    for model, profiled in header.models.items():
        for part in header.parts:
            points = {}
            for batch in batches_of(profiled.max_batch):
                found = alone.get(Side(model, part, batch))
                if not found:
                    continue
                points[batch] = p95_ms = _ms(found, "p95_ms")
                shares, clocks, degrees = (
                    _median([getattr(row, key) for row in found if getattr(row, key) is not None])
                    for key in ("share_got_pct", "clock_mhz", "temperature_c")
                )
                lines.append(
                    (model, part, batch, round(1000 * batch / _ms(found, "p50_ms"), 3), p95_ms, _ms(found, "p50_ms"),
                     p95_ms, _ms(found, "p99_ms"), sum(row.runs for row in found), found[0].threads,
                     found[0].share_asked_pct, shares, clocks, degrees, int(all(row.is_noisy for row in found)),
                     "measured")
                )  # fmt: skip
            for batch, value in monotone(points, batches_of(profiled.max_batch)).items():
                empty = ("",) * 10
                lines.append((model, part, batch, "", round(value, 4), *empty, "interpolated"))
    _write_csv(path, columns, sorted(lines, key=lambda line: (str(line[0]), line[1:3])))


def _ms(found: Sequence[Run], column: str) -> float:
    quiet = [row for row in found if not row.is_noisy] or found
    return round(float(statistics.median(getattr(row, column) for row in quiet)), 4)


def _median(values: Sequence[float]) -> float | str:
    return round(statistics.median(values), 2) if values else ""


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
