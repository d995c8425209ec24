"""Write traces to files in Farside's own CSV, which `format/farside.py` reads again.

Only columns that some job needs are written. Times are dates where the trace has a calendar, otherwise seconds; both to
the microsecond, as no log is finer.
"""

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

from farside.errors import ConfigError
from farside.scheduler.sim.output_files import is_stream, replacing
from farside.scheduler.sim.trace.format.row import UNPRINTABLE
from farside.scheduler.sim.trace.format.source import BUILTIN
from farside.scheduler.sim.trace.job import Trace, TraceJob


def write_trace(trace: Trace, path: Path) -> None:
    """Writes our CSV; gzip when the name ends in ``.gz``. A file that is there is replaced when all is written.

    The same jobs give the same text, and with the same zlib the same bytes.

    Raises:
        ConfigError: The file cannot be written.
    """
    with _text_file(path) as file:
        write_rows(trace, file)


def write_rows(trace: Trace, file: TextIO) -> None:
    """Header and jobs of our CSV."""
    columns = [column for column in _COLUMNS if column.is_needed(trace)]
    out = csv.writer(file, lineterminator="\n")
    out.writerow([column.name for column in columns])
    out.writerows([column.text(column.value(job)) for column in columns] for job in trace.jobs)


@dataclass(frozen=True, slots=True)
class _Column:
    """``value`` of a job, as ``text``; not needed where all jobs have the value ``default``."""

    name: str
    value: Callable[[TraceJob], Any]
    text: Callable[[Any], str]
    default: object = None

    def is_needed(self, trace: Trace) -> bool:
        if self.name in ("submit_s", "submit_time"):
            return trace.has_calendar == (self.name == "submit_time")
        return self.default is None or any(self.value(job) != self.default for job in trace.jobs)


def _number(value: float) -> str:
    if value == math.inf:
        return ""
    return str(int(value)) if value == int(value) else repr(round(value, 6))


def _exact(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _date(value_s: float) -> str:
    return datetime.fromtimestamp(value_s, UTC).replace(tzinfo=None).isoformat(sep=" ")


def _name(text: str) -> str:
    # A row is a line: no reader gives such names, but a program may.
    return text if text.isprintable() else UNPRINTABLE.sub(" ", text)


def _flag(value: bool) -> str:
    return "true" if value else "false"


_COLUMNS = (
    _Column("job_id", attrgetter("job.job_id"), _name),
    _Column("submit_time", attrgetter("job.submit_s"), _date),
    _Column("submit_s", attrgetter("job.submit_s"), _number),
    _Column("gpus", attrgetter("job.gpus"), str),
    _Column("duration_s", attrgetter("duration_s"), _number),
    _Column("vc", attrgetter("job.vc"), _name, ""),
    _Column("user", attrgetter("job.user"), _name, ""),
    _Column("account", attrgetter("job.account"), _name, ""),
    _Column("qos", attrgetter("job.qos"), _name, ""),
    _Column("name", attrgetter("job.name"), _name, ""),
    _Column("parameter_servers", attrgetter("job.parameter_servers"), str, 0),
    _Column("cpus_per_gpu", attrgetter("job.cpus_per_gpu"), _exact, 0.0),
    _Column("memory_bytes_per_gpu", attrgetter("job.memory_bytes_per_gpu"), _exact, 0.0),
    _Column("gpu_model", attrgetter("job.gpu_model"), _name, ""),
    _Column("model", attrgetter("job.model"), _name, ""),
    _Column("model_bytes", attrgetter("job.model_bytes"), str, 0),
    _Column("skew", attrgetter("job.skew"), _exact, 0.0),
    _Column("preemptible", attrgetter("job.preemptible"), _flag, True),
    _Column("limit_s", attrgetter("job.limit_s"), _number, math.inf),
)


@contextmanager
def _text_file(path: Path) -> Iterator[TextIO]:
    if str(path).startswith(BUILTIN):
        raise ConfigError(f"{path}: comes with Farside", hint="name another file to write to")
    try:
        if is_stream(path):
            with path.open("w", encoding="utf-8", newline="") as file:  # a pipe, /dev/stdout
                yield file
            return
        with replacing(path) as place, place.open("xb") as raw, _packed(path, raw) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="name a file that can be written") from error


@contextmanager
def _packed(path: Path, raw: io.BufferedWriter) -> Iterator[TextIO]:
    if path.name.endswith(".gz"):
        # Neither name nor time in the header: the bytes depend on the jobs alone.
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
        ):
            yield file
    else:
        with io.TextIOWrapper(raw, encoding="utf-8", newline="") as file:
            yield file
