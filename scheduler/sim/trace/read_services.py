"""Past jobs' GPU times from a CSV file: what a Gittins index starts with."""

import csv
import gzip
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from farside.errors import ConfigError
from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.policy import OrderPolicy

# What the column of GPU seconds is called; a file of a single column may call it anything.
COLUMNS = ("gpu_time_s", "service_gpu_s", "duration")


def read_services(path: Path) -> tuple[float, ...]:
    """The GPU seconds of each job in the file, plain or gzip, in its order.

    Raises:
        ConfigError: It cannot be read, has no such column, or a value is no number of at least 0.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(newline="") as file:
            return _services(file, path)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="give a CSV file of past jobs' GPU seconds") from error


def with_prior(order: OrderPolicy, path: Path) -> OrderPolicy:
    """A policy that begins with the distribution of the jobs in a file.

    Raises:
        ConfigError: It is a policy that wants none, or the file is bad.
    """
    if not isinstance(order, Gittins):
        raise ConfigError(f"{order.name} has no use for past jobs' GPU times", hint="only gittins has")
    return replace(order, prior=Distribution(read_services(path)))


def _services(lines: Iterable[str], path: Path) -> tuple[float, ...]:
    rows = csv.reader(lines)
    names = [name.strip() for name in next(rows, [])]
    at = next((names.index(name) for name in COLUMNS if name in names), 0 if len(names) == 1 else -1)
    if at < 0:
        raise ConfigError(
            f"{path}: line 1: no column {' or '.join(COLUMNS)}", hint=f"it has {', '.join(names) or 'none'}"
        )
    services: list[float] = []
    for row in rows:
        if row:
            text = row[at] if at < len(row) else ""
            services.append(_service(text, f"{path}: line {rows.line_num}: {names[at]}"))
    return tuple(services)


def _service(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: '{text}' is no number", hint="GPU seconds are wanted") from None
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{where}: '{text}' is not finite and at least 0", hint="GPU seconds are wanted")
    return value
