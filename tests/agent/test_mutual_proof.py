"""Agent and manager prove themselves to each other by the node's token, which neither sends [H2]."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.mutual_proof import (
    NONCE_BYTES,
    CodedFrames,
    answer,
    check_answer,
    key_of,
    offer,
    read_offer,
)
from farside.agent.protocol import CloseCode
from farside.errors import RemoteProtocolError

KEY, OTHER = key_of("one-token"), key_of("another-token")
NONCES = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
FRAMES = st.lists(st.text(max_size=40), max_size=8)


def pair(ours: bytes = b"a" * NONCE_BYTES, theirs: bytes = b"m" * NONCE_BYTES) -> tuple[CodedFrames, CodedFrames]:
    """Both ends of a connection: the agent's, and the manager's."""
    offered = offer(KEY, ours)
    shown, manager = answer(KEY, read_offer(offered.text), theirs)
    return check_answer(KEY, offered, shown), manager


@given(ours=NONCES, theirs=NONCES, up=FRAMES, down=FRAMES)
def test_who_has_the_token_reads_what_the_other_sent(
    ours: bytes, theirs: bytes, up: list[str], down: list[str]
) -> None:
    agent, manager = pair(ours, theirs)

    assert [manager.open(agent.seal(frame)) for frame in up] == [frame.encode() for frame in up]
    assert [agent.open(manager.seal(frame)) for frame in down] == [frame.encode() for frame in down]


@given(ours=NONCES, theirs=NONCES)
def test_one_without_the_token_is_not_taken_for_the_manager(ours: bytes, theirs: bytes) -> None:
    offered = offer(KEY, ours)
    shown, _ = answer(OTHER, offered, theirs)

    with pytest.raises(RemoteProtocolError, match="not this cluster's manager"):
        check_answer(KEY, offered, shown)


@given(ours=NONCES, later=NONCES, theirs=NONCES)
def test_the_managers_answer_to_another_connection_proves_nothing(ours: bytes, later: bytes, theirs: bytes) -> None:
    shown, _ = answer(KEY, offer(KEY, ours), theirs)
    if later == ours:
        return

    with pytest.raises(RemoteProtocolError, match="not this cluster's manager"):
        check_answer(KEY, offer(KEY, later), shown)


@given(frame=st.text(max_size=40), at=st.integers(0, 10**6), bit=st.integers(0, 6))
def test_a_frame_of_which_one_bit_was_changed_is_refused(frame: str, at: int, bit: int) -> None:
    agent, manager = pair()
    sent = bytearray(manager.seal(frame).encode())
    sent[at % len(sent)] ^= 1 << bit

    with pytest.raises(RemoteProtocolError) as refused:
        agent.open(bytes(sent))

    assert refused.value.code == CloseCode.FORBIDDEN


def replayed(agent: CodedFrames, manager: CodedFrames) -> str:
    first = manager.seal("first")
    agent.open(first)
    return first


def reordered(agent: CodedFrames, manager: CodedFrames) -> str:
    manager.seal("first")
    return manager.seal("second")


def reflected(agent: CodedFrames, manager: CodedFrames) -> str:
    return agent.seal("first")


def of_another_connection(agent: CodedFrames, manager: CodedFrames) -> str:
    return pair(b"A" * NONCE_BYTES)[1].seal("first")


def without_a_code(agent: CodedFrames, manager: CodedFrames) -> str:
    return '{"v":1,"type":"welcome","generation":3000}'


@pytest.mark.parametrize("made", [replayed, reordered, reflected, of_another_connection, without_a_code])
def test_a_frame_that_is_not_the_next_of_the_peer_is_refused(made: Callable[[CodedFrames, CodedFrames], str]) -> None:
    agent, manager = pair()
    frame = made(agent, manager)

    with pytest.raises(RemoteProtocolError, match="no code of the peer that proved itself"):
        agent.open(frame)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "no proof: Farside-Proof is ''"),
        ("1", "no proof: Farside-Proof is '1'"),
        (f"1 {'0' * 16} {'0' * 63}", "no proof"),
        (f"1 {'0' * 16} {'G' * 64}", "no proof"),
        (f"1 {'0' * 16} {'0' * 64} more", "no proof"),
        ("7 whatever", "version 7 of the proof is not spoken here, only 1; bring manager and agents"),
        ("\n\x00" * 40, "no proof"),
    ],
)
def test_a_header_that_is_no_proof_is_refused_in_one_line(text: str, line: str) -> None:
    for read in (read_offer, lambda shown: check_answer(KEY, offer(KEY, b"a" * NONCE_BYTES), shown)):
        with pytest.raises(RemoteProtocolError) as refused:
            read(text)

        assert line in str(refused.value)
        assert "\n" not in str(refused.value)


@given(text=st.text(max_size=200))
def test_any_header_is_a_proof_or_refused(text: str) -> None:
    try:
        read_offer(text)
    except RemoteProtocolError:
        pass


def test_nothing_that_is_sent_has_the_token_or_its_hash() -> None:
    offered = offer(KEY, b"a" * NONCE_BYTES)
    shown, manager = answer(KEY, offered, b"m" * NONCE_BYTES)
    agent = check_answer(KEY, offered, shown)

    wire = offered.text + shown + manager.seal("{}") + agent.seal("{}")

    assert "one-token" not in wire
    assert KEY.hex() not in wire
