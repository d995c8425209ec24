"""Proofs and message codes of two ends that know a key: the cluster's, a job's, or a node's token. PURE.

Everything is HMAC-SHA256 under that key with a label of its own, so that nothing computed for one purpose or by
one side can be used for another.
"""

import enum
import hashlib
import hmac

KEY_ID_BYTES = 8
CODE_BYTES = 16
"""A message code is cut to this: a forger has one try in 2^128 before the connection ends."""
HEAD_KEY_BYTES = 16


class Side(enum.Enum):
    """Which end of a connection."""

    BORROWER = "borrower"
    DONOR = "donor"
    AGENT = "agent"
    MANAGER = "manager"
    MEMBER = "member"
    AGGREGATOR = "aggregator"
    EXECUTOR = "executor"
    SYNCHRONIZER = "synchronizer"
    FRONT = "front"
    WORKER = "worker"

    @property
    def other(self) -> "Side":
        """The peer's side."""
        return _PEERS[self]


_PEERS = {
    Side.BORROWER: Side.DONOR,
    Side.DONOR: Side.BORROWER,
    Side.AGENT: Side.MANAGER,
    Side.MANAGER: Side.AGENT,
    Side.MEMBER: Side.AGGREGATOR,
    Side.AGGREGATOR: Side.MEMBER,
    Side.EXECUTOR: Side.SYNCHRONIZER,
    Side.SYNCHRONIZER: Side.EXECUTOR,
    Side.FRONT: Side.WORKER,
    Side.WORKER: Side.FRONT,
}


def key_id(key: bytes) -> bytes:
    """Returns the name under which a key is offered to a peer: 8 bytes that do not reveal the key."""
    return hashlib.sha256(key).digest()[:KEY_ID_BYTES]


def transcript(*parts: bytes) -> bytes:
    """Returns a hash of the parts and of where one ends and the next begins."""
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def proof(key: bytes, prover: Side, said: bytes) -> bytes:
    """Returns what shows that `prover` has the key and has seen the transcript `said`; 32 bytes."""
    return hmac.digest(key, b"farside proof " + prover.value.encode() + said, "sha256")


def is_same(left: bytes, right: bytes) -> bool:
    """True when equal; takes the same time wherever they differ."""
    return hmac.compare_digest(left, right)


def head_keys(key: bytes, said: bytes, first: Side = Side.BORROWER) -> bytes:
    """Returns the keys of the heads on a data connection: of those of ``first``, then of its peer's, 16 bytes each."""
    labels = (b"farside heads " + side.value.encode() for side in (first, first.other))
    return b"".join(hmac.digest(key, label + said, "sha256")[:HEAD_KEY_BYTES] for label in labels)


class Codes:
    """The message codes of one direction of one connection; each call counts one frame."""

    def __init__(self, key: bytes, sender: Side, said: bytes) -> None:
        self._key = hmac.digest(key, b"farside codes " + sender.value.encode() + said, "sha256")
        self._count = 0

    def code(self, content: bytes) -> bytes:
        """Returns the code of the next frame, CODE_BYTES long."""
        count = self._count.to_bytes(8, "little")
        self._count += 1
        return hmac.digest(self._key, count + content, "sha256")[:CODE_BYTES]
