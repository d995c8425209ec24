"""What is said on a fresh connection to an Aggregator, before the engine gets its socket. Sans-I/O, PURE.

    caller                                   Aggregator
    Hello(job, start, key's name, number, features) ->
                                          <- Challenge(number, proof, features)   it has the job's key
    Proof(proof) ->                                                        the caller has it
    Attach(...) or CopyFrom(...) ->                                        on a unix socket with the region's descriptor
                                          <- Invite(number)                only where both have RDMA; see below
                                          <- Welcome, or Refused(line)

A member that is invited makes a second connection, proves the key on it, and asks for Pair(number) in place of Attach.
Behind its Welcome that connection belongs to the queue pair (kmod_shim/engine/verbs.h), for which the Aggregator waits
a while. The Welcome on the first connection then says whether gradients and results go by RDMA, or with the frames.

Each message is its length in 4 bytes, little-endian, and as much MessagePack; from Attach on a code of 16 bytes under a
key of this connection and direction is its end. Before the proof a message is at most `STRANGER_BYTES_MAX` long.
Features are what the caller knows, and of it what the Aggregator knows too; both are in what the proofs are made of. A
Farside of before has none, and is talked with as before.
`needed` says how many bytes to read next: nobody reads beyond Welcome, where frames begin.

A caller is a member, or the Aggregator that a chunk moves away from.
"""

import copy
import enum
from collections.abc import Callable
from typing import Annotated

import msgspec

from farside import proof
from farside.agent.aggregator.layout import TENSORS_MAX, Tensor
from farside.agent.aggregator.plan import MEMBERS_MAX, NUMBER_MAX, RUNS_MAX, JobName, Number, Run, Start
from farside.errors import LocalProtocolError, PeerError, RemoteProtocolError

VERSION = 1
VERSIONS = (1,)
"""What an Aggregator of this version understands."""
NONCE_BYTES = 32
STRANGER_BYTES_MAX = 1024
ATTACH_BYTES_MAX = 4 << 20
"""A declaration of 1 MiB, and a static plan."""
LINE_BYTES_MAX = 900
_HEAD_BYTES = 4
_PROOF_BYTES = 32
_LABEL = b"farside aggregation"

_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, msgspec.Meta(min_length=_PROOF_BYTES, max_length=_PROOF_BYTES)]
_KeyId = Annotated[bytes, msgspec.Meta(min_length=proof.KEY_ID_BYTES, max_length=proof.KEY_ID_BYTES)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MEMBERS_MAX)]
_Members = Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]
_Rule = Annotated[str, msgspec.Meta(max_length=20)]
_Tensors = Annotated[tuple[Tensor, ...], msgspec.Meta(max_length=TENSORS_MAX)]
_Word = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
_Features = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class Feature(enum.IntFlag):
    """What both ends must know for it to be used."""

    NONE = 0
    CODES = 1  # each head of a frame carries a code (kmod_shim/engine/lane.h): by TCP
    RDMA = 2  # it has a device, and may use it
    APART = 4  # tensors that are joined with no other (`Tensor.is_apart`), as find_unused_parameters wants them


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Caller: which job's key it means to prove."""

    version: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    job: JobName
    start: Start
    key_id: _KeyId
    nonce: _Nonce
    features: _Features = 0


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Aggregator: it has the key."""

    nonce: _Nonce
    proof: _Proof
    features: _Features = 0


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Caller: so does it."""

    proof: _Proof


