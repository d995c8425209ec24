"""A link between a node's executor and the one with the group's synchroniser: one sans-I/O machine for both ends. PURE.

    executor                                          synchroniser
    Hello(version, node, key's name, nonce, epoch) ->
                                                   <- Challenge(nonce, proof)     it has the group's key
    Proof(proof) ->                                                               the executor has it
    frames either way, each with a code under a key of this connection and direction

A frame is its length in 4 bytes, little-endian, and as much MessagePack, with 16 bytes of code once both have proved
the key. What is changed, repeated, left out or reflected does not verify, and ends the link.
"""

from typing import Annotated, TypeAlias

import msgspec

from farside import proof
from farside.agent.training.messages import LINK_BYTES_MAX, VERSION, Number, OfLink
from farside.errors import PeerError, RemoteProtocolError

NONCE_BYTES = 32
_HEAD_BYTES = 4
_LABEL = b"farside turns"
_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_KeyId = Annotated[bytes, msgspec.Meta(min_length=proof.KEY_ID_BYTES, max_length=proof.KEY_ID_BYTES)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Executor: its node, and the newest epoch that it knows."""

    version: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    node: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    key_id: _KeyId
    nonce: _Nonce
    epoch: Number


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Synchroniser: it has the key."""

    nonce: _Nonce
    proof: _Proof


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Executor: so does it."""

    proof: _Proof


_Message: TypeAlias = Hello | Challenge | Proof | OfLink
_DECODER: "msgspec.msgpack.Decoder[_Message]" = msgspec.msgpack.Decoder(_Message)


class Link:
    """One end. Send `to_send` after each call, and give what comes to `receive`."""

    def __init__(self, key: bytes, *, nonce: bytes, node: str = "", epoch: int = 0) -> None:
        """An executor's end if ``node`` is given, otherwise the synchroniser's; ``nonce``: random, new each time."""
        self._key, self._nonce = key, nonce
        self._side = proof.Side.EXECUTOR if node else proof.Side.SYNCHRONIZER
        self._received, self._to_send = bytearray(), bytearray()
        self._said = b""
        self._first = b""
        self._codes: tuple[proof.Codes, proof.Codes] | None = None
        self.hello: Hello | None = None
        """What the other end says of itself, at the synchroniser; it is proved once the link `is_open`."""
        if node:
            self._send(Hello(VERSION, node, proof.key_id(key), nonce, epoch))

    @property
    def is_open(self) -> bool:
        """Whether the other end has proved the key."""
        return self._codes is not None

    def send(self, message: OfLink) -> None:
        """Queues a message; the link must be open."""
        assert self._codes is not None, "the link is not open"
        self._send(message)

    def to_send(self) -> bytes:
        """What goes out now."""
        data, self._to_send = bytes(self._to_send), bytearray()
        return data

    def receive(self, data: bytes) -> list[OfLink]:
        """The messages that these bytes complete, without those of the handshake.

        Raises:
            RemoteProtocolError: nonsense came, or another version.
            PeerError: the other end does not have the key.
        """
        self._received += data
        found: list[OfLink] = []
        while len(self._received) >= _HEAD_BYTES:
            length = int.from_bytes(self._received[:_HEAD_BYTES], "little")
            if not 0 < length <= LINK_BYTES_MAX:
                raise RemoteProtocolError(f"a message of {length} bytes came; {LINK_BYTES_MAX} are allowed")
            if len(self._received) < _HEAD_BYTES + length:
                break
            body = bytes(self._received[_HEAD_BYTES : _HEAD_BYTES + length])
            del self._received[: _HEAD_BYTES + length]
            message = self._decoded(body)
            if isinstance(message, Hello | Challenge | Proof):
                self._shake(message, body)
            elif not self.is_open:
                raise RemoteProtocolError(f"{type(message).__name__} came before a proof")
            else:
                found.append(message)
        return found

    def _decoded(self, body: bytes) -> _Message:
        if self._codes is not None:
            body, code = body[: -proof.CODE_BYTES], body[-proof.CODE_BYTES :]
            if not proof.is_same(code, self._codes[1].code(body)):
                raise RemoteProtocolError("a message has no code of the peer that proved itself")
        try:
            return _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"a message can't be understood: {error}") from error

    def _shake(self, message: Hello | Challenge | Proof, body: bytes) -> None:
        is_host = self._side is proof.Side.SYNCHRONIZER
        if is_host and isinstance(message, Hello) and self.hello is None:
            if message.version != VERSION:
                raise RemoteProtocolError(f"version {message.version} of the protocol; this is {VERSION}")
            if message.key_id != proof.key_id(self._key):
                raise PeerError("the executor has another key", hint="all nodes of a group have the same key file")
            self.hello = message
            self._said = proof.transcript(_LABEL, body, self._nonce)
            self._send(Challenge(self._nonce, proof.proof(self._key, self._side, self._said)))
        elif not is_host and isinstance(message, Challenge) and not self.is_open:
            said = proof.transcript(_LABEL, self._first, message.nonce)
            self._prove(message.proof, said)
            self._send(Proof(proof.proof(self._key, self._side, said)))
            self._open(said)
        elif is_host and isinstance(message, Proof) and self.hello is not None and not self.is_open:
            self._prove(message.proof, self._said)
            self._open(self._said)
        else:
            raise RemoteProtocolError(f"{type(message).__name__} came out of turn")

    def _prove(self, given: bytes, said: bytes) -> None:
        if not proof.is_same(given, proof.proof(self._key, self._side.other, said)):
            raise PeerError("the other end does not prove the group's key")

    def _open(self, said: bytes) -> None:
        self._codes = proof.Codes(self._key, self._side, said), proof.Codes(self._key, self._side.other, said)

    def _send(self, message: msgspec.Struct) -> None:
        body = msgspec.msgpack.encode(message)
        self._first = self._first or body
        if self._codes is not None:
            body += self._codes[0].code(body)
        self._to_send += len(body).to_bytes(_HEAD_BYTES, "little") + body
