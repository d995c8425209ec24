"""Fuzz target: the control protocol, both roles. `python -m tests.fuzz.fuzz_control CORPUS -max_total_time=5`.

Random bytes are events or RemoteProtocolError and nothing else; and without the key nobody gets past the handshake.

Byte 0 of an input is a `Script`, byte 1 seeds where the stream is cut. What follows goes to the connection as it is,
or, with BODIES, as bodies of frames whose header and message code are right: u8 type, u16 length, body, and again.
"""

import random
import struct
import sys
from enum import IntFlag

import atheris
from atheris.import_hook import instrument_imports

with instrument_imports(include=["farside"], enable_loader_override=False):
    from farside.daemon.control import messages as m
    from farside.daemon.control.protocol import (
        LENGTH_MAX,
        NEED_DATA,
        Connection,
        Event,
        Output,
        PeerClosed,
        PeerProved,
        Phase,
        Received,
        Side,
    )
    from farside.errors import RemoteProtocolError
    from farside.proof import Codes

KEY = b"k" * 32
WELCOME = m.Welcome(session=7, slab_bytes=1 << 26, lease_expiry_s=30.0)
EVENTS = (Output, PeerProved, Received, PeerClosed)
HEADER = struct.Struct("<IHHI")
NOTICE = 0x8000_0000


class Script(IntFlag):
    """How an input is used."""

    DONOR = 1  # the bytes come to a donor; else to a borrower
    OPEN = 2  # after the handshake; else instead of it
    BODIES = 4
    DATA_ROLE = 8  # the connection is for data
    ENDS = 16  # the peer closes behind the bytes


def next_event(connection: Connection) -> Event:
    """The event that a sound peer's bytes must give."""
    event = connection.next_event()
    assert isinstance(event, EVENTS)
    return event


def connected(role: m.Role, *, is_open: bool) -> dict[Side, Connection]:
    """Both ends, before HELLO has come or after WELCOME has."""
    ends = {
        Side.BORROWER: Connection(side=Side.BORROWER, keys=(KEY,), nonce=b"b" * 32, node="b1", features=m.Feature(3)),
        Side.DONOR: Connection(side=Side.DONOR, keys=(KEY,), nonce=b"d" * 32, node="d1", features=m.Feature(3)),
    }
    speaker, to = ends[Side.BORROWER], Side.DONOR
    said = speaker.start(role=role)
    for _ in range(2 if is_open else 0):
        ends[to].receive(said)
        event = next_event(ends[to])
        assert isinstance(event, Output)
        said, to = event.data, to.other
    if is_open:
        ends[Side.DONOR].receive(said)
        assert isinstance(next_event(ends[Side.DONOR]), PeerProved)
        ends[Side.BORROWER].receive(ends[Side.DONOR].send(WELCOME))
        next_event(ends[Side.BORROWER])
        if role == "control":
            ends[Side.DONOR].receive(ends[Side.BORROWER].send(m.QueryMem(device="swap0")))
            next_event(ends[Side.DONOR])
            ends[Side.BORROWER].receive(ends[Side.DONOR].send(m.CheckActivity(leases=(1, 2))))
            next_event(ends[Side.BORROWER])
    return ends


def framed(data: bytes, peer: Connection, *, is_open: bool) -> bytes:
    """Frames around the bodies that the input names, as the peer would make them."""
    stream = bytearray()
    seq = peer.last_seq or (NOTICE if peer.side is Side.DONOR else 0)
    # Each side has asked one thing on a control connection; answers are to that.
    answers = (1 if peer.side is Side.DONOR else NOTICE + 1) if is_open else 0
    # The peer's own counter of frames goes on where its handshake stopped.
    codes: Codes | None = peer._codes_out if is_open else None
    while len(data) >= 3:
        kind, length = struct.unpack_from("<BH", data)
        body, data = data[3 : 3 + length], data[3 + length :]
        is_request = m.TYPES.get(kind) in REQUESTS[peer.side]
        seq += is_request
        number = seq if is_request else answers
        size = HEADER.size - 4 + len(body) + (16 if codes else 0)
        frame = HEADER.pack(size, 1, kind, number) + body
        stream += frame + (codes.code(frame) if codes else b"")
    return bytes(stream)


REQUESTS: dict[Side, frozenset[type[m.Message]]] = {
    Side.BORROWER: frozenset({m.QueryMem, m.KeepAlive, m.Map, m.Resume, m.Release, m.Done}),
    Side.DONOR: frozenset({m.CheckActivity, m.Migrate, m.Evict}),
}


def drain(connection: Connection) -> None:
    """Every event of what has come; a donor lets in whom it must."""
    while True:
        event = connection.next_event()
        if event is NEED_DATA:
            return
        assert isinstance(event, EVENTS)
        if isinstance(event, PeerClosed):
            return
        if isinstance(event, PeerProved):
            connection.send(WELCOME)


def feed(connection: Connection, stream: bytes, rng: random.Random, *, ends: bool) -> None:
    """Gives the stream in pieces; a fault of the peer ends it, with a farewell that fits a frame."""
    fault: RemoteProtocolError | None = None
    try:
        while stream:
            size = rng.choice([1, 7, len(stream), rng.randrange(len(stream)) + 1])
            connection.receive(stream[:size])
            stream = stream[size:]
            drain(connection)
        if ends:
            connection.receive(b"")
            drain(connection)
    except RemoteProtocolError as error:
        fault = error
    if fault is not None:
        assert connection.phase is Phase.BROKEN
        assert len(connection.farewell(m.ErrorCode(fault.code), str(fault))) <= LENGTH_MAX + 4


def talk(data: bytes) -> None:
    """One connection."""
    if len(data) < 2:
        return
    script, rng = Script(data[0] & 31), random.Random(data[1])
    is_open = Script.OPEN in script
    ends = connected("data" if Script.DATA_ROLE in script else "control", is_open=is_open)
    connection = ends[Side.DONOR if Script.DONOR in script else Side.BORROWER]
    stream = data[2:]
    if Script.BODIES in script:
        can_code = is_open and Script.DATA_ROLE not in script
        stream = framed(stream, ends[connection.side.other], is_open=can_code)
    feed(connection, stream, rng, ends=Script.ENDS in script)
    # A stranger has no key: whatever came, the donor has not let anybody in, nor does the borrower trust it.
    assert is_open or connection.phase not in (Phase.OPEN, Phase.HANDED_OVER, Phase.DECISION)


if __name__ == "__main__":
    atheris.Setup(sys.argv, talk)
    atheris.Fuzz()
