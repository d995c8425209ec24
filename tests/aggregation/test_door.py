"""What is said before a lane begins: both ends prove the job's key, and nonsense ends the conversation only."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside import proof
from farside.agent.aggregator import door as module
from farside.agent.aggregator.door import (
    Answer,
    Attach,
    Caller,
    CopyFrom,
    Door,
    Feature,
    Hello,
    Invite,
    Pair,
    Refused,
    Request,
    Welcome,
)
from farside.agent.aggregator.layout import Tensor
from farside.agent.aggregator.plan import Run
from farside.errors import LocalProtocolError, PeerError, RemoteProtocolError

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
NONCES = b"c" * 32, b"d" * 32
TENSORS = tuple(Tensor(f"layer.{at}.weight", 1000 + at, "f32") for at in range(50))
ATTACH = Attach(
    number=1, rank=1, members=2, rule="adam", tensors=TENSORS, life=7, has_region=True,
    runs=(Run(first=0, count=50, owner=1, epoch=1),),
)  # fmt: skip
COPY = CopyFrom(number=1, old_number=0, members=2, rule="sum", tensors=TENSORS)
CUTS = st.lists(st.integers(1, 400), max_size=60)


def make_caller(key: bytes = KEY, request: Request | Pair = ATTACH, features: Feature = Feature.CODES) -> Caller:
    return Caller(key, job="j", start=3, nonce=NONCES[0], request=request, features=features)


def make_door(key: bytes = KEY, features: Feature = Feature.CODES) -> Door:
    def key_of(hello: Hello) -> bytes | Refused:
        return key if hello.job == "j" else Refused("no such job", is_final=False)

    return Door(key_of, NONCES[1], features)


Reply = Callable[[Door, Any], bytes]


def welcome(door: Door, _request: object) -> bytes:
    return door.welcome(Welcome(99, 5))


def refuse(line: str) -> Reply:
    def answer(door: Door, _request: Request) -> bytes:
        door.welcome(Welcome(99, 5))  # nobody sends it
        door.refuse(line)
        return door.to_send()

    return answer


def talk(caller: Caller, door: Door, answer: Reply, cuts: list[int] | None = None) -> Answer | None:
    """Both sides' bytes cross, cut anywhere; the caller's end, or None where the connection ends before."""
    sizes = iter(cuts or ())
    end: Answer | None = None
    for _turn in range(4):
        said = b""
        for part in parts(caller.to_send(), door, sizes):
            request = door.receive(part)
            if request is not None:
                said = answer(door, request)
        for part in parts(door.to_send() + said, caller, sizes):
            end = caller.receive(part)
        if end is not None:
            return end
    return None


def parts(data: bytes, reader: Caller | Door, sizes: Iterator[int] | None = None) -> Iterator[bytes]:
    """As much of it as the reader wants, in pieces of these sizes."""
    while data and reader.needed:
        count = min(reader.needed, next(sizes or iter(()), len(data)))
        part, data = data[:count], data[count:]
        yield part


@given(CUTS, st.sampled_from([ATTACH, COPY]))
def test_a_request_arrives_whole_however_it_is_cut(cuts: list[int], request: Request) -> None:
    seen: list[object] = []
    caller, door = make_caller(request=request), make_door()

    def answer(door: Door, found: object) -> bytes:
        seen.append(found)
        return welcome(door, found)

    end = talk(caller, door, answer, cuts)

    assert seen == [request]
    assert end == Welcome(99, 5)
    assert caller.needed == door.needed == 0


def test_whoever_lacks_the_key_is_refused_and_never_heard() -> None:
    # A key that has the right name, since names are public.
    def key_of(_hello: Hello) -> bytes:
        return OTHER_KEY

    with pytest.raises(PeerError, match="does not prove this job's key"):
        talk(make_caller(), Door(key_of, NONCES[1]), welcome)


def test_a_caller_without_the_key_gets_no_further_than_its_proof() -> None:
    door = make_door()
    for part in parts(make_caller().to_send(), door):
        door.receive(part)
    door.to_send()
    forged = msgspec.msgpack.encode(module.Proof(b"\0" * 32))

    for part in parts(len(forged).to_bytes(4, "little") + forged, door):
        assert door.receive(part) is None

    assert not door.is_proved
    assert door.needed == 0
    refused = msgspec.msgpack.decode(door.to_send()[4:], type=Refused)
    assert "does not prove the job's key" in refused.line


def test_an_unknown_job_is_refused_in_one_line() -> None:
    caller = Caller(KEY, job="other", start=3, nonce=NONCES[0], request=ATTACH)

    assert talk(caller, make_door(), welcome) == Refused("no such job", is_final=False)
    assert not caller.is_proved


def test_a_refusal_after_the_proof_is_one_line_and_bears_a_code() -> None:
    caller = make_caller()

    end = talk(caller, make_door(), refuse("rank 5\nof 2 " + "x" * 2000))

    assert isinstance(end, Refused)
    assert end.line.startswith("rank 5 of 2 x")
    assert len(end.line) <= module.LINE_BYTES_MAX
    assert caller.is_proved


def test_another_version_is_told_which_is_spoken() -> None:
    door = make_door()
    hello = msgspec.msgpack.encode(Hello(9, "j", 3, proof.key_id(KEY), NONCES[0]))

    door.receive(len(hello).to_bytes(4, "little"))
    door.receive(hello)

    refused = msgspec.msgpack.decode(door.to_send()[4:], type=Refused)
    assert refused.line == "the Aggregator speaks version 1, the job 9; let both have one Farside"


def test_both_ends_have_the_keys_of_codes_each_its_own_first() -> None:
    caller, door = make_caller(), make_door()

    talk(caller, door, welcome)

    assert len(caller.head_keys) == 32
    assert caller.head_keys[:16] != caller.head_keys[16:]
    assert door.head_keys == caller.head_keys[16:] + caller.head_keys[:16]


RDMA = Feature.CODES | Feature.RDMA


@pytest.mark.parametrize("has_rdma", [True, False])
def test_a_member_is_invited_to_make_a_queue_pair_and_told_what_came_of_it(has_rdma: bool) -> None:
    caller, door = make_caller(features=RDMA), make_door(features=RDMA)

    def invite(door: Door, _request: Request) -> bytes:
        assert door.has_rdma
        door.invite(77)
        return door.to_send()

    assert talk(caller, door, invite) == Invite(77)
    assert caller.was_invited
    end = [caller.receive(part) for part in parts(door.welcome(Welcome(99, 5, has_rdma)), caller)]
    assert end[-1] == Welcome(99, 5, has_rdma)


def test_a_member_is_heard_with_the_number_of_its_invitation() -> None:
    pair = Pair(77, 123)
    seen: list[object] = []

    def answer(door: Door, request: object) -> bytes:
        seen.append(request)
        return door.welcome(Welcome(99))

    assert talk(make_caller(request=pair, features=Feature.NONE), make_door(features=RDMA), answer) == Welcome(99)
    assert seen == [pair]


@pytest.mark.parametrize("features", [(RDMA, Feature.CODES), (Feature.CODES, RDMA)])
def test_nobody_is_invited_where_one_end_has_no_rdma(features: tuple[Feature, Feature]) -> None:
    caller, door = make_caller(features=features[0]), make_door(features=features[1])

    def invite(door: Door, _request: Request) -> bytes:
        assert not door.has_rdma
        door.invite(77)
        return door.to_send()

    with pytest.raises(RemoteProtocolError, match="Invite came out of turn"):
        talk(caller, door, invite)


@pytest.mark.parametrize(
    "features", [(Feature.NONE, Feature.CODES), (Feature.CODES, Feature.NONE), (Feature.NONE, Feature.NONE)]
)
def test_one_end_without_codes_is_talked_with_as_before(features: tuple[Feature, Feature]) -> None:
    caller, door = make_caller(features=features[0]), make_door(features=features[1])

    assert talk(caller, door, welcome) == Welcome(99, 5)
    assert caller.head_keys == door.head_keys == b""


def test_an_aggregator_that_would_join_tensors_that_stay_apart_is_asked_for_nothing() -> None:
    old = make_caller(features=Feature.CODES | Feature.APART), make_door(features=Feature.CODES)
    with pytest.raises(PeerError, match="too old for find_unused_parameters; update it, or attach without"):
        talk(*old, welcome)

    caller = make_caller(features=Feature.CODES | Feature.APART)
    assert talk(caller, make_door(features=Feature.CODES | Feature.APART), welcome) == Welcome(99, 5)


class _HelloBefore(msgspec.Struct, frozen=True, array_like=True, tag=1):
    version: int
    job: str
    start: int
    key_id: bytes
    nonce: bytes


class _ChallengeBefore(msgspec.Struct, frozen=True, array_like=True, tag=2):
    nonce: bytes
    proof: bytes


def test_the_version_before_reads_what_is_said_and_is_read() -> None:
    hello = Hello(1, "j", 3, proof.key_id(KEY), NONCES[0], 1)
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(hello), type=_HelloBefore)

    assert before == _HelloBefore(1, "j", 3, proof.key_id(KEY), NONCES[0])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=Hello).features == 0
    challenge = msgspec.msgpack.encode(_ChallengeBefore(NONCES[1], b"p" * 32))
    assert msgspec.msgpack.decode(challenge, type=module.Challenge).features == 0


@pytest.mark.parametrize("kind", [Hello, module.Challenge])
def test_who_takes_codes_away_from_what_is_said_ends_the_conversation(kind: type[msgspec.Struct]) -> None:
    caller, door = make_caller(), make_door()

    def crossed(data: bytes) -> bytes:
        message = msgspec.msgpack.decode(data[4:], type=kind)
        body = msgspec.msgpack.encode(msgspec.structs.replace(message, features=0))
        return len(body).to_bytes(4, "little") + body

    said = caller.to_send()
    for part in parts(crossed(said) if kind is Hello else said, door):
        door.receive(part)
    answer = door.to_send() if kind is Hello else crossed(door.to_send())
    caller.receive(answer[:4])

    with pytest.raises(PeerError, match="does not prove this job's key"):
        caller.receive(answer[4:])


@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    """Whoever sits between the two can end a conversation, and nothing else."""
    caller, door = make_caller(), make_door()
    seen: list[object] = []
    flip = data.draw(st.integers(0, 1 << 14))
    at = 0

    def crossed(message: bytes) -> bytes:
        nonlocal at
        begin, at = at, at + len(message)
        if begin <= flip < at:
            changed = bytearray(message)
            changed[flip - begin] ^= 1 << data.draw(st.integers(0, 7))
            return bytes(changed)
        return message

    end: Answer | None = None
    with_error = False
    try:
        for _turn in range(3):
            said = b""
            for part in parts(crossed(caller.to_send()), door):
                request = door.receive(part)
                if request is not None:
                    seen.append(request)
                    said = welcome(door, request)
            for part in parts(crossed(door.to_send() + said), caller):
                end = caller.receive(part)
    except (RemoteProtocolError, PeerError):
        with_error = True

    assert seen in ([], [ATTACH])
    if flip < at:
        assert with_error or not isinstance(end, Welcome)
    else:
        assert end == Welcome(99, 5)


@given(st.binary(min_size=1, max_size=3000))
def test_random_bytes_at_the_door_end_in_one_error(data: bytes) -> None:
    door = make_door()

    with suppress(RemoteProtocolError):
        for part in parts(data, door):
            assert door.receive(part) is None

    assert not door.is_proved


@given(st.binary(min_size=1, max_size=3000))
def test_random_bytes_from_an_aggregator_end_in_one_error(data: bytes) -> None:
    caller = make_caller()

    with suppress(RemoteProtocolError, PeerError):
        for part in parts(data, caller):
            assert not isinstance(caller.receive(part), Welcome)

    assert not caller.is_proved


def test_strangers_are_read_a_little_of() -> None:
    door = make_door()

    with pytest.raises(RemoteProtocolError, match="1024 are allowed"):
        door.receive((module.STRANGER_BYTES_MAX + 1).to_bytes(4, "little"))


def test_a_reader_that_takes_more_than_is_needed_is_stopped() -> None:
    with pytest.raises(LocalProtocolError):
        make_door().receive(b"12345")


def test_a_key_is_found_by_its_name() -> None:
    hello = Hello(1, "j", 3, proof.key_id(KEY), NONCES[0])

    assert proof.key_named([OTHER_KEY, KEY], hello.key_id) == KEY
    assert proof.key_named([OTHER_KEY], hello.key_id) is None