class Attach(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A member wants a lane.

    Attributes:
        number: Of this Aggregator in the job, as the member's plan has it.
        life: Random, of the member's process: the newest one of a rank counts.
        has_region: The region's descriptor comes along.
        hold: Results wait until they are asked for.
        runs: Of a static plan; empty: the Aggregator was told by its manager.
    """

    number: Number
    rank: _Rank
    members: _Members
    rule: _Rule
    tensors: _Tensors
    life: _Word
    has_region: bool
    hold: bool = False
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=RUNS_MAX)] = ()


class CopyFrom(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """An Aggregator wants to copy the contents of chunks that move here; numbers as in `Attach`."""

    number: Number
    old_number: Number
    members: _Members
    rule: _Rule
    tensors: _Tensors
    hold: bool = False


class Invite(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Aggregator: the member may make a queue pair, under this number."""

    number: _Word


class Pair(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A member, on a connection of its own: it was invited. ``token``: what opens its region (`Member.export`)."""

    number: _Word
    token: _Word


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Aggregator: the engine's frames come next; to a Pair, its queue pair.

    Attributes:
        incarnation: Random, of the Aggregator's process.
        version: The lowest version of its chunks of this job; None: it lacks one's.
        has_rdma: Gradients and results go by the queue pair.
    """

    incarnation: _Word
    version: _Word | None = None
    has_rdma: bool = False


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Aggregator: why there is no lane; ``is_final``: another try will be refused too."""

    line: str
    is_final: bool = True


Request = Attach | CopyFrom
Answer = Welcome | Refused | Invite
_FromCaller = Hello | Proof | Attach | CopyFrom | Pair
_FromAggregator = Challenge | Welcome | Refused | Invite


KeyOf = Callable[[Hello], bytes | Refused]
"""Finds the key that a caller means, or why there is none."""


class _Messages:
    """Messages out of bytes that come cut anywhere."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[object]") -> None:
        self._decoder = decoder
        self._received = bytearray()
        self._first = b""
        self._to_send = bytearray()
        self._codes: tuple[proof.Codes, proof.Codes] | None = None
        self.limit_bytes = STRANGER_BYTES_MAX

    @property
    def needed(self) -> int:
        have = len(self._received)
        return _HEAD_BYTES - have if have < _HEAD_BYTES else _HEAD_BYTES + self._length - have

    @property
    def _length(self) -> int:
        return int.from_bytes(self._received[:_HEAD_BYTES], "little")

    def receive(self, data: bytes) -> object | None:
        """The message that these bytes complete."""
        if len(data) > self.needed:
            raise LocalProtocolError("more bytes than needed were read at an Aggregator's door")
        self._received += data
        if len(self._received) < _HEAD_BYTES:
            return None
        if not 0 < self._length <= self.limit_bytes:
            raise RemoteProtocolError(f"a message of {self._length} bytes came; {self.limit_bytes} are allowed")
        if self.needed:
            return None
        body, self._received = bytes(self._received[_HEAD_BYTES:]), bytearray()
        self._first = self._first or body
        return self._decode(self._without_code(body))

    def send(self, message: msgspec.Struct) -> None:
        body = msgspec.msgpack.encode(message)
        if self._codes is not None:
            body += self._codes[0].code(body)
        self._first = self._first or body
        self._to_send += len(body).to_bytes(_HEAD_BYTES, "little") + body

    def last_words(self, message: msgspec.Struct) -> bytes:
        """The bytes of a message that may still be replaced by another one."""
        assert self._codes is not None
        body = msgspec.msgpack.encode(message)
        body += copy.copy(self._codes[0]).code(body)
        return len(body).to_bytes(_HEAD_BYTES, "little") + body

    def to_send(self) -> bytes:
        data, self._to_send = bytes(self._to_send), bytearray()
        return data

    def transcript(self, nonce: bytes, features: int) -> bytes:
        """Hash of what both say before the proofs: Hello, and number and features of the Aggregator's Challenge."""
        # An Aggregator of before says no features, and makes its proof without.
        agreed = (features.to_bytes(4, "little"),) if features else ()
        return proof.transcript(_LABEL, self._first, nonce, *agreed)

    def begin_codes(self, key: bytes, own: proof.Side, said: bytes) -> None:
        """Both have proved the key: all that follows bears a code."""
        self._codes = proof.Codes(key, own, said), proof.Codes(key, own.other, said)
        self.limit_bytes = ATTACH_BYTES_MAX

    def _without_code(self, body: bytes) -> bytes:
        if self._codes is None:
            return body
        content, code = body[: -proof.CODE_BYTES], body[-proof.CODE_BYTES :]
        if not proof.is_same(code, self._codes[1].code(content)):
            raise RemoteProtocolError("a message has no code of the peer that proved itself")
        return content

    def _decode(self, content: bytes) -> object:
        try:
            return self._decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"a message can't be understood: {error}") from error


