"""Rates as users give them: one text, or a CSV file of scenarios."""

import csv
import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from farside.errors import ConfigError

RATE_MAX = 1e6
SCENARIOS_MAX = 1_000_000
SLO_MS_MAX = 1e6
_TIME = "at_s"  # the column of a file of rates that change


def parse_rates(text: str, models: Collection[str], option: str = "--rates") -> Mapping[str, float]:
    """Requests a second by model, from MODEL=RATE,...; models that are not named have none.

    Raises:
        ConfigError: A part is malformed, a model unknown or named twice, or a rate is out of bounds.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        # Names may have the sign, too, and numbers have none.
        name, equals, value = (one.strip() for one in part.rpartition("="))
        where = f"{option} {part.strip()}"
        if not equals or not name:
            raise ConfigError(f"{where}: is not MODEL=RATE", hint="for example resnet50=100,vgg16=50")
        _known(where, name, models)
        if name in found:
            raise ConfigError(f"{where}: {name} is there twice", hint="give each model one rate")
        found[name] = _rate(where, value)
    if not any(found.values()):
        raise ConfigError(f"{option} {text}: no model has requests", hint="give a rate above 0")
    return found


def parse_slos(text: str, models: Collection[str]) -> Mapping[str, float]:
    """SLOs in ms by model, from MODEL=MS,...; empty: none.

    Raises:
        ConfigError: A part is malformed, a model unknown or named twice, or an SLO out of bounds.
    """
    found: dict[str, float] = {}
    for part in text.split(",") if text.strip() else ():
        name, _, value = (one.strip() for one in part.partition("="))
        where = f"--slo {part.strip()}"
        _known(where, name, models)
        if name in found:
            raise ConfigError(f"{where}: {name} is there twice", hint="give each model one SLO")
        slo_ms = _number(value)
        if not 0 < slo_ms <= SLO_MS_MAX:
            raise ConfigError(f"{where}: is no time", hint=f"give milliseconds up to {SLO_MS_MAX:g}")
        found[name] = slo_ms
    return found


def read_scenarios(path: Path, models: Collection[str]) -> Iterator[Mapping[str, float]]:
    """Each row's requests a second by model; models without a column have none. All rows are checked first.

    Raises:
        ConfigError: The file can't be read, a column is no model, or a cell no rate; with the line.
    """
    for where, cells in _table_rows(path, models):
        _rates(where, cells)
    return (_rates(where, cells) for where, cells in _table_rows(path, models))


def _table_rows(
    path: Path, models: Collection[str], others: Collection[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row's cells by column, a model or one of ``others``, with the file and its line for messages."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            for name in names:
                _known(f"{path}, line 1", name, models, others)
            if len(set(names)) != len(names) or not names:
                raise ConfigError(f"{path}, line 1: names no model, or one twice", hint="give a column for each model")
            count = 0
            for row in reader:
                if not row:
                    continue
                where, count = f"{path}, line {reader.line_num}", count + 1
                if count > SCENARIOS_MAX:
                    raise ConfigError(f"{where}: more than {SCENARIOS_MAX:,} rows", hint="split the file")
                if len(row) != len(names):
                    raise ConfigError(f"{where}: has {len(row)} cells of {len(names)}", hint="give every model a rate")
                yield where, dict(zip(names, row, strict=True))
            if count == 0:
                raise ConfigError(f"{path}: has no scenario", hint="add a row of rates below the names of the models")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a CSV file of rates") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no CSV file ({error})", hint="give it comma-separated text") from error


def read_course(path: Path, models: Collection[str]) -> tuple[tuple[float, Mapping[str, float]], ...]:
    """Rates that change: from when on, and requests a second by model.

    Raises:
        ConfigError: The file can't be read, has no column at_s, or its times do not rise from 0, or a model is called
            as that column.
    """
    if _TIME in models:
        raise ConfigError(
            f"{path}: a model of the table is called {_TIME}, as the column of times", hint="call the model otherwise"
        )
    rows: list[tuple[float, Mapping[str, float]]] = []
    for where, cells in _table_rows(path, models, (_TIME,)):
        if _TIME not in cells:
            raise ConfigError(f"{path}, line 1: has no column at_s", hint="add the seconds from which on a row holds")
        text = cells.pop(_TIME)
        at_s = _number(text)
        if not 0 <= at_s < math.inf:
            raise ConfigError(f"{where}: at_s {text.strip()!r} is no time", hint="give seconds that rise from 0")
        if (not rows and at_s != 0) or (rows and at_s <= rows[-1][0]):
            raise ConfigError(f"{where}: at_s {at_s:g} does not rise from 0", hint="order the rows by time")
        rows.append((at_s, _rates(where, cells)))
    if not any(rate for _, rates in rows for rate in rates.values()):
        raise ConfigError(f"{path}: no model has requests", hint="give a rate above 0")
    return tuple(rows)


def _known(where: str, name: str, models: Collection[str], others: Collection[str] = ()) -> None:
    if name in models or name in others:
        return
    near = difflib.get_close_matches(name, [*models, *others], n=1)
    hint = f"did you mean {near[0]}?" if near else f"the table has {', '.join(sorted(models))}"
    raise ConfigError(f"{where}: {name!r} has no profile in the table", hint=hint)


def _rates(where: str, cells: Mapping[str, str]) -> Mapping[str, float]:
    return {name: _rate(f"{where}, {name}", cell) for name, cell in cells.items()}


def _rate(where: str, text: str) -> float:
    rate = _number(text)
    if not 0 <= rate <= RATE_MAX:
        raise ConfigError(
            f"{where}: {text.strip()!r} is not a rate", hint=f"give requests a second from 0 to {RATE_MAX:,.0f}"
        )
    return rate


def _number(text: str) -> float:
    """NaN, which is within no bounds, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
