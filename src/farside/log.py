"""Structured logs: one line for an event, with a short message and named fields, to stderr or the journal.

    log = get_log("daemon")
    log.info("slab lent", lease=7, borrower="node3")

On a terminal or in a file a line is logfmt with its time; with ``FARSIDE_LOG=json`` it is a JSON object. Where systemd
has connected stderr to the journal (JOURNAL_STREAM) the time is left out and the priority put before, as sd-daemon(3)
says. A message says what happened; what it happened to goes into the fields.
"""

import atexit
import json
import logging
import logging.handlers
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

ROOT = "farside"
# syslog's numbers, see sd-daemon(3)
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_FIELDS = "farside_fields"
BEHIND_MAX = 1000  # lines that may wait to be written; about half a MiB
KINDS_MAX = 4096  # default: of lines that are told rarely, at once
_LAST_BYTES = 4096
_LAST_WORDS_S = 1.0  # for them to be written when the process ends


class Log:
    """What a component writes to; one for each name."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, *, cause: BaseException | None = None, **fields: object) -> None:
        """Tells what only a developer wants to know; with the traceback of ``cause``."""
        self._tell(logging.DEBUG, message, fields, cause)

    def info(self, message: str, **fields: object) -> None:
        """Tells what an operator may want to know later."""
        self._tell(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Tells what went wrong and was dealt with."""
        self._tell(logging.WARNING, message, fields)

    def error(self, message: str, *, cause: BaseException | None = None, **fields: object) -> None:
        """Tells what went wrong and was not; with the traceback of ``cause`` where that is a fault of ours."""
        self._tell(logging.ERROR, message, fields, cause)

    def _tell(self, level: int, message: str, fields: Mapping[str, object], cause: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={_FIELDS: fields}, exc_info=cause)


class Rarely:
    """Lets one line of each kind through in a while, and counts the others: what strangers send fills no log."""

    def __init__(
        self, period_s: float = 60.0, kinds_max: int = KINDS_MAX, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._period_s, self._kinds_max, self._now_s = period_s, kinds_max, now_s
        self._told: dict[object, tuple[float, int]] = {}  # when it may come again, and how many did not come
        self.crowded_out = 0
        """How many were left out that are of none of these kinds, as there were kinds enough."""

    def may(self, kind: object) -> int | None:
        """How many of this kind were left out since the last one; None: this one is left out too."""
        now_s = self._now_s()
        again_s, left_out = self._told.get(kind, (-math.inf, 0))
        if now_s < again_s:
            self._told[kind] = again_s, left_out + 1
            return None
        if len(self._told) >= self._kinds_max:
            self._told = {one: told for one, told in self._told.items() if now_s < told[0]}
        if len(self._told) >= self._kinds_max:  # of more kinds than anybody reads none is new
            self.crowded_out += 1
            return None
        self._told[kind] = now_s + self._period_s, 0
        return left_out


class RareFilter(logging.Filter):
    """For a logger of somebody else's that says a line for each of a stranger's mistakes."""

    def __init__(self) -> None:
        super().__init__()
        self._rarely = Rarely()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is let through; if so, with how many like it were not."""
        fault = record.exc_info[0] if record.exc_info else None
        left_out = self._rarely.may((record.name, record.msg, fault))
        if left_out:
            record.msg = f"{record.getMessage().strip()} ({left_out} more like it in the last while)"
            record.args = ()
        return left_out is not None


def get_log(name: str) -> Log:
    """The log of a component, such as ``daemon`` or ``blockdev.peers``."""
    return Log(logging.getLogger(f"{ROOT}.{name}"))


def start_logging(level: str, *, stream: TextIO | None = None) -> None:
    """Sends every log of this process to ``stream`` (stderr) from ``level`` (such as "info") on. May be repeated."""
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(out))
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())


def write_behind() -> None:
    """Have a thread write what is logged from now on, so that logging never waits. Call it after `start_logging`.

    For processes that others' memory waits for: a disk, or a journal that is swapped out, may itself wait for them. Of
    lines that find BEHIND_MAX before them only the count is kept, and logged later.
    """
    root = logging.getLogger(ROOT)
    if any(isinstance(handler, _Behind) for handler in root.handlers):
        return
    lines: queue.Queue[logging.LogRecord | None] = queue.Queue(BEHIND_MAX)
    writer = threading.Thread(target=_write, args=(lines, tuple(root.handlers)), name="fs-log", daemon=True)
    root.handlers[:] = [_Behind(lines)]
    writer.start()
    atexit.register(_write_the_rest, lines, writer)


def last_line(file: Path) -> str:
    """Last line of a log that another process wrote; empty: it wrote none, or none can be read.

    Without the frame that Python draws round exceptions of a group.
    """
    try:
        lines = file.read_bytes()[-_LAST_BYTES:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next(filter(None, (line.strip(" |+-") for line in reversed(lines))), "")


def is_journal(stream: TextIO, told: str) -> bool:
    """True when ``told`` (JOURNAL_STREAM, "device:inode") names the very file behind the stream."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return told == f"{status.st_dev}:{status.st_ino}"


def _formatter(stream: TextIO) -> logging.Formatter:
    if os.environ.get("FARSIDE_LOG") == "json":
        return _JsonFormatter()
    return _TextFormatter(journal=is_journal(stream, os.environ.get("JOURNAL_STREAM", "")))


class _Behind(logging.handlers.QueueHandler):
    """Puts records into a queue, or counts them where it is full."""

    _lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # for a thread of this process: as it is, with its traceback

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                told = f"{self._lost} lines before this one were not written: their reader was too slow"
                self.queue.put_nowait(logging.LogRecord(f"{ROOT}.log", logging.WARNING, "", 0, told, None, None))
                self._lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost += 1


def _write(lines: "queue.Queue[logging.LogRecord | None]", handlers: tuple[logging.Handler, ...]) -> None:
    while (record := lines.get()) is not None:
        for handler in handlers:
            handler.handle(record)


def _write_the_rest(lines: "queue.Queue[logging.LogRecord | None]", writer: threading.Thread) -> None:
    try:
        lines.put(None, timeout=_LAST_WORDS_S)
    except queue.Full:
        return
    writer.join(_LAST_WORDS_S)


class _TextFormatter(logging.Formatter):
    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_logfmt(value)}" for name, value in _fields(record).items())
        line = f"{_component(record)}: {_one_line(record.getMessage())}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if not self._journal:
            return f"{_time(record)} {record.levelname.lower():<7} {line}"
        priority = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(priority + part for part in line.splitlines())


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "component": _component(record),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, _FIELDS, {})
    return fields


def _component(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{ROOT}.")


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _logfmt(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # What a peer sent may hold anything: quoting keeps a line one line.
    plain = text.isprintable() and text and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
