"""The control protocol between borrower and donor: one sans-I/O state machine for both roles. PURE.

How it works
============
Rules of this file: no socket, no clock, no random numbers (the nonce is passed in). Bytes go in with ``receive``;
``next_event`` gives what they mean, one event a call, or ``NEED_DATA``; ``send`` turns a message into bytes. A fault of
ours raises LocalProtocolError from ``send`` and changes nothing. A fault of the peer raises RemoteProtocolError (its
code an ErrorCode) from ``next_event``; then nothing more comes out, and ``farewell`` makes the ERROR frame to send.

Frame, little-endian::

    u32 length | u16 version | u16 type | u32 sequence | body | 16 bytes message code, once authenticated
      of what follows           TYPES       see below    msgpack array of the message's fields

The first bytes of a connection, each side proving that it has the cluster key before it is believed::

    borrower                                                      donor
      HELLO  versions, features, node, role, key ids, nonce  ->
                                  <-  HELLO_REPLY  version, features, node, key id, nonce, proof
      AUTH   proof                                           ->
                                  <-  WELCOME  session ...     (the first frame with a message code)

The donor's proof is an HMAC over HELLO's body and its own fields, the borrower's over both bodies as they were on the
wire (proof.py). So a proof is good for these nonces, versions, features and names only: nothing can be replayed from
another connection, and nobody can talk two peers down to an older version. Fields that a later version appends are
covered without being understood. Two keys may be in force: the donor picks the first of its own that was offered.

After that each frame ends with a code, HMAC-SHA256 cut to 16 bytes, over (frame counter, header, body) under a key of
its own for each direction. A frame that is changed, dropped, repeated, reordered or reflected does not verify, and
ends the connection. Contents are not secret: whoever can read the wire can read a lease token.

Sequences: a borrower's request carries a number that grows by one; the answer repeats it. What a donor asks has its
own numbers with the top bit set. An answer to nothing, or of a type that does not answer that request, is a fault.
ERROR answers any request; ERROR with sequence 0 is a farewell. One that comes before the peer has proved itself may be
anybody's: it ends the connection, and its text is for people, but its code is passed on as 0. A donor that refuses a
borrower in WELCOME's place has the transcript, and gives that ERROR a message code.

A data connection ("data" in HELLO) ends after WELCOME: the socket then carries wire.h's requests. The borrower sends
none before it has read WELCOME, so the donor never has bytes of them in here; ``unread`` proves it. Where both named
CODES each of wire.h's heads has a code as well, under keys of this handshake; pages are sealed (engine/seal.h).

Rejected: TLS (a certificate per node, and a key in user space that the engine's sockets would need too), Noise (no
library among our dependencies), one connection for control and data as in the paper (the data socket belongs to C).
"""

import enum
import struct
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from farside.daemon.control import messages as m
from farside.errors import LocalProtocolError, RemoteProtocolError
from farside.proof import CODE_BYTES, Codes, head_keys, is_same, key_id, proof, transcript
from farside.proof import Side as Side  # callers name their side; they need nothing else of proof.py

VERSION_MIN = 1
VERSION_MAX = 1

_HEADER = struct.Struct("<IHHI")
_LENGTH_BYTES = 4
# The length counts all that follows it, so at least the rest of the header.
_LENGTH_MIN = _HEADER.size - _LENGTH_BYTES

LENGTH_MAX = 65536
"""Bytes after the length: 253 leases of 50 bytes are 12.7 KiB; 64 KiB leaves room for fields to come."""
LENGTH_MAX_STRANGER = 1024
"""Before a peer has proved itself: the largest HELLO is about 250 bytes. What a stranger can make us keep."""
IN_FLIGHT_MAX = 64
"""Requests without an answer, each way. Borrowers have a handful; more is a peer that never reads."""

_NOTICE = 0x8000_0000  # top bit of what a donor asks


class Phase(enum.Enum):
    """How far a connection has come."""

    HELLO = enum.auto()  # donor waits for HELLO; borrower has not sent it
    REPLY = enum.auto()  # borrower waits for HELLO_REPLY
    AUTH = enum.auto()  # donor waits for AUTH
    DECISION = enum.auto()  # donor must send WELCOME or ERROR; borrower waits for it
    OPEN = enum.auto()  # control messages flow
    HANDED_OVER = enum.auto()  # a data connection: the socket is the engine's
    CLOSED = enum.auto()  # the peer closed, or a farewell was sent or received
    BROKEN = enum.auto()  # a RemoteProtocolError was raised


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Bytes of the handshake that are to be sent now."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProved:
    """Donor: the borrower has proved that it has a cluster key, and wants what HELLO says. Answer WELCOME or ERROR."""

    hello: m.Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message. ``seq`` is what an answer to it must carry, or the request's that it answers."""

    seq: int
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerClosed:
    """The peer will send nothing more."""


