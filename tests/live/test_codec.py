"""Events as they stand in the store."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import RemoteProtocolError
from farside.scheduler.live.codec import TYPES, decode_event, encode_event
from farside.scheduler.live.event import VERSION, Gpu, JobStopping, JobSubmitted, NodeJoined, StopCause
from farside.scheduler.live.spec import JobSpec


@pytest.mark.parametrize(
    "event",
    [
        JobSubmitted(spec=JobSpec(argv=("a", "b"), env={"X": "1"}, after=("7",)), user="ann", uid=1000, count=3),
        JobStopping(job_id="7_1", start=2, cause=StopCause.PREEMPTED, reason="why", winner="8"),
        NodeJoined(node="n", boot_id="b", address="h", gpus=(Gpu(index=0, is_healthy=False),)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_back_as_it_was(event: JobSubmitted | JobStopping | NodeJoined) -> None:
    assert decode_event(*encode_event(event)) == event


def test_an_event_of_a_later_version_is_refused_and_not_misread() -> None:
    with pytest.raises(RemoteProtocolError, match="run the newer manager"):
        decode_event("JobPlaced", "{}", VERSION + 1)


def test_a_field_that_a_later_version_adds_is_skipped() -> None:
    kind, body = encode_event(JobStopping(job_id="7", start=2, cause=StopCause.PREEMPTED, reason="why"))
    more = msgspec.json.encode(msgspec.json.decode(body) | {"colour": "red"})

    assert decode_event(kind, more) == decode_event(kind, body)


@given(st.sampled_from([*TYPES, "Nonsense"]), st.binary(max_size=200))
def test_random_bytes_are_an_event_or_one_clear_error(kind: str, body: bytes) -> None:
    try:
        told = type(decode_event(kind, body)).__name__
    except RemoteProtocolError as error:
        told = str(error)

    assert told == kind or "\n" not in told
