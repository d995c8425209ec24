"""Read past jobs' GPU times from a CSV file, as the first distribution for a Gittins index."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from farside.errors import ConfigError
from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.sim.trace.format.row import MAX_DURATION_S, MAX_GPUS, Problem, Row, real
from farside.scheduler.sim.trace.format.source import Source, open_source
from farside.scheduler.sim.trace.format.table import header, read_table

# What the column of GPU seconds is called; a file of a single column may call it anything.
COLUMNS = ("gpu_time_s", "service_gpu_s")
# Without one, GPU seconds are the product of two: how long a job ran, and on how many GPUs.
DURATIONS = ("duration_s", "duration")
GPUS = ("gpus", "num_gpu", "gpu_num")


def read_services(path: Path) -> tuple[float, ...]:
    """The GPU seconds of each job in the file, plain or gzip, in its order; jobs without GPUs are passed over.

    Raises:
        ConfigError: It cannot be read, has no such columns, a value is no number of at least 0, or it holds no job.
    """
    with open_source(path) as source:
        services: list[float] = []
        for item in read_table(source, _parser(source)):
            if isinstance(item, Problem):
                raise ConfigError(item.told(source.path))
            services += item
        if not services:
            raise ConfigError(f"{source.path}: holds no job with GPUs", hint="name a file with at least one")
        return tuple(services)


def with_prior(order: OrderPolicy, path: Path) -> OrderPolicy:
    """A policy that begins with the distribution of the jobs in a file.

    Raises:
        ConfigError: It is a policy that wants none, or the file is bad.
    """
    if not isinstance(order, Gittins):
        raise ConfigError(f"{order.name} has no use for past jobs' GPU times", hint="only gittins has")
    return replace(order, prior=Distribution(read_services(path)))


def _parser(source: Source) -> Callable[[Row], Collection[float]]:
    """What makes GPU seconds of a row: one value, or none."""
    names = list(header(source))
    column = _first(COLUMNS, names) or (names[0] if len(names) == 1 else "")
    if column:
        return lambda row: (_gpu_s(row, column),)
    duration, gpus = _first(DURATIONS, names), _first(GPUS, names)
    if not duration or not gpus:
        # Seconds alone are not GPU seconds, and the difference would not be noticed.
        raise ConfigError(
            f"{source.path}, line {source.first_line}: no column {' or '.join(COLUMNS)}, nor both of "
            f"{' or '.join(DURATIONS)} and {' or '.join(GPUS)}",
            hint="give a CSV file of past jobs' GPU seconds",
        )
    return lambda row: [row.duration_s(duration) * count] if (count := row.gpus(gpus, lowest=0)) else ()


def _first(wanted: Collection[str], names: Collection[str]) -> str:
    return next((name for name in wanted if name in names), "")


def _gpu_s(row: Row, column: str) -> float:
    return real(column, row.cell(column), highest=MAX_DURATION_S * MAX_GPUS)