class NeedData(enum.Enum):
    """``next_event`` has nothing before more bytes come."""

    NEED_DATA = enum.auto()


NEED_DATA = NeedData.NEED_DATA

Event: TypeAlias = Output | PeerProved | Received | PeerClosed

# Who may ask what, and what answers it. The empty set: nothing does.
ANSWERS: dict[Side, dict[type[m.Message], frozenset[type[m.Message]]]] = {
    Side.BORROWER: {
        m.QueryMem: frozenset({m.FreeMem}),
        m.KeepAlive: frozenset({m.FreeMem}),
        m.Map: frozenset({m.MrInfo}),
        m.Resume: frozenset({m.MrInfo}),
        m.Release: frozenset({m.Ok}),
        m.Done: frozenset({m.Ok}),
    },
    Side.DONOR: {
        m.CheckActivity: frozenset({m.Activity}),
        m.Migrate: frozenset(),
        m.Evict: frozenset(),
    },
}

_DECODERS = {kind: msgspec.msgpack.Decoder(kind) for kind in m.TYPE_NUMBERS}
_ENCODER = msgspec.msgpack.Encoder()


# Frame as it was cut out of the bytes, before its body is decoded.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    kind: int
    seq: int
    body: bytes
    is_proved: bool  # it carries a message code


