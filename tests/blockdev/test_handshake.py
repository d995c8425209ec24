"""The NBD negotiation, driven with bytes alone."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.blockdev.client import handshake as h
from farside.blockdev.client.handshake import Export, Handshake, Info, Next, Option, Rep, Step, TlsRule

EXPORT = Export(name="swap0", description="remote memory", size_bytes=64 << 20)


def option(number: int, data: bytes = b"") -> bytes:
    return struct.pack(">QII", h.IHAVEOPT, number, len(data)) + data


def go_data(name: bytes = b"", *wants: int) -> bytes:
    return struct.pack(">I", len(name)) + name + struct.pack(f">H{len(wants)}H", len(wants), *wants)


def started(flags: int = 3, tls: TlsRule = TlsRule.NONE) -> Handshake:
    shake = Handshake(EXPORT, tls)
    assert shake.receive(struct.pack(">I", flags)).next is Next.READ
    return shake


def say(shake: Handshake, data: bytes) -> Step:
    """Feeds bytes as the handshake asks for them; returns the last step and insists that all were taken."""
    step = Step()
    while data:
        assert step.next is Next.READ
        part, data = data[: shake.needed()], data[shake.needed() :]
        sent = step.send
        step = shake.receive(part)
        step = Step(send=sent + step.send, next=step.next, reason=step.reason)
    return step


def replies(data: bytes) -> list[tuple[int, int, bytes]]:
    found = []
    while data:
        magic, number, kind, length = struct.unpack_from(">QIII", data)
        assert magic == h.REPLY_MAGIC
        found.append((number, kind, data[20 : 20 + length]))
        data = data[20 + length :]
    return found


def test_the_greeting_offers_fixed_newstyle_without_zeroes() -> None:
    assert Handshake(EXPORT).greeting() == b"NBDMAGICIHAVEOPT\x00\x03"


def test_go_names_size_flags_and_block_sizes_and_then_starts() -> None:
    shake = started()

    asked = say(shake, option(Option.GO, go_data(b"swap0")))
    step = shake.accept()

    assert asked.next is Next.ASKED
    assert step.next is Next.TRANSMIT
    told = replies(step.send)
    assert [kind for _, kind, _ in told] == [Rep.INFO, Rep.INFO, Rep.ACK]
    assert told[0][2] == struct.pack(">HQH", Info.EXPORT, 64 << 20, h.TRANSMISSION_FLAGS)
    assert told[1][2] == struct.pack(">HIII", Info.BLOCK_SIZE, 4096, 131072, 32 << 20)


def test_the_flags_are_what_the_engine_serves() -> None:
    names = {0: "flags", 2: "flush", 3: "fua", 5: "trim", 6: "zeroes", 8: "multi", 10: "cache"}

    assert sum(1 << bit for bit in names) == h.TRANSMISSION_FLAGS


@pytest.mark.parametrize("wanted", [Info.NAME, Info.DESCRIPTION])
def test_info_answers_what_was_asked_for_and_goes_on(wanted: Info) -> None:
    shake = started()

    step = say(shake, option(Option.INFO, go_data(b"", wanted)))

    text = {Info.NAME: b"swap0", Info.DESCRIPTION: b"remote memory"}[wanted]
    assert step.next is Next.READ
    assert (Option.INFO, Rep.INFO, struct.pack(">H", wanted) + text) in replies(step.send)
    assert replies(step.send)[-1][1] == Rep.ACK


@pytest.mark.parametrize(("flags", "length"), [(3, 10), (1, 134), (0, 134)])
def test_export_name_sends_zeroes_only_to_who_wants_them(flags: int, length: int) -> None:
    shake = started(flags)

    assert say(shake, option(Option.EXPORT_NAME, b"swap0")).next is Next.ASKED
    step = shake.accept()

    assert step.next is Next.TRANSMIT
    assert len(step.send) == length


def test_export_name_of_another_device_closes() -> None:
    step = say(started(), option(Option.EXPORT_NAME, b"other"))

    assert (step.next, step.send) == (Next.CLOSE, b"")


def test_go_of_another_device_is_answered_and_the_client_may_ask_again() -> None:
    shake = started()

    wrong = say(shake, option(Option.GO, go_data(b"other")))
    right = say(shake, option(Option.GO, go_data(b"")))

    assert replies(wrong.send)[0][1] == Rep.ERR_UNKNOWN
    assert right.next is Next.ASKED


def test_list_names_the_one_device() -> None:
    step = say(started(), option(Option.LIST))

    assert replies(step.send) == [
        (Option.LIST, Rep.SERVER, struct.pack(">I", 5) + b"swap0remote memory"),
        (Option.LIST, Rep.ACK, b""),
    ]


def test_list_with_data_is_invalid() -> None:
    assert replies(say(started(), option(Option.LIST, b"x")).send)[0][1] == Rep.ERR_INVALID


def test_abort_is_acknowledged_and_closes() -> None:
    step = say(started(), option(Option.ABORT))

    assert step.next is Next.CLOSE
    assert replies(step.send) == [(Option.ABORT, Rep.ACK, b"")]


@pytest.mark.parametrize("number", [Option.STARTTLS, Option.STRUCTURED_REPLY, 4, 9, 10, 11, 4711])
def test_what_we_do_not_speak_is_answered_as_unsupported(number: int) -> None:
    shake = started()

    step = say(shake, option(number))

    assert step.next is Next.READ
    assert replies(step.send)[0][:2] == (number, Rep.ERR_UNSUP)
    assert say(shake, option(Option.GO, go_data())).next is Next.ASKED


@pytest.mark.parametrize("number", [Option.STARTTLS, Option.STRUCTURED_REPLY])
def test_options_that_take_no_data_are_invalid_with_some(number: int) -> None:
    assert replies(say(started(), option(number, b"data")).send)[0][1] == Rep.ERR_INVALID


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", Rep.ERR_INVALID),
        (struct.pack(">IH", 7, 0), Rep.ERR_INVALID),
        (struct.pack(">IH", 0, 1), Rep.ERR_INVALID),
        (struct.pack(">IHH", 0, 0, 3), Rep.ERR_INVALID),
        (struct.pack(">I", 5000) + bytes(5000) + b"\0\0", Rep.ERR_TOO_BIG),
    ],
)
def test_a_malformed_go_is_refused_by_kind(data: bytes, answer: Rep) -> None:
    step = say(started(), option(Option.GO, data))

    assert step.next is Next.READ
    assert replies(step.send)[0][1] == answer


def test_a_full_device_refuses_go_and_the_client_may_go_on() -> None:
    shake = started()
    say(shake, option(Option.GO, go_data()))

    step = shake.refuse("all taken")

    assert step.next is Next.READ
    assert replies(step.send) == [(Option.GO, Rep.ERR_POLICY, b"all taken")]
    assert say(shake, option(Option.ABORT)).next is Next.CLOSE


def test_a_device_that_is_closing_says_shutdown() -> None:
    shake = started()
    say(shake, option(Option.GO, go_data()))

    assert replies(shake.refuse("later", shutting_down=True).send)[0][1] == Rep.ERR_SHUTDOWN


def test_a_full_device_can_only_close_on_export_name() -> None:
    shake = started()
    say(shake, option(Option.EXPORT_NAME))

    assert shake.refuse("all taken").next is Next.CLOSE


@pytest.mark.parametrize("rule", [TlsRule.OFFERED, TlsRule.REQUIRED])
def test_tls_begins_where_it_is_offered_and_the_client_asks_again_behind_it(rule: TlsRule) -> None:
    shake = started(tls=rule)

    step = say(shake, option(Option.STARTTLS))
    shake.secured()

    assert step.next is Next.START_TLS
    assert replies(step.send) == [(Option.STARTTLS, Rep.ACK, b"")]
    assert say(shake, option(Option.GO, go_data())).next is Next.ASKED


@pytest.mark.parametrize("number", [Option.LIST, Option.INFO, Option.GO, Option.STRUCTURED_REPLY, 9, 4711])
def test_where_tls_is_required_nothing_is_answered_before_it(number: int) -> None:
    """[M11]"""
    shake = started(tls=TlsRule.REQUIRED)

    step = say(shake, option(number, go_data() if number in (Option.INFO, Option.GO) else b""))

    assert step.next is Next.READ
    assert replies(step.send)[0][:2] == (number, Rep.ERR_TLS_REQD)
    assert EXPORT.description.encode() not in step.send
    assert say(shake, option(Option.STARTTLS)).next is Next.START_TLS


def test_where_tls_is_required_the_old_option_ends_the_connection_and_an_abort_is_answered() -> None:
    """[M11] NBD_OPT_EXPORT_NAME has no error reply, and served the device by itself."""
    step = say(started(tls=TlsRule.REQUIRED), option(Option.EXPORT_NAME, b"swap0"))
    aborted = say(started(tls=TlsRule.REQUIRED), option(Option.ABORT))

    assert (step.next, step.send) == (Next.CLOSE, b"")
    assert replies(aborted.send) == [(Option.ABORT, Rep.ACK, b"")]


def test_behind_tls_everything_is_answered() -> None:
    shake = started(tls=TlsRule.REQUIRED)
    say(shake, option(Option.STARTTLS))
    shake.secured()

    assert replies(say(shake, option(Option.LIST)).send)[-1][1] == Rep.ACK
    assert say(shake, option(Option.EXPORT_NAME)).next is Next.ASKED


def test_tls_begins_once_and_takes_no_data() -> None:
    shake = started(tls=TlsRule.OFFERED)

    assert replies(say(shake, option(Option.STARTTLS, b"data")).send)[0][1] == Rep.ERR_INVALID
    assert say(shake, option(Option.STARTTLS)).next is Next.START_TLS
    shake.secured()
    assert replies(say(shake, option(Option.STARTTLS)).send)[0][1] == Rep.ERR_INVALID


def test_what_a_client_asked_for_in_the_clear_does_not_count_behind_tls() -> None:
    """[M11] Who stands on the way could have put it there."""
    shake = started(tls=TlsRule.OFFERED)
    say(shake, option(Option.INFO, go_data(b"", Info.DESCRIPTION)))
    say(shake, option(Option.STARTTLS))
    shake.secured()

    say(shake, option(Option.GO, go_data()))
    step = shake.accept()

    assert [data[:2] for _, kind, data in replies(step.send) if kind == Rep.INFO] == [
        struct.pack(">H", Info.EXPORT),
        struct.pack(">H", Info.BLOCK_SIZE),
    ]


def test_unknown_client_flags_close() -> None:
    assert Handshake(EXPORT).receive(struct.pack(">I", 4)).next is Next.CLOSE


def test_an_option_without_its_magic_closes() -> None:
    assert say(started(), bytes(16)).next is Next.CLOSE


def test_an_option_larger_than_the_bound_closes_before_its_data_is_read() -> None:
    shake = started()

    step = shake.receive(struct.pack(">QII", h.IHAVEOPT, Option.GO, h.OPTION_MAX_BYTES + 1))

    assert step.next is Next.CLOSE


@given(st.binary(max_size=400), st.booleans(), st.sampled_from(TlsRule))
def test_random_bytes_give_steps_and_never_ask_for_more_than_the_bound(
    data: bytes, after_flags: bool, rule: TlsRule
) -> None:
    shake = started(tls=rule) if after_flags else Handshake(EXPORT, rule)
    step = Step()

    while step.next is Next.READ and len(data) >= shake.needed():
        assert 0 < shake.needed() <= h.OPTION_MAX_BYTES
        part, data = data[: shake.needed()], data[shake.needed() :]
        step = shake.receive(part)
        if step.next is Next.ASKED:
            step = shake.refuse("no")


@given(
    st.lists(
        st.one_of(
            st.sampled_from([option(Option.LIST), option(Option.INFO, go_data(b"", 1, 2, 3)), option(99, b"abc")]),
            st.binary(max_size=40).map(lambda data: option(Option.INFO, data)),
            st.tuples(st.integers(12, 2**32 - 1), st.binary(max_size=40)).map(lambda x: option(*x)),
        ),
        max_size=6,
    )
)
def test_options_in_any_order_leave_the_client_able_to_go(options: list[bytes]) -> None:
    shake = started()

    for data in options:
        step = say(shake, data)
        assert step.next is Next.READ
        assert replies(step.send)

    assert say(shake, option(Option.GO, go_data())).next is Next.ASKED


def test_what_follows_the_last_option_is_never_asked_for() -> None:
    stream = struct.pack(">I", 3) + option(Option.LIST) + option(Option.GO, go_data(b"swap0", 1, 3))
    beyond = b"\x25\x60\x95\x13 the first request"
    shake = Handshake(EXPORT)
    position = 0

    step = Step()
    while step.next is Next.READ:
        part = (stream + beyond)[position : position + shake.needed()]
        position += len(part)
        step = shake.receive(part)

    assert step.next is Next.ASKED
    assert position == len(stream)
