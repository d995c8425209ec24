"""Events as they stand in the store."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.messages import Gpu, Swap
from farside.errors import RemoteProtocolError
from farside.scheduler.manager.model.codec import TYPES, LaterVersion, decode_event, encode_event, tag_of
from farside.scheduler.manager.model.event import (
    VERSION,
    JobStarted,
    JobStopping,
    JobSubmitted,
    NodeJoined,
    StopCause,
    TaskChanged,
)
from farside.scheduler.manager.model.spec import JobSpec
from tests.live.facts import joined


@pytest.mark.parametrize(
    "event",
    [
        JobSubmitted(spec=JobSpec(argv=("a", "b"), env={"X": "1"}, after=("7",)), user="ann", uid=1000, count=3),
        JobStopping(job_id="7_1", start=2, cause=StopCause.PREEMPTED, reason="why", winner="8"),
        joined(
            "n", gpus=(Gpu(index=0, model="", healthy=False),), swap=Swap(size_bytes=2, own_bytes=1), users=("ann",)
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_back_as_it_was(event: JobSubmitted | JobStopping | NodeJoined) -> None:
    assert decode_event(*encode_event(event)) == event


def test_an_event_of_a_later_version_is_refused_and_not_misread() -> None:
    with pytest.raises(LaterVersion, match="run the newer manager"):
        decode_event("JobPlaced", "{}", VERSION + 1)


def test_what_the_version_before_wrote_is_read() -> None:
    """As version 1 wrote them: before roles, readiness and metered energy were told."""
    started = decode_event(
        "JobStarted",
        '{"job_id":"7","start":1,"tasks":[{"rank":0,"node":"n0","gpus":[0,1]}],"master_addr":"h","master_port":20007}',
        1,
    )
    stopping = decode_event("JobStopping", '{"job_id":"7","start":1,"cause":"node_lost","reason":"why"}', 1)
    ended = decode_event("TaskChanged", '{"node":"n0","job_id":"7","rank":0,"start":1,"phase":"exited"}', 1)

    assert isinstance(started, JobStarted)
    assert started.tasks[0].role == ""
    assert stopping == JobStopping(job_id="7", start=1, cause=StopCause.NODE_LOST, reason="why")
    assert isinstance(ended, TaskChanged)
    assert (ended.energy_j, ended.is_ready) == (0.0, False)


def test_a_field_that_a_later_version_adds_is_skipped() -> None:
    kind, body = encode_event(JobStopping(job_id="7", start=2, cause=StopCause.PREEMPTED, reason="why"))
    more = msgspec.json.encode(msgspec.json.decode(body) | {"colour": "red"})

    assert decode_event(kind, more) == decode_event(kind, body)


def test_text_that_is_no_utf8_is_one_clear_error() -> None:
    kind, body = encode_event(JobStopping(job_id="job", start=1, cause=StopCause.CANCELLED, reason=""))

    with pytest.raises(RemoteProtocolError, match="restore a backup"):
        decode_event(kind, body.encode().replace(b'"job"', b'"\xff\xfe"'))


@given(st.sampled_from([*TYPES, "Nonsense"]), st.binary(max_size=200))
def test_random_bytes_are_an_event_or_one_clear_error(kind: str, body: bytes) -> None:
    try:
        told = tag_of(type(decode_event(kind, body)))
    except RemoteProtocolError as error:
        told = str(error)

    assert told == kind or "\n" not in told
