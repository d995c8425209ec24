"""Tables of profiles: a folder of CSV files becomes models and a device (docs/serving.md has files and columns)."""

import csv
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farside.errors import ConfigError
from farside.scheduler.sharing.glet.fit import CO_RUNS_MIN, CoRun, Pair, Utilisation, fit
from farside.scheduler.sharing.glet.interference import Separable, tabled
from farside.scheduler.sharing.glet.profile import (
    WHOLE_PCT,
    DeviceProfile,
    Interference,
    ModelProfile,
    NoInterference,
    between,
    cuts_of,
)
from farside.serve.profile.folder import HEADER, Header, read_header

MODELS, OVERHEAD = "models.csv", "batch-overhead.csv"
DERIVED = "LATENCY-derived.csv"
INSTANCES = "mig_gpcs"  # the column that tables of MIG instances have in the place of part_pct
# Of an executor besides its models, and of a device: of the paper's, for tables that say nothing of it.
PROCESS_MB, USABLE_MB = 1230.0, 9900.0
BATCH_MAX = 1024
# The authors' code: what it adds for building a batch, by the form of the input, and the margin on both.
MARGIN = 1.1
_BUILDING_TIMES = {"3x224x224": 1.9, "3x300x300": 2.5}
_BUILDING_MS = {"1x28x28": 0.4, "1x14 int64": 1.0}

