"""Philly's ``cluster_job_log``: a JSON list of jobs, each with its attempts.

A job has jobid, user, vc, status (Pass, Killed, Failed), submitted_time and attempts; an attempt has start_time,
end_time and detail, a list of machines with ``ip`` and ``gpus``. Times are dates of local time. A job may have no
attempt, and an attempt no start or end; without the end of its last attempt a job was still running.

What we make of it, by the operator's choice:
  whole   One job, as long as from the first start to the last end, with what it waited between attempts: so later
          simulators and the published results have it.
  each    One job an attempt, submitted when the attempt before it ended (the first: when the job was). Its id is the
          job's with a stroke and the attempt's number, its name the job's id. An attempt without times is left out.

Nothing says how many GPUs were asked for: it is the most that an attempt had.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from farside.scheduler.sim.trace.format.json_objects import read_objects
from farside.scheduler.sim.trace.format.row import (
    MAX_DURATION_S,
    MAX_GPUS,
    BadRow,
    Item,
    LeftOut,
    Problem,
    TimeLine,
    is_missing,
    plain,
    shown,
)
from farside.scheduler.sim.trace.format.source import Source
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, logged_of, status_of
from farside.scheduler.state import Job

_NO_ATTEMPT = LeftOut("left out: no attempt is recorded")
_NO_START = LeftOut("left out: no start is recorded")
_NO_END = LeftOut("left out: no end is recorded, still running")
_NO_TIMES = LeftOut("left out: attempts without a start or an end")
_NO_GPU = LeftOut("left out: had no GPU")


@dataclass(frozen=True, slots=True)
class _Attempt:
    start_s: float | None
    end_s: float | None
    gpus: int


def read_philly_json(source: Source, attempts: str) -> Iterator[Item]:
    """Jobs of Philly's log, or their attempts where ``attempts`` is ``each``."""
    times = TimeLine()
    sequence = 0
    for line, entry in read_objects(source):
        try:
            for item in _items(_Entry(entry, line, times), attempts, sequence):
                sequence += 1
                yield item
        except BadRow as bad:
            yield Problem(line, bad.column, bad.reason, bad.fix)


class _Entry:
    """One job of the log."""

    def __init__(self, entry: object, line: int, times: TimeLine) -> None:
        self.fields = _object("", entry)
        self.line = line
        self.times = times

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadRow(key, f"{shown(str(value))} is no text", "put it into quotes")
        return plain(key, value.strip())

    def attempts(self) -> list[_Attempt]:
        return [self._attempt(_object("attempts", one)) for one in _list("attempts", self.fields.get("attempts"))]

    def _attempt(self, fields: Mapping[str, object]) -> _Attempt:
        machines = _list("detail", fields.get("detail"))
        gpus = sum(len(_list("gpus", _object("detail", machine).get("gpus"))) for machine in machines)
        if gpus > MAX_GPUS:
            raise BadRow("gpus", f"{gpus} GPUs", f"give at most {MAX_GPUS}")
        start_s, end_s = self._moment("start_time", fields), self._moment("end_time", fields)
        if start_s is not None and end_s is not None:
            _check_order(start_s, end_s)
        return _Attempt(start_s, end_s, gpus)

    def _moment(self, key: str, fields: Mapping[str, object]) -> float | None:
        value = fields.get(key)
        if value is None or (isinstance(value, str) and is_missing(value)):
            return None
        return self.times.moment(key, str(value))

    def submit_s(self) -> float:
        submit_s = self._moment("submitted_time", self.fields)
        if submit_s is None:
            raise BadRow("submitted_time", "is missing", "give YYYY-MM-DD HH:MM:SS")
        return submit_s


def _object(key: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise BadRow(key, f"{shown(str(value))} is no JSON object", "give what Philly's cluster_job_log has there")
    return cast("Mapping[str, object]", value)


def _list(key: str, value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(key, f"{shown(str(value))} is no JSON list", "give what Philly's cluster_job_log has there")
    return cast("list[object]", value)


def _check_order(start_s: float, end_s: float) -> None:
    if end_s < start_s:
        raise BadRow("end_time", f"is {start_s - end_s:.0f} s before start_time", "fix one of the two")
    if end_s - start_s > MAX_DURATION_S:
        raise BadRow("end_time", f"is {end_s - start_s:.0f} s after start_time", "fix one of the two")


def _items(entry: _Entry, attempts: str, sequence: int) -> list[Item]:
    job_id = entry.text("jobid")
    if not job_id:
        raise BadRow("jobid", "is empty", "give every job an id of its own")
    submit_s, tried = entry.submit_s(), entry.attempts()
    gpus = max((attempt.gpus for attempt in tried), default=0)
    if not tried or not gpus:
        return [_NO_GPU if tried else _NO_ATTEMPT]
    whole = Job(
        job_id=job_id,
        sequence=sequence,
        submit_s=submit_s,
        gpus=gpus,
        vc=entry.text("vc"),
        user=entry.text("user"),
    )
    return _each(entry, whole, tried) if attempts == "each" else [_whole(entry, whole, tried)]


def _whole(entry: _Entry, job: Job, tried: list[_Attempt]) -> Item:
    end_s = tried[-1].end_s
    start_s = next((attempt.start_s for attempt in tried if attempt.start_s is not None), None)
    if end_s is None or start_s is None:
        return _NO_START if start_s is None else _NO_END
    _check_order(start_s, end_s)
    return TraceJob(job=job, duration_s=end_s - start_s, line=entry.line)


def _each(entry: _Entry, whole: Job, tried: list[_Attempt]) -> list[Item]:
    found: list[Item] = []
    submit_s = whole.submit_s
    for number, attempt in enumerate(tried, 1):
        if attempt.start_s is None or attempt.end_s is None or not attempt.gpus:
            found.append(_NO_TIMES if attempt.gpus else _NO_GPU)
            continue
        job = Job(
            job_id=f"{whole.job_id}/{number}",
            sequence=whole.sequence + len(found),
            submit_s=submit_s,
            gpus=attempt.gpus,
            vc=whole.vc,
            user=whole.user,
            name=whole.job_id,
        )
        found.append(TraceJob(job=job, duration_s=attempt.end_s - attempt.start_s, line=entry.line))
        submit_s = max(submit_s, attempt.end_s)
    return found


def log_philly_json(source: Source) -> Iterator[Logged | LeftOut | Problem]:
    """Jobs of Philly's log, each as one from its first start to its last end, with what became of it."""
    times = TimeLine()
    for line, fields in read_objects(source):
        try:
            yield _logged(_Entry(fields, line, times))
        except BadRow as bad:
            yield Problem(line, bad.column, bad.reason, bad.fix)


def _logged(entry: _Entry) -> Logged | LeftOut:
    (item,) = _items(entry, "whole", 0)
    if not isinstance(item, TraceJob):
        assert isinstance(item, LeftOut)
        return item
    starts = (attempt.start_s for attempt in entry.attempts() if attempt.start_s is not None)
    word = entry.text("status")
    return logged_of(item, start_s=next(starts), status=status_of(word), status_word=word)