class Connection:
    """One control or data connection, seen from one side.

    Attributes:
        phase: How far it has come.
        hello: The borrower's HELLO: ours, or (donor) the peer's once it is proved.
        reply: The donor's HELLO_REPLY, once sent or verified: version, common features, the donor's node.
    """

    def __init__(
        self,
        *,
        side: Side,
        keys: tuple[bytes, ...],
        nonce: bytes,
        node: str,
        features: m.Feature = m.Feature.NONE,
    ) -> None:
        """Starts as nothing sent or received. ``keys`` preferred first; ``nonce`` 32 bytes never used before."""
        assert keys
        assert len(nonce) == m.NONCE_BYTES
        self.side = side
        self.phase = Phase.HELLO
        self.hello: m.Hello | None = None
        self.reply: m.HelloReply | None = None
        self._keys = {key_id(key): key for key in keys}
        self._nonce, self._node, self._features = nonce, node, features
        self._buffer = bytearray()
        self._eof = False
        self._key = b""
        self._hello_body = b""
        self._said = b""  # transcript of both bodies
        # None until the key is proved: frames go, and are taken, without a code before.
        self._codes_out: Codes | None = None
        self._codes_in: Codes | None = None
        self._last_seq = 0
        # Of the peer's requests, without the top bit.
        self._peer_seq = 0
        self._asked: dict[int, type[m.Message]] = {}  # by us, not answered
        self._owed: dict[int, type[m.Message]] = {}  # by the peer, not answered

    # ---- what the shell calls

    @property
    def unread(self) -> bytes:
        """Bytes received that are not part of any event so far."""
        return bytes(self._buffer)

    @property
    def features(self) -> m.Feature:
        """What both sides can do."""
        return m.Feature(self.reply.features) if self.reply else m.Feature.NONE

    @property
    def head_keys(self) -> bytes:
        """Keys of the heads that this data connection carries (wire.h); empty where they have no codes."""
        return head_keys(self._key, self._said) if m.Feature.CODES in self.features else b""

    @property
    def last_seq(self) -> int:
        """The sequence of the last request that ``send`` made; its answer will carry it."""
        return self._last_seq

    def start(self, *, role: m.Role = "control", session: int = 0, worker: int = 0, epoch: int = 0) -> bytes:
        """Borrower: returns the HELLO to send first."""
        if self.side is not Side.BORROWER or self.phase is not Phase.HELLO:
            raise LocalProtocolError("HELLO is the borrower's first frame")
        self.hello = m.Hello(
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
            features=int(self._features),
            node=self._node,
            role=role,
            key_ids=tuple(self._keys),
            nonce=self._nonce,
            session=session,
            worker=worker,
            epoch=epoch,
        )
        self._hello_body = _ENCODER.encode(self.hello)
        self.phase = Phase.REPLY
        return self._frame(self.hello, 0)

    def receive(self, data: bytes) -> None:
        """Takes bytes from the peer; empty means that it closed. After a farewell nothing more is kept."""
        # recv(2) returns nothing at the end of the stream, and never otherwise.
        if not data:
            self._eof = True
        elif self.phase not in (Phase.CLOSED, Phase.BROKEN):
            self._buffer += data

    def next_event(self) -> Event | NeedData:
        """Returns what the bytes so far mean, one event a call.

        Raises:
            RemoteProtocolError: the peer did what the protocol forbids. Send ``farewell`` and close.
        """
        if self.phase is Phase.BROKEN:
            raise LocalProtocolError("the connection is broken")
        try:
            return self._next_event()
        except RemoteProtocolError:
            self.phase = Phase.BROKEN
            raise

    def send(self, message: m.Message, *, reply_to: int | None = None) -> bytes:
        """Returns the frame of a request, or with ``reply_to`` of the answer to the request of that sequence.

        Raises:
            LocalProtocolError: it may not be sent now; nothing has changed.
        """
        if self.phase is Phase.DECISION and self.side is Side.DONOR:
            return self._decide(message)
        if self.phase is not Phase.OPEN:
            raise LocalProtocolError(f"{type(message).__name__} cannot be sent in phase {self.phase.name}")
        seq = self._next_seq(message) if reply_to is None else self._settle_owed(message, reply_to)
        return self._frame(message, seq)

    def farewell(self, code: m.ErrorCode, text: str) -> bytes:
        """Returns the ERROR frame to send before closing, or nothing where the peer could not understand one."""
        can_say = self.side is Side.DONOR or self.phase in (Phase.OPEN, Phase.BROKEN)
        handed_over = self.phase in (Phase.HANDED_OVER, Phase.CLOSED)
        if self.phase is Phase.DECISION and self.side is Side.DONOR:
            self._start_codes()  # the borrower acts on the code, so it must be ours
        self._close()
        return self._frame(m.Error(code=int(code), message=text[:256]), 0) if can_say and not handed_over else b""

    # ---- receiving

    def _next_event(self) -> Event | NeedData:
        if self.phase in (Phase.HANDED_OVER, Phase.CLOSED):
            return PeerClosed() if self._eof else NEED_DATA
        if self.phase is Phase.DECISION and self.side is Side.DONOR and self._buffer:
            raise _fault(m.ErrorCode.MALFORMED, "bytes after AUTH, before WELCOME")
        frame = self._take_frame()
        if frame is None:
            return self._at_end() if self._eof else NEED_DATA
        return self._accept(frame)

    def _at_end(self) -> Event:
        if self._buffer:
            raise _fault(m.ErrorCode.MALFORMED, "closed in the middle of a frame")
        self._close()
        return PeerClosed()

    def _close(self) -> None:
        self.phase = Phase.CLOSED
        self._buffer.clear()

    def _accept(self, frame: _Frame) -> Event:
        if self.phase is Phase.OPEN:
            return self._accept_open(frame)
        # Only the handshake comes here: each phase expects one kind of frame, and an ERROR ends it in any phase.
        message = self._decode(frame)
        if isinstance(message, m.Error):
            self._close()
            return Received(
                seq=frame.seq, message=message if frame.is_proved else msgspec.structs.replace(message, code=0)
            )
        if self.phase is Phase.HELLO and isinstance(message, m.Hello):
            return self._accept_hello(message, frame.body)
        if self.phase is Phase.REPLY and isinstance(message, m.HelloReply):
            return self._accept_reply(message, frame.body)
        if self.phase is Phase.AUTH and isinstance(message, m.Auth):
            return self._accept_auth(message)
        if self.phase is Phase.DECISION and isinstance(message, m.Welcome):
            self.phase = self._phase_after_welcome()
            return Received(seq=frame.seq, message=message)
        raise _fault(m.ErrorCode.MALFORMED, f"{type(message).__name__} in phase {self.phase.name}")

    def _accept_hello(self, hello: m.Hello, body: bytes) -> Event:
        version = min(VERSION_MAX, hello.version_max)
        if version < max(VERSION_MIN, hello.version_min):
            theirs = f"{hello.version_min} to {hello.version_max}"
            raise _fault(m.ErrorCode.VERSION, f"you speak version {theirs}, we {VERSION_MIN} to {VERSION_MAX}")
        # In the order of our own keys: that is how the operator says which of two is preferred.
        common = next((name for name in self._keys if name in hello.key_ids), None)
        if common is None:
            raise _fault(m.ErrorCode.AUTH, "no common key")
        self._key, self.hello, self._hello_body = self._keys[common], hello, body
        # The proof covers the other fields as they are sent, so it is filled in last.
        unproved = m.HelloReply(
            version=version,
            features=hello.features & int(self._features),
            node=self._node,
            key_id=common,
            nonce=self._nonce,
            proof=bytes(m.PROOF_BYTES),
        )
        reply = msgspec.structs.replace(unproved, proof=self._donor_proof(unproved))
        out = self._frame(reply, 0)
        self._said = transcript(body, _ENCODER.encode(reply))
        # Only now: HELLO_REPLY itself goes in the oldest version's frame, all later ones in the agreed version's.
        self.reply = reply
        self.phase = Phase.AUTH
        return Output(data=out)

    def _accept_reply(self, reply: m.HelloReply, body: bytes) -> Event:
        assert self.hello is not None
        # HELLO_REPLY is not proved yet: what it names must have been in our HELLO, whoever wrote it.
        if reply.key_id not in self._keys:
            raise _fault(m.ErrorCode.AUTH, "the donor chose a key that was not offered")
        if not VERSION_MIN <= reply.version <= VERSION_MAX or reply.features & ~self.hello.features:
            raise _fault(m.ErrorCode.VERSION, "the donor chose a version or feature that was not offered")
        self._key = self._keys[reply.key_id]
        if not is_same(reply.proof, self._donor_proof(reply)):
            raise _fault(m.ErrorCode.AUTH, "the donor's proof is wrong")
        self.reply = reply
        self._said = transcript(self._hello_body, body)
        out = self._frame(m.Auth(proof=proof(self._key, Side.BORROWER, self._said)), 0)
        # AUTH went without a code: the donor believes none before it has verified the proof in AUTH.
        self._start_codes()
        self.phase = Phase.DECISION
        return Output(data=out)

    def _accept_auth(self, auth: m.Auth) -> Event:
        assert self.hello is not None
        if not is_same(auth.proof, proof(self._key, Side.BORROWER, self._said)):
            raise _fault(m.ErrorCode.AUTH, "the borrower's proof is wrong")
        self.phase = Phase.DECISION
        return PeerProved(hello=self.hello)

    def _accept_open(self, frame: _Frame) -> Event:
        message = self._decode(frame)
        if isinstance(message, m.Error) and frame.seq == 0:
            self._close()
            return Received(seq=0, message=message)
        expected_answers = ANSWERS[self.side.other]
        # The type says whether it is a request or an answer: no type is both for one sender.
        if type(message) in expected_answers:
            self._note_request(frame.seq, type(message), bool(expected_answers[type(message)]))
        else:
            self._note_answer(frame.seq, type(message))
        return Received(seq=frame.seq, message=message)

    def _note_request(self, seq: int, kind: type[m.Message], wants_answer: bool) -> None:
        top_bit = _NOTICE if self.side is Side.BORROWER else 0
        # The message code keeps others from changing the order; this finds a peer that counts wrongly itself.
        if seq != top_bit + self._peer_seq + 1:
            raise _fault(m.ErrorCode.MALFORMED, f"{kind.__name__} has sequence {seq:#x} out of order")
        self._peer_seq += 1
        if wants_answer:
            if len(self._owed) >= IN_FLIGHT_MAX:
                raise _fault(m.ErrorCode.MALFORMED, f"more than {IN_FLIGHT_MAX} requests in flight")
            self._owed[seq] = kind

    def _note_answer(self, seq: int, kind: type[m.Message]) -> None:
        # Taken out first: a second answer to one request finds nothing, and is a fault.
        asked = self._asked.pop(seq, None)
        if asked is None or (kind is not m.Error and kind not in ANSWERS[self.side][asked]):
            what = asked.__name__ if asked else "nothing"
            raise _fault(m.ErrorCode.MALFORMED, f"{kind.__name__} answers {what}")

    # ---- sending

    def _decide(self, message: m.Message) -> bytes:
        if isinstance(message, m.Error):
            return self.farewell(m.ErrorCode(message.code), message.message)
        if not isinstance(message, m.Welcome):
            raise LocalProtocolError("a proved borrower gets WELCOME or ERROR first")
        self._start_codes()
        self.phase = self._phase_after_welcome()
        return self._frame(message, 0)

    def _next_seq(self, message: m.Message) -> int:
        kind = type(message)
        if kind not in ANSWERS[self.side]:
            raise LocalProtocolError(f"a {self.side.value} does not ask {kind.__name__}")
        if ANSWERS[self.side][kind] and len(self._asked) >= IN_FLIGHT_MAX:
            raise LocalProtocolError(f"{IN_FLIGHT_MAX} requests wait for an answer")
        top_bit = _NOTICE if self.side is Side.DONOR else 0
        # The top bit is no part of the count, and is put on again for what a donor asks.
        self._last_seq = top_bit + (self._last_seq & ~_NOTICE) + 1
        if ANSWERS[self.side][kind]:
            self._asked[self._last_seq] = kind
        return self._last_seq

    def _settle_owed(self, message: m.Message, seq: int) -> int:
        owed = self._owed.get(seq)
        kind = type(message)
        if owed is None or (kind is not m.Error and kind not in ANSWERS[self.side.other][owed]):
            raise LocalProtocolError(f"{kind.__name__} answers no request {seq:#x}")
        del self._owed[seq]
        return seq

    # ---- frames

    def _frame(self, message: m.Message, seq: int) -> bytes:
        body = _ENCODER.encode(message)
        # The header's length counts the code, and the code covers the header: so the length comes first.
        code_bytes = CODE_BYTES if self._codes_out else 0
        length = _LENGTH_MIN + len(body) + code_bytes
        if length > LENGTH_MAX:
            raise LocalProtocolError(f"{type(message).__name__} of {length} bytes is too long")
        version = self.reply.version if self.reply else VERSION_MIN
        data = _HEADER.pack(length, version, m.TYPE_NUMBERS[type(message)], seq) + body
        return data + self._codes_out.code(data) if self._codes_out else data

    def _take_frame(self) -> _Frame | None:
        """The next whole frame, its code verified; None while bytes are missing."""
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
        # Refused by its length alone, before its bytes come: a stranger can't make us keep more than the smaller limit.
        limit = LENGTH_MAX if self.phase is Phase.OPEN else LENGTH_MAX_STRANGER
        if not _LENGTH_MIN <= length <= limit:
            raise _fault(m.ErrorCode.MALFORMED, f"a frame of {length} bytes; {_LENGTH_MIN} to {limit} may be")
        if len(self._buffer) < _LENGTH_BYTES + length:
            return None
        # The code is verified first: but for the ERROR below, nothing of a frame without one is used.
        data = bytes(self._buffer[: _LENGTH_BYTES + length])
        del self._buffer[: _LENGTH_BYTES + length]
        _, version, kind, seq = _HEADER.unpack_from(data)
        is_proved = self._codes_in is not None and self._is_coded(data, self._codes_in)
        # In WELCOME's place an ERROR may come plain: from a donor that our own proof did not convince, or from anybody.
        may_be_plain = self._codes_in is None or (self.phase is Phase.DECISION and m.TYPES.get(kind) is m.Error)
        if not is_proved and not may_be_plain:
            raise _fault(m.ErrorCode.AUTH, "a frame's message code is wrong")
        body = data[_HEADER.size : -CODE_BYTES if is_proved else None]
        # HELLO comes in the oldest version's frame, whatever else its sender speaks.
        agreed = self.reply.version if self.reply else VERSION_MIN
        if version != agreed:
            raise _fault(m.ErrorCode.VERSION, f"a frame of version {version}, not {agreed}")
        return _Frame(kind=kind, seq=seq, body=body, is_proved=is_proved)

    def _is_coded(self, data: bytes, codes: Codes) -> bool:
        # A frame that is shorter than a header and a code has none.
        content, code = data[:-CODE_BYTES], data[-CODE_BYTES:]
        return len(content) >= _HEADER.size and is_same(code, codes.code(content))

    def _decode(self, frame: _Frame) -> m.Message:
        kind = m.TYPES.get(frame.kind)
        if kind is None:
            raise _fault(m.ErrorCode.MALFORMED, f"unknown frame type {frame.kind}")
        try:
            return _DECODERS[kind].decode(frame.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _fault(m.ErrorCode.MALFORMED, f"{kind.__name__}: {error}") from error

    # ---- keys

    def _donor_proof(self, reply: m.HelloReply) -> bytes:
        # All fields but the proof itself.
        chosen = _ENCODER.encode((reply.version, reply.features, reply.node, reply.key_id, reply.nonce))
        return proof(self._key, Side.DONOR, transcript(self._hello_body, chosen))

    def _start_codes(self) -> None:
        self._codes_out = Codes(self._key, self.side, self._said)
        self._codes_in = Codes(self._key, self.side.other, self._said)

    def _phase_after_welcome(self) -> Phase:
        assert self.hello is not None
        return Phase.HANDED_OVER if self.hello.role == "data" else Phase.OPEN


def _fault(code: m.ErrorCode, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(text, code=int(code))