class _State(enum.Enum):
    HELLO = enum.auto()
    PROOF = enum.auto()
    REQUEST = enum.auto()
    ANSWER = enum.auto()
    DONE = enum.auto()


class Caller:
    """The caller's side. Send `to_send`, read `needed` bytes, give them to `receive`, until that returns a Welcome.

    An Invite may come before it: see above.
    """

    def __init__(
        self,
        key: bytes,
        *,
        job: str,
        start: int,
        nonce: bytes,
        request: Request | Pair,
        features: Feature = Feature.NONE,
    ) -> None:
        """``nonce``: `NONCE_BYTES` random bytes, new for each connection. ``features``: what may be used on it.

        An Aggregator that does not know `Feature.APART` where it is offered is not asked for anything: it would cut the
        tensors otherwise.
        """
        self._key = key
        self._request = request
        self._messages = _Messages(msgspec.msgpack.Decoder(_FromAggregator))
        self._state = _State.PROOF
        self._is_proved = False
        self._may_be_invited = self.was_invited = False
        self._offered = features
        self.head_keys = b""
        """Keys for the codes of frame heads, known once the Aggregator has proved the job's key; empty: no codes."""
        self._messages.send(Hello(VERSION, job, start, proof.key_id(key), nonce, int(features)))

    @property
    def is_proved(self) -> bool:
        """The Aggregator has proved the job's key: what it refuses from now on counts."""
        return self._is_proved

    @property
    def needed(self) -> int:
        """Bytes to read; 0: the conversation is over."""
        return 0 if self._state is _State.DONE else self._messages.needed

    def to_send(self) -> bytes:
        """What goes out now."""
        return self._messages.to_send()

    def receive(self, data: bytes) -> Answer | None:
        """The end of the conversation, or an Invite; None, and behind an Invite: it goes on.

        Raises:
            RemoteProtocolError: that is no Aggregator of this version.
            PeerError: it does not have the job's key, or is too old for what is wanted of it.
        """
        message = self._messages.receive(data)
        if message is None:
            return None
        if isinstance(message, Refused):
            self._state = _State.DONE
            return message
        if isinstance(message, Challenge) and self._state is _State.PROOF:
            self._take_challenge(message)
            return None
        if isinstance(message, Welcome) and self._state is _State.ANSWER:
            self._state = _State.DONE
            return message
        if isinstance(message, Invite) and self._state is _State.ANSWER and self._may_be_invited:
            self._may_be_invited, self.was_invited = False, True
            return message
        raise RemoteProtocolError(f"{type(message).__name__} came out of turn at an Aggregator's door")

    def _take_challenge(self, challenge: Challenge) -> None:
        said = self._messages.transcript(challenge.nonce, challenge.features)
        if not proof.is_same(challenge.proof, proof.proof(self._key, proof.Side.AGGREGATOR, said)):
            raise PeerError("the Aggregator does not prove this job's key", hint="name the key file that it has")
        if challenge.features & ~self._offered:
            raise RemoteProtocolError("the Aggregator uses features that were not offered")
        if self._offered & Feature.APART & ~challenge.features:
            raise PeerError(
                "its Farside is too old for find_unused_parameters", hint="update it, or attach without that option"
            )
        self._may_be_invited = bool(challenge.features & Feature.RDMA)
        if challenge.features & Feature.CODES:
            self.head_keys = proof.head_keys(self._key, said, proof.Side.MEMBER)
        self._messages.send(Proof(proof.proof(self._key, proof.Side.MEMBER, said)))
        self._messages.begin_codes(self._key, proof.Side.MEMBER, said)
        self._messages.send(self._request)
        self._state, self._is_proved = _State.ANSWER, True