# Latency in ms, or a share of a resource, by batch; by model and part.
ByBatch = Mapping[int, float]
Grid = dict[tuple[str, int], dict[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Models by name and the device that a folder describes, and a sentence on what it rests on."""

    models: Mapping[str, ModelProfile]
    device: DeviceProfile
    rests_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    name: str
    slo_ms: float
    memory_mb: float
    input: str


def read_tables(folder: Path, device: str = "") -> Tables:
    """Models and device of a folder.

    Args:
        folder: Has models.csv and a latency table that covers all its models.
        device: Begin of the name of the tables, such as 2080ti; needed where several tables do.

    Raises:
        ConfigError: A file is missing or wrong; with the file, the row, and what to do.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder", hint="name a folder with models.csv and a latency table")
    listed = _read_models(folder / MODELS)
    path, prefix, measured = _latency_table(folder, listed, device)
    is_derived = path.name.endswith(DERIVED)
    lacking = [name for name in listed if WHOLE_PCT not in _parts(measured, name)]
    if lacking:
        raise ConfigError(
            f"{path}: has no latencies of a whole device for {', '.join(lacking[:3])}",
            hint=f"add rows with part_pct {WHOLE_PCT}, or take the model out of {MODELS}",
        )
    parts = sorted(set.intersection(*(_parts(measured, name) for name in listed)))
    # Plans have no parts that only some models were measured on.
    latencies = {(name, part): cells for (name, part), cells in measured.items() if part in parts}
    largest = {name: min(max(latencies[name, part]) for part in _parts(latencies, name)) for name in listed}
    building = _building(folder, listed, largest) if is_derived else {}
    models = {
        name: _model(one, latencies, largest[name], building.get(name), MARGIN if is_derived else 1.0)
        for name, one in listed.items()
    }
    header = read_header(folder)
    interference, from_what = _interference(folder, prefix, listed, measured, parts, largest)
    return Tables(
        models=models,
        device=DeviceProfile(
            name=prefix,
            cuts=cuts_of(parts),
            memory_mb=header.device.memory_mb if header is not None else USABLE_MB,
            process_mb=_process_mb(header),
            interference=interference,
        ),
        rests_on=f"{path.name} ({'derived, not measured' if is_derived else 'measured'}); {from_what}",
    )


def table_files(folder: Path) -> Mapping[str, Path]:
    """Files of a folder that may be read as tables, by what a message calls them."""
    found = (*folder.glob("*.[cC][sS][vV]"), folder / HEADER)
    return {f"--table ({path.name})": path for path in sorted(found)}


def _process_mb(header: Header | None) -> float:
    """What plans reckon with that an executor takes besides its models."""
    return header.process_mb if header is not None and header.process_mb is not None else PROCESS_MB


def _model(listed: _Listed, latencies: Grid, largest: int, building_ms: ByBatch | None, margin: float) -> ModelProfile:
    alone, slowed = {}, {}
    for part in sorted(_parts(latencies, listed.name)):
        runs_ms = between(latencies[listed.name, part], largest)
        built_ms = [building_ms[at + 1] if building_ms is not None else 0.0 for at in range(largest)]
        alone[part] = tuple(margin * (run + built) for run, built in zip(runs_ms, built_ms, strict=True))
        slowed[part] = tuple(margin * run for run in runs_ms)
    return ModelProfile(
        name=listed.name, slo_ms=listed.slo_ms, memory_mb=listed.memory_mb, latency_ms=alone, slowed_ms=slowed
    )


def _parts(grid: Grid, model: str) -> set[int]:
    return {part for name, part in grid if name == model}


# ---- files


@contextmanager
def _read_of(path: Path) -> Iterator["csv.DictReader[str]"]:
    """A reader of a CSV file, which has read the names of the columns."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: is no regular file", hint="put a CSV file in its place, or take it away")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            yield reader
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a folder that has this file") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no CSV file ({error})", hint="give it comma-separated text") from error


def _columns(path: Path) -> Sequence[str]:
    with _read_of(path) as reader:
        return reader.fieldnames or ()


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each row of a CSV file, with the file and its line for messages."""
    with _read_of(path) as reader:
        there = list(reader.fieldnames or ())
        missing = [name for name in columns if name not in there]
        if missing:
            raise ConfigError(
                f"{path}: has no column {', '.join(missing)}", hint=f"give it the columns {', '.join(columns)}"
            )
        twice = [name for name in columns if there.count(name) > 1]
        if twice:
            raise ConfigError(f"{path}: has the column {twice[0]} twice", hint="keep one of them")
        for row in reader:
            if any(row[name] is None for name in columns):
                raise ConfigError(f"{path}, line {reader.line_num}: is too short", hint="give it all columns")
            yield f"{path}, line {reader.line_num}", row


def _number(where: str, name: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise ConfigError(f"{where}: {name} {text!r} is not between {low:g} and {high:g}", hint="correct the row")
    return number


def _whole(where: str, name: str, text: str, low: int, high: int) -> int:
    number = _number(where, name, text, low, high)
    if number != int(number):
        raise ConfigError(f"{where}: {name} {text!r} is not a whole number", hint="correct the row")
    return int(number)


def _once(where: str, what: str, *, is_there: bool) -> None:
    if is_there:
        raise ConfigError(f"{where}: {what} is there twice", hint="keep one of the rows")


def _read_models(path: Path) -> dict[str, _Listed]:
    found: dict[str, _Listed] = {}
    for where, row in _rows(path, ("model", "slo_ms", "mem_mb", "input")):
        name = row["model"].strip()
        if not name or name in found:
            raise ConfigError(f"{where}: model {name!r} is there twice or has no name", hint="name each model once")
        found[name] = _Listed(
            name=name,
            slo_ms=_number(where, "slo_ms", row["slo_ms"], 0.001, 1e7),
            memory_mb=_number(where, "mem_mb", row["mem_mb"], 0, 1e7),
            input=row["input"].strip(),
        )
    if not found:
        raise ConfigError(f"{path}: lists no model", hint="give it a row for each model")
    return found


def _latency_table(folder: Path, listed: Mapping[str, _Listed], device: str) -> tuple[Path, str, Grid]:
    """The one latency table of a folder that covers all models, with what its name begins with."""
    candidates = sorted(path for path in folder.glob("*LATENCY*.csv") if path.name.startswith(device))
    fitting: list[tuple[Path, Grid]] = []
    lacks = ""
    for path in candidates:
        columns = _columns(path)
        if "part_pct" not in columns:
            lacks = lacks or f"{path} {_without_parts(columns)}"
            continue
        grid = _grid(path, "latency_ms", 1e-6, 1e9)
        missing = [name for name in listed if not _parts(grid, name)]
        if missing:
            lacks = f"{path} has no rows of {', '.join(missing[:3])}"
        else:
            fitting.append((path, grid))
    if not fitting:
        why = f" ({lacks})" if lacks else ""
        wanted = f"{device}*LATENCY*.csv"
        raise ConfigError(
            f"{folder}: no {wanted} has all models of {MODELS}{why}",
            hint="add rows model,part_pct,batch,latency_ms, or take the model out",
        )
    if len(fitting) > 1:
        names = ", ".join(path.name for path, _ in fitting)
        raise ConfigError(f"{folder}: {names} have all models", hint="choose one by --device and the begin of its name")
    path, grid = fitting[0]
    return path, path.name.partition("LATENCY")[0].rstrip("-"), grid


def _without_parts(columns: Sequence[str]) -> str:
    """What is wrong with a latency table of these columns, which has no parts."""
    if not columns:
        return "is empty"
    return "is of instances, not of parts in percent" if INSTANCES in columns else "has no column part_pct"


def _grid(path: Path, column: str, low: float, high: float) -> Grid:
    found: Grid = {}
    for where, row in _rows(path, ("model", "part_pct", "batch", column)):
        part = _whole(where, "part_pct", row["part_pct"], 1, WHOLE_PCT)
        batch = _whole(where, "batch", row["batch"], 1, BATCH_MAX)
        cells = found.setdefault((row["model"].strip(), part), {})
        _once(where, f"batch {batch} on {part} %", is_there=batch in cells)
        cells[batch] = _number(where, column, row[column], low, high)
    return found


def _building(folder: Path, listed: Mapping[str, _Listed], largest: Mapping[str, int]) -> Mapping[str, ByBatch]:
    """Milliseconds to build a batch, by model: the authors' measured times and what their scheduler makes of them."""
    path = folder / OVERHEAD
    concat: dict[str, dict[int, float]] = {}
    if path.exists():
        for where, row in _rows(path, ("input", "batch", "concat_ms")):
            batch = _whole(where, "batch", row["batch"], 1, BATCH_MAX)
            known = concat.setdefault(row["input"].strip(), {})
            _once(where, f"batch {batch}", is_there=batch in known)
            known[batch] = _number(where, "concat_ms", row["concat_ms"], 0, 1e6)
    found: dict[str, ByBatch] = {}
    for name, one in listed.items():
        batches = range(1, largest[name] + 1)
        if one.input in _BUILDING_MS:
            found[name] = dict.fromkeys(batches, _BUILDING_MS[one.input])
        elif one.input in concat:
            times = between(concat[one.input], largest[name])
            found[name] = {batch: _BUILDING_TIMES.get(one.input, 1.0) * times[batch - 1] for batch in batches}
        else:
            raise ConfigError(
                f"{path}: has no row for the input {one.input!r} of {name}", hint="add rows input,batch,concat_ms"
            )
    return found


# ---- interference


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRuns:
    """Measured co-runs, and utilisations where the folder has them."""

    co_runs: tuple[CoRun, ...]
    utilisation: Utilisation


def read_latencies(folder: Path, prefix: str) -> Grid:
    """Measured milliseconds by batch, of each model and part.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    return _grid(folder / f"{prefix}-LATENCY.csv", "latency_ms", 1e-6, 1e9)


def read_co_runs(folder: Path, prefix: str) -> CoRuns:
    """Co-runs of a device from its INTERFERENCE and LATENCY tables, and its utilisations.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    alone = read_latencies(folder, prefix)
    return CoRuns(co_runs=_co_runs(folder, prefix, alone), utilisation=_utilisation(folder, prefix))


def _co_runs(folder: Path, prefix: str, alone: Grid) -> tuple[CoRun, ...]:
    path = folder / f"{prefix}-INTERFERENCE.csv"
    found: dict[Pair, CoRun] = {}
    columns = ("model", "batch", "part_pct", "other_model", "other_batch", "latency_ms")
    for where, row in _rows(path, columns):
        part = _whole(where, "part_pct", row["part_pct"], 1, WHOLE_PCT - 1)
        batch, other_batch = (_whole(where, name, row[name], 1, BATCH_MAX) for name in ("batch", "other_batch"))
        model = row["model"].strip()
        solo_ms = alone.get((model, part), {}).get(batch)
        if solo_ms is None:
            raise ConfigError(
                f"{where}: {model} in batches of {batch} on {part} % has no latency alone",
                hint="measure it alone, or take the row out",
            )
        latency_ms = _number(where, "latency_ms", row["latency_ms"], 1e-6, 1e9)
        pair = Pair(model, part, batch, row["other_model"].strip(), WHOLE_PCT - part, other_batch)
        _once(where, f"this co-run of {model}", is_there=pair in found)
        found[pair] = CoRun(pair=pair, factor=latency_ms / solo_ms)
    return tuple(found.values())


def _utilisation(folder: Path, prefix: str) -> Utilisation:
    path = folder / f"{prefix}-UTIL.csv"
    if not path.exists():
        return {}
    memory, cache = _grid(path, "mem_util_pct", 0, 100), _grid(path, "l2_util_pct", 0, 100)
    return {
        (model, part, batch): (cache[model, part][batch] / 100, share / 100)
        for (model, part), cells in memory.items()
        for batch, share in cells.items()
    }


def _interference(
    folder: Path,
    prefix: str,
    listed: Mapping[str, _Listed],
    latencies: Grid,
    parts: Sequence[int],
    largest: Mapping[str, int],
) -> tuple[Interference, str]:
    constants, measured = folder / f"{prefix}-INT_MODEL_CONSTANT.CSV", folder / f"{prefix}-INTERFERENCE.csv"
    if constants.exists():
        return _by_constants(folder, prefix, constants, parts, largest), f"interference by {constants.name}"
    if not measured.exists():
        return NoInterference(), "no interference is known"
    co_runs = _co_runs(folder, prefix, latencies)
    if len(co_runs) < CO_RUNS_MIN:
        raise ConfigError(
            f"{measured}: has {len(co_runs)} co-runs", hint=f"measure {CO_RUNS_MIN} at least, or take the file away"
        )
    fitted = fit(co_runs, _utilisation(folder, prefix), random.Random(1))
    batches = {
        name: sorted({batch for part in parts for batch in latencies[name, part] if batch <= largest[name]})
        for name in listed
    }
    error = fitted.errors[fitted.form]
    told = (
        f"interference by {measured.name}: {fitted.form}, p90 error {100 * error.p90:.1f} % on {error.count} co-runs "
        f"kept out, safety {fitted.safety:.3f}"
    )
    return tabled(fitted, co_runs, parts, batches), told


_CONSTANTS = ("l2_util_m1", "l2_util_m2", "dram_util_m1", "dram_util_m2", "constant")
_UTILISATION = ("bench", "batch", "l2_util(%)", "mem_util(%)")


def _by_constants(
    folder: Path, prefix: str, path: Path, parts: Sequence[int], largest: Mapping[str, int]
) -> Interference:
    """The authors' five coefficients on utilisations of the whole device, each times the part."""
    rows = list(_rows(path, _CONSTANTS))
    if len(rows) != 1:
        raise ConfigError(f"{path}: has {len(rows)} rows", hint="give it one row of coefficients")
    where, row = rows[0]
    l2_own, l2_other, dram_own, dram_other, constant = (
        _number(where, name, row[name], -1e3, 1e3) for name in _CONSTANTS
    )
    table = folder / f"{prefix}-UTIL.CSV"
    l2: dict[str, dict[int, float]] = {}
    dram: dict[str, dict[int, float]] = {}
    for place, cells in _rows(table, _UTILISATION):
        batch = _whole(place, "batch", cells["batch"], 1, BATCH_MAX)
        name = cells["bench"].strip()
        _once(place, f"batch {batch}", is_there=batch in l2.get(name, {}))
        l2.setdefault(name, {})[batch] = _number(place, "l2_util(%)", cells["l2_util(%)"], 0, 100) / 100
        dram.setdefault(name, {})[batch] = _number(place, "mem_util(%)", cells["mem_util(%)"], 0, 100) / 100
    own, other = {}, {}
    for name, most in largest.items():
        if name not in l2:
            raise ConfigError(f"{table}: has no row of {name}", hint="add its utilisation, or take the model out")
        cache, memory = between(_doubled(l2[name]), most), between(_doubled(dram[name]), most)
        for part in parts:
            share = part / WHOLE_PCT
            own[name, part] = tuple(
                constant + share * (l2_own * c + dram_own * m) for c, m in zip(cache, memory, strict=True)
            )
            other[name, part] = tuple(
                share * (l2_other * c + dram_other * m) for c, m in zip(cache, memory, strict=True)
            )
    return Separable(own, other, is_log=False)


def _doubled(points: Mapping[int, float]) -> Mapping[int, float]:
    """The batches 1, 2, 4, 8, ... of a table, as the authors' coefficients were fitted to; all, if it lacks these."""
    found = {batch: value for batch, value in points.items() if batch & (batch - 1) == 0}
    return found if len(found) > 1 else points
