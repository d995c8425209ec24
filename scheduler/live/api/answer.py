"""Answers: JSON by msgspec. The framework's own encoder takes far longer for a long list of jobs."""

import msgspec
from fastapi import Response

from farside.scheduler.live.record import LiveJob
from farside.scheduler.live.view import show_job

_ENCODER = msgspec.json.Encoder()


def answer(value: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_ENCODER.encode(value), status_code=status, media_type="application/json")


class Rows:
    """Jobs as JSON, kept: ten thousand wait, and few of them are others than a moment ago."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[LiveJob, msgspec.Raw]] = {}

    def row(self, job: LiveJob) -> msgspec.Raw:
        """`show_job` of a job, to be put into an `answer`. A record never changes: another one is another object."""
        kept = self._kept.get(job.job_id)
        if kept is None or kept[0] is not job:
            kept = self._kept[job.job_id] = job, msgspec.Raw(_ENCODER.encode(show_job(job)))
        return kept[1]