class Door:
    """The Aggregator's side. `receive` returns the caller's request once it has proved the key; answer that one."""

    def __init__(self, key_of: KeyOf, nonce: bytes, features: Feature = Feature.CODES) -> None:
        """``features``: what this Aggregator knows."""
        self._key_of = key_of
        self._features = features
        self.head_keys = b""
        """As of `Caller`, once the caller has proved the key."""
        self._nonce = nonce
        self._messages = _Messages(msgspec.msgpack.Decoder(_FromCaller))
        self._state = _State.HELLO
        self._key = self._said = b""
        self._agreed = 0
        self.hello: Hello | None = None
        self.refused: Refused | None = None

    @property
    def is_proved(self) -> bool:
        """The caller has the job's key."""
        return self._state in (_State.REQUEST, _State.ANSWER)

    @property
    def key(self) -> bytes:
        """The job's key, which the caller has to prove, or has."""
        return self._key

    @property
    def needed(self) -> int:
        """Bytes to read; 0: the conversation is over."""
        return 0 if self._state in (_State.ANSWER, _State.DONE) else self._messages.needed

    def to_send(self) -> bytes:
        """What goes out now."""
        return self._messages.to_send()

    def receive(self, data: bytes) -> Request | Pair | None:
        """The caller's request; None: it goes on, or has been refused, and then nothing is `needed` any more.

        Raises:
            RemoteProtocolError: nonsense came; `refuse` says so.
        """
        message = self._messages.receive(data)
        if message is None:
            return None
        if isinstance(message, Hello) and self._state is _State.HELLO:
            self._take_hello(message)
            return None
        if isinstance(message, Proof) and self._state is _State.PROOF:
            self._take_proof(message)
            return None
        if isinstance(message, Attach | CopyFrom | Pair) and self._state is _State.REQUEST:
            self._state = _State.ANSWER
            return message
        raise RemoteProtocolError(f"{type(message).__name__} came out of turn")

    @property
    def has_rdma(self) -> bool:
        """Both have a device, and the caller may be invited."""
        return bool(self._agreed & Feature.RDMA)

    def invite(self, number: int) -> None:
        """Says, before the answer, that a queue pair may be made."""
        self._messages.send(Invite(number))

    def welcome(self, welcome: Welcome) -> bytes:
        """The answer to the request, which somebody else sends; where nobody has, `refuse` is possible instead."""
        return self._messages.last_words(welcome)

    def refuse(self, line: str, *, is_final: bool = True) -> None:
        """Ends the conversation with one line."""
        text = " ".join(line.split()).encode(errors="replace")[:LINE_BYTES_MAX].decode(errors="ignore")
        self.refused = Refused(text, is_final)
        self._messages.send(self.refused)
        self._state = _State.DONE

    def _take_hello(self, hello: Hello) -> None:
        self.hello = hello
        if hello.version not in VERSIONS:
            newest = max(VERSIONS)
            self.refuse(f"the Aggregator speaks version {newest}, the job {hello.version}; let both have one Farside")
            return
        key = self._key_of(hello)
        if isinstance(key, Refused):
            self.refuse(key.line, is_final=key.is_final)
            return
        self._agreed = int(self._features & hello.features)
        self._key, self._said = key, self._messages.transcript(self._nonce, self._agreed)
        shown = proof.proof(key, proof.Side.AGGREGATOR, self._said)
        self._messages.send(Challenge(self._nonce, shown, self._agreed))
        self._state = _State.PROOF

    def _take_proof(self, shown: Proof) -> None:
        if not proof.is_same(shown.proof, proof.proof(self._key, proof.Side.MEMBER, self._said)):
            self.refuse("the caller does not prove the job's key; name the key file that the Aggregator has")
            return
        self._messages.begin_codes(self._key, proof.Side.MEMBER.other, self._said)
        if self._agreed & Feature.CODES:
            self.head_keys = proof.head_keys(self._key, self._said, proof.Side.MEMBER.other)
        self._state = _State.REQUEST
