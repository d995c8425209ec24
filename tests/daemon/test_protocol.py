"""The control protocol: handshake, order, bounds, and what a peer without the key can do (nothing)."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.daemon.control import messages as m
from farside.daemon.control.protocol import (
    IN_FLIGHT_MAX,
    LENGTH_MAX,
    LENGTH_MAX_STRANGER,
    NEED_DATA,
    Connection,
    Event,
    NeedData,
    Output,
    PeerClosed,
    PeerProved,
    Phase,
    Received,
    Side,
)
from farside.errors import LocalProtocolError, RemoteProtocolError

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
WELCOME = m.Welcome(session=7, slab_bytes=1 << 26, lease_expiry_s=30.0)


def borrower(keys: tuple[bytes, ...] = (KEY,)) -> Connection:
    return Connection(side=Side.BORROWER, keys=keys, nonce=b"b" * 32, node="b1", features=m.Feature(3))


def donor(keys: tuple[bytes, ...] = (KEY,)) -> Connection:
    return Connection(side=Side.DONOR, keys=keys, nonce=b"d" * 32, node="d1", features=m.Feature.SHM)


def only_event(connection: Connection, data: bytes) -> Event:
    connection.receive(data)
    event = connection.next_event()
    assert not isinstance(event, NeedData)
    return event


def output(connection: Connection, data: bytes) -> bytes:
    event = only_event(connection, data)
    assert isinstance(event, Output)
    return event.data


def message(connection: Connection, data: bytes) -> m.Message:
    event = only_event(connection, data)
    assert isinstance(event, Received)
    return event.message


@dataclass
class Pair:
    borrower: Connection
    donor: Connection


def proved(b: Connection, d: Connection, role: m.Role = "control") -> Pair:
    auth = output(b, output(d, b.start(role=role, session=3, worker=2, epoch=9)))
    assert isinstance(only_event(d, auth), PeerProved)
    return Pair(b, d)


def open_pair(role: m.Role = "control") -> Pair:
    pair = proved(borrower(), donor(), role)
    assert message(pair.borrower, pair.donor.send(WELCOME)) == WELCOME
    return pair


LEASE = m.Lease(lease=3, token=2**63, rkey=4, addr=5, length=1 << 26, epoch=6)
FREE = m.FreeMem(free_slabs=1, used_bytes=2, total_bytes=3, headroom_bytes=4, slab_bytes=5)
ASKED = [
    (m.QueryMem(device="swap0"), FREE),
    (m.KeepAlive(), FREE),
    (m.Map(device="swap0", count=3), m.MrInfo(leases=(LEASE, LEASE))),
    (m.Resume(device="swap0", leases=((1, 2**63), (2, 5))), m.MrInfo(leases=())),
    (m.Release(leases=(1, 2)), m.Ok()),
    (m.Done(lease=1, moved_pages=2, dropped_pages=3), m.Ok()),
    (m.Map(device="swap0"), m.Error(code=m.ErrorCode.QUOTA, message="full")),
]
TOLD = [m.CheckActivity(leases=(1, 2)), m.Migrate(leases=(1,), deadline_s=5.0), m.Evict(leases=(2,), deadline_s=0.5)]


# ---- handshake


def test_each_side_proves_the_key_before_a_session_begins() -> None:
    b, d = borrower(), donor()

    hello = b.start()
    reply = output(d, hello)
    auth = output(b, reply)
    event = only_event(d, auth)
    welcome = d.send(WELCOME)

    assert isinstance(event, PeerProved)
    assert event.hello.node == "b1"
    assert message(b, welcome) == WELCOME
    assert b.phase is d.phase is Phase.OPEN
    assert b.features == d.features == m.Feature.SHM


def test_a_donor_with_another_key_is_found_out_by_the_borrower() -> None:
    b = borrower()
    impostor = donor((OTHER_KEY,))
    impostor._keys = {next(iter(b._keys)): OTHER_KEY}  # claims the right key's name
    reply = output(impostor, b.start())

    b.receive(reply)
    with pytest.raises(RemoteProtocolError, match="donor's proof is wrong") as caught:
        b.next_event()

    assert caught.value.code == m.ErrorCode.AUTH


def test_a_borrower_with_another_key_is_refused_at_its_proof() -> None:
    impostor, d = borrower((OTHER_KEY,)), donor()
    impostor._keys = {next(iter(d._keys)): OTHER_KEY}
    output(d, impostor.start())

    impostor._key = OTHER_KEY
    d.receive(impostor._frame(m.Auth(proof=b"x" * 32), 0))
    with pytest.raises(RemoteProtocolError, match="borrower's proof is wrong") as caught:
        d.next_event()

    assert caught.value.code == m.ErrorCode.AUTH
    assert message(borrower_waiting(), d.farewell(m.ErrorCode.AUTH, "no")) == m.Error(code=0, message="no")


def borrower_waiting() -> Connection:
    b = borrower()
    b.start()
    return b


def test_no_common_key_is_told_without_naming_keys() -> None:
    d = donor((OTHER_KEY,))
    d.receive(borrower().start())

    with pytest.raises(RemoteProtocolError, match="no common key"):
        d.next_event()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [((KEY, OTHER_KEY), (OTHER_KEY,)), ((OTHER_KEY,), (KEY, OTHER_KEY)), ((KEY, OTHER_KEY), (OTHER_KEY, KEY))],
)
def test_two_keys_in_force_let_old_and_new_nodes_talk(ours: tuple[bytes, ...], theirs: tuple[bytes, ...]) -> None:
    pair = proved(borrower(theirs), donor(ours))

    assert message(pair.borrower, pair.donor.send(WELCOME)) == WELCOME


def test_the_donor_prefers_the_first_of_its_own_keys() -> None:
    d = donor((OTHER_KEY, KEY))

    output(d, borrower((KEY, OTHER_KEY)).start())

    assert d.reply is not None
    assert d.reply.key_id == next(iter(d._keys))


def test_no_common_version_is_refused_with_both_ranges() -> None:
    b, d = borrower(), donor()
    b.start()
    assert b.hello is not None
    future = msgspec.structs.replace(b.hello, version_min=5, version_max=9)

    d.receive(b._frame(future, 0))
    with pytest.raises(RemoteProtocolError, match="5 to 9, we 1 to 1") as caught:
        d.next_event()

    assert caught.value.code == m.ErrorCode.VERSION


def test_a_hello_with_fields_of_a_later_version_is_understood() -> None:
    b, d = borrower(), donor()
    b.start()
    assert b.hello is not None
    body = msgspec.msgpack.encode([*msgspec.structs.astuple(b.hello), "something new"])
    b._hello_body = body
    head = (8 + len(body)).to_bytes(4, "little") + (1).to_bytes(2, "little") + (1).to_bytes(2, "little") + bytes(4)

    auth = output(b, output(d, head + body))

    assert isinstance(only_event(d, auth), PeerProved)


def test_a_changed_offer_does_not_survive_the_proofs() -> None:
    b, d = borrower(), donor()
    hello = b.start()
    weaker = hello.replace(b"b1", b"b2")

    reply = output(d, weaker)

    b.receive(reply)
    with pytest.raises(RemoteProtocolError, match="proof"):
        b.next_event()


def test_a_donor_may_refuse_a_proved_borrower() -> None:
    pair = proved(borrower(), donor())

    refusal = pair.donor.send(m.Error(code=m.ErrorCode.SESSION, message="no such session"))

    assert message(pair.borrower, refusal) == m.Error(code=9, message="no such session")
    assert pair.borrower.phase is pair.donor.phase is Phase.CLOSED


@pytest.mark.parametrize("frames", [1, 2])
def test_the_code_of_an_error_that_nobody_has_proved_is_not_believed(frames: int) -> None:
    b, d = borrower(), donor()
    hello = b.start()
    if frames == 2:
        output(b, output(d, hello))  # the borrower has said AUTH, and waits for WELCOME
    body = msgspec.msgpack.encode(m.Error(code=m.ErrorCode.SESSION, message="no such session"))
    stranger = (8 + len(body)).to_bytes(4, "little") + b"\x01\x00\x05\x00" + bytes(4) + body

    heard = message(b, stranger)

    assert heard == m.Error(code=0, message="no such session")
    assert b.phase is Phase.CLOSED


def test_a_borrower_that_is_refused_without_a_message_hears_the_code_of_the_farewell() -> None:
    pair = proved(borrower(), donor())

    farewell = pair.donor.farewell(m.ErrorCode.SESSION, "no such session of yours")

    assert message(pair.borrower, farewell) == m.Error(code=9, message="no such session of yours")


def test_nothing_is_kept_of_what_comes_after_a_farewell() -> None:
    pair = open_pair()
    farewell = pair.borrower.farewell(m.ErrorCode.MALFORMED, "bye")

    assert message(pair.donor, farewell + bytes(100)) == m.Error(code=3, message="bye")
    pair.donor.receive(bytes(1 << 20))

    assert pair.donor.next_event() is NEED_DATA
    assert pair.donor.unread == b""


def test_nothing_but_a_decision_is_sent_before_welcome() -> None:
    pair = proved(borrower(), donor())

    with pytest.raises(LocalProtocolError, match="WELCOME or ERROR"):
        pair.donor.send(m.CheckActivity(leases=(1,)))
    with pytest.raises(LocalProtocolError, match="DECISION"):
        pair.borrower.send(m.KeepAlive())


def test_bytes_before_welcome_are_refused() -> None:
    pair = proved(borrower(), donor(), "data")

    pair.donor.receive(b"FRQ1")

    with pytest.raises(RemoteProtocolError, match="before WELCOME"):
        pair.donor.next_event()


def test_a_data_connection_ends_exactly_at_welcome() -> None:
    pair = proved(borrower(), donor(), "data")
    welcome = pair.donor.send(WELCOME)

    assert message(pair.borrower, welcome + b"raw") == WELCOME
    assert pair.borrower.unread == b"raw"
    assert pair.borrower.next_event() is NEED_DATA
    assert pair.donor.phase is Phase.HANDED_OVER
    with pytest.raises(LocalProtocolError, match="HANDED_OVER"):
        pair.borrower.send(m.KeepAlive())


# ---- messages


@pytest.mark.parametrize(("question", "answer"), ASKED, ids=lambda value: type(value).__name__)
def test_a_request_and_its_answer_come_through_whole(question: m.Message, answer: m.Message) -> None:
    pair = open_pair()

    asked = only_event(pair.donor, pair.borrower.send(question))
    assert isinstance(asked, Received)
    answered = only_event(pair.borrower, pair.donor.send(answer, reply_to=asked.seq))

    assert asked.message == question
    assert answered == Received(seq=pair.borrower.last_seq, message=answer)


@pytest.mark.parametrize("told", TOLD, ids=lambda value: type(value).__name__)
def test_what_a_donor_asks_comes_through_whole(told: m.Message) -> None:
    pair = open_pair()

    heard = only_event(pair.borrower, pair.donor.send(told))

    assert heard == Received(seq=0x8000_0001, message=told)


def test_activity_answers_check_activity() -> None:
    pair = open_pair()
    asked = only_event(pair.borrower, pair.donor.send(m.CheckActivity(leases=(1, 2))))
    assert isinstance(asked, Received)

    answer = m.Activity(activity=((1, 0.5), (2, 100.0)))

    assert message(pair.donor, pair.borrower.send(answer, reply_to=asked.seq)) == answer


def test_answers_may_come_in_any_order() -> None:
    pair = open_pair()
    pair.donor.receive(pair.borrower.send(m.QueryMem()) + pair.borrower.send(m.Release(leases=(1,))))
    first, second = pair.donor.next_event(), pair.donor.next_event()
    assert isinstance(first, Received)
    assert isinstance(second, Received)

    ok, free = pair.donor.send(m.Ok(), reply_to=second.seq), pair.donor.send(FREE, reply_to=first.seq)

    assert message(pair.borrower, ok) == m.Ok()
    assert message(pair.borrower, free) == FREE


def test_one_side_cannot_send_what_is_the_others() -> None:
    pair = open_pair()

    with pytest.raises(LocalProtocolError, match="does not ask Evict"):
        pair.borrower.send(m.Evict(leases=(1,), deadline_s=1.0))
    with pytest.raises(LocalProtocolError, match="does not ask Map"):
        pair.donor.send(m.Map(device=""))
    with pytest.raises(LocalProtocolError, match="answers no request"):
        pair.donor.send(FREE, reply_to=1)


def test_an_answer_of_the_wrong_type_is_refused() -> None:
    pair = open_pair()
    pair.borrower.send(m.QueryMem())

    pair.borrower.receive(pair.donor._frame(m.Ok(), 1))

    with pytest.raises(RemoteProtocolError, match="Ok answers QueryMem"):
        pair.borrower.next_event()


def test_an_answer_to_nothing_is_refused() -> None:
    pair = open_pair()

    pair.borrower.receive(pair.donor._frame(FREE, 1))

    with pytest.raises(RemoteProtocolError, match="FreeMem answers nothing"):
        pair.borrower.next_event()


def test_a_borrower_that_never_reads_is_stopped_at_the_bound() -> None:
    pair = open_pair()
    requests = [pair.borrower.send(m.QueryMem()) for _ in range(IN_FLIGHT_MAX)]

    pair.donor.receive(b"".join(requests))
    events = [pair.donor.next_event() for _ in requests]

    assert all(isinstance(event, Received) for event in events)
    with pytest.raises(LocalProtocolError, match="wait for an answer"):
        pair.borrower.send(m.QueryMem())
    pair.donor.receive(pair.borrower._frame(m.QueryMem(), IN_FLIGHT_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="in flight"):
        pair.donor.next_event()


# ---- what is done to frames on the way


def edited(change: Callable[[bytes], bytes]) -> None:
    pair = open_pair()
    frame = pair.borrower.send(m.Release(leases=(1, 2, 3)))
    pair.donor.receive(change(frame))
    with pytest.raises(RemoteProtocolError) as caught:
        pair.donor.next_event()
    assert caught.value.code in (m.ErrorCode.AUTH, m.ErrorCode.MALFORMED)
    with pytest.raises(LocalProtocolError, match="broken"):
        pair.donor.next_event()


@given(data=st.data())
def test_a_frame_changed_anywhere_is_refused(data: st.DataObject) -> None:
    size = len(open_pair().borrower.send(m.Release(leases=(1, 2, 3))))
    place = data.draw(st.integers(4, size - 1))
    flip = data.draw(st.integers(1, 255))

    edited(lambda frame: frame[:place] + bytes([frame[place] ^ flip]) + frame[place + 1 :])


def test_a_frame_that_comes_twice_is_refused() -> None:
    pair = open_pair()
    frame = pair.borrower.send(m.KeepAlive())
    only_event(pair.donor, frame)

    pair.donor.receive(frame)

    with pytest.raises(RemoteProtocolError, match="message code"):
        pair.donor.next_event()


def test_a_frame_from_another_connection_is_refused() -> None:
    recorded = open_pair().borrower.send(m.KeepAlive())
    d = Connection(side=Side.DONOR, keys=(KEY,), nonce=b"n" * 32, node="d1")
    pair = proved(borrower(), d)
    pair.donor.send(WELCOME)

    pair.donor.receive(recorded)

    with pytest.raises(RemoteProtocolError, match="message code"):
        pair.donor.next_event()


def test_a_frame_sent_back_to_its_sender_is_refused() -> None:
    pair = open_pair()

    pair.borrower.receive(pair.borrower.send(m.KeepAlive()))

    with pytest.raises(RemoteProtocolError, match="message code"):
        pair.borrower.next_event()


def test_a_dropped_frame_is_noticed_at_the_next() -> None:
    pair = open_pair()
    pair.borrower.send(m.KeepAlive())

    pair.donor.receive(pair.borrower.send(m.KeepAlive()))

    with pytest.raises(RemoteProtocolError, match="message code"):
        pair.donor.next_event()


@pytest.mark.parametrize("length", [0, 7, LENGTH_MAX_STRANGER + 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_its_bytes_come(length: int) -> None:
    d = donor()

    d.receive(length.to_bytes(4, "little"))

    with pytest.raises(RemoteProtocolError, match="may be"):
        d.next_event()


def test_a_known_peer_may_send_longer_frames_up_to_a_bound() -> None:
    pair = open_pair()

    pair.donor.receive(LENGTH_MAX.to_bytes(4, "little"))
    assert pair.donor.next_event() is NEED_DATA

    pair = open_pair()
    pair.donor.receive((LENGTH_MAX + 1).to_bytes(4, "little"))
    with pytest.raises(RemoteProtocolError, match="may be"):
        pair.donor.next_event()


def test_an_unknown_type_is_refused() -> None:
    d = donor()

    d.receive((8).to_bytes(4, "little") + b"\x01\x00" + b"\xff\x00" + bytes(4))

    with pytest.raises(RemoteProtocolError, match="unknown frame type 255"):
        d.next_event()


def test_a_close_between_frames_is_an_event_and_inside_one_a_fault() -> None:
    pair = open_pair()
    frame = pair.borrower.send(m.KeepAlive())

    assert isinstance(only_event(pair.borrower, b""), PeerClosed)
    pair.donor.receive(frame[:-1])
    pair.donor.receive(b"")
    with pytest.raises(RemoteProtocolError, match="middle of a frame"):
        pair.donor.next_event()


def test_a_farewell_ends_the_connection_on_both_sides() -> None:
    pair = open_pair()

    farewell = pair.donor.farewell(m.ErrorCode.NOT_NOW, "going away")

    assert message(pair.borrower, farewell) == m.Error(code=8, message="going away")
    assert pair.borrower.phase is pair.donor.phase is Phase.CLOSED
    assert pair.donor.farewell(m.ErrorCode.NOT_NOW, "again") == b""


# ---- any bytes at all


def drain(connection: Connection) -> list[Event]:
    events: list[Event] = []
    while len(events) < 10_000:
        event = connection.next_event()
        if event is NEED_DATA or isinstance(event, PeerClosed):
            return events
        assert not isinstance(event, NeedData)
        events.append(event)
    raise AssertionError("events without end")


def feed(connection: Connection, chunks: list[bytes]) -> tuple[list[Event], str]:
    events: list[Event] = []
    try:
        for chunk in chunks:
            connection.receive(chunk)
            events += drain(connection)
    except RemoteProtocolError as error:
        return events, str(error)
    return events, ""


@given(junk=st.binary(max_size=300), side=st.sampled_from([Side.BORROWER, Side.DONOR]), opened=st.booleans())
def test_any_bytes_give_events_or_a_remote_error(junk: bytes, side: Side, opened: bool) -> None:
    connection = {Side.BORROWER: borrower_waiting, Side.DONOR: donor}[side]()
    if opened:
        pair = open_pair()
        connection = pair.borrower if side is Side.BORROWER else pair.donor

    feed(connection, [junk])


@given(kind=st.sampled_from(sorted(m.TYPES)), body=st.binary(max_size=200), seq=st.integers(0, 2**32 - 1))
def test_any_body_of_a_proved_peer_gives_an_event_or_a_remote_error(kind: int, body: bytes, seq: int) -> None:
    for target in ("borrower", "donor"):
        pair = open_pair()
        receiver, sender = (pair.borrower, pair.donor) if target == "borrower" else (pair.donor, pair.borrower)
        assert sender._codes_out is not None
        content = (24 + len(body)).to_bytes(4, "little") + b"\x01\x00" + kind.to_bytes(2, "little")
        content += seq.to_bytes(4, "little") + body

        feed(receiver, [content + sender._codes_out.code(content)])


def conversation() -> tuple[Connection, bytes]:
    """A fresh donor, and all that a borrower would send it (its nonces are fixed, so the bytes are too)."""
    b, d = borrower(), donor()
    hello = b.start()
    auth = output(b, output(d, hello))
    only_event(d, auth)
    message(b, d.send(WELCOME))
    return donor(), hello + auth + b"".join(b.send(question) for question, _ in ASKED)


def listen(d: Connection, chunks: list[bytes]) -> list[Event]:
    events: list[Event] = []
    for chunk in chunks:
        d.receive(chunk)
        while (event := d.next_event()) is not NEED_DATA:
            assert not isinstance(event, NeedData)
            events.append(event)
            if isinstance(event, PeerProved):
                d.send(WELCOME)
    return events


def test_where_the_bytes_are_split_does_not_matter() -> None:
    _, data = conversation()
    hello_auth = len(conversation_handshake())
    whole = listen(donor(), [data[:hello_auth], data[hello_auth:]])

    for place in range(1, len(data)):
        cuts = sorted({place, hello_auth})
        chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert listen(donor(), chunks) == whole
    assert len(whole) == 2 + len(ASKED)


def conversation_handshake() -> bytes:
    b, d = borrower(), donor()
    hello = b.start()
    return hello + output(b, output(d, hello))


# ---- every message


U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
DEVICE = st.text(max_size=256)
REQUESTS: st.SearchStrategy[m.Message] = st.one_of(
    st.builds(m.QueryMem, device=DEVICE),
    st.builds(m.Map, device=DEVICE, count=st.integers(1, m.LEASES_MAX)),
    st.builds(m.Resume, device=DEVICE, leases=st.lists(st.tuples(U32, U64), max_size=m.LEASES_MAX).map(tuple)),
    st.builds(m.Release, leases=st.lists(U32, min_size=1, max_size=m.LEASES_MAX).map(tuple)),
    st.builds(m.Done, lease=U32, moved_pages=U32, dropped_pages=U32),
)


@given(question=REQUESTS)
def test_every_value_of_a_request_comes_through(question: m.Message) -> None:
    pair = open_pair()

    assert message(pair.donor, pair.borrower.send(question)) == question


def test_the_largest_message_fits_a_frame() -> None:
    largest = m.Lease(lease=2**32 - 1, token=2**64 - 1, rkey=2**32 - 1, addr=2**64 - 1, length=2**63, epoch=2**32 - 1)
    pair = open_pair()
    asked = only_event(pair.donor, pair.borrower.send(m.Map(device="", count=m.LEASES_MAX)))
    assert isinstance(asked, Received)

    answer = m.MrInfo(leases=(largest,) * m.LEASES_MAX)

    assert message(pair.borrower, pair.donor.send(answer, reply_to=asked.seq)) == answer


def test_numbers_that_a_receiver_would_refuse_are_found_when_they_come() -> None:
    pair = open_pair()

    pair.donor.receive(pair.borrower.send(m.Map(device="", count=m.LEASES_MAX + 1)))

    with pytest.raises(RemoteProtocolError, match="Map"):
        pair.donor.next_event()
