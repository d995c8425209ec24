"""Mutual proof of agent and manager over ws://, and the code of each frame after it. PURE.

The node's token is what both know: the agent has it in its token file, the manager has its SHA-256 in the tokens'
file. That hash is the key; neither it nor the token is ever sent. The proof travels in two headers of the WebSocket's
opening::

    agent    GET /v1/agents/session   Farside-Proof: 1 KEY_ID NONCE     who asks, and a number never used before
    manager  101                      Farside-Proof: 1 NONCE PROOF      it has the key, and has seen the agent's number
    both     each frame: JSON, a line break, its code in hex

A code is an HMAC under a key of this connection and this direction, over the frame and how many came before it. The
agent's first one is its proof. So nobody between the two can answer for the manager, replay, change, drop or reorder a
frame unseen; whoever relays a connection only reads along, as there is no encryption. TLS has that too.

An invitation is a token that is used once. Both sides then compute the node's lasting token from it and from the two
numbers, so that whoever listened, and whoever finds the invitation later, cannot know it.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Protocol

from farside import proof
from farside.agent.protocol import FRAME_BYTES_MAX, CloseCode, Text
from farside.errors import RemoteProtocolError

HEADER = "Farside-Proof"
INVITATION = "invite-"
"""Each invitation begins so, and no other token."""
VERSION = "1"
NONCE_BYTES = 32
CODED_BYTES_MAX = FRAME_BYTES_MAX + 1 + 2 * proof.CODE_BYTES
"""The longest frame on the wire, with its code."""

_LABEL = b"farside agent session " + VERSION.encode()
_OFFER = re.compile(r"(\d{1,4}) ([0-9a-f]{16}) ([0-9a-f]{64})")
_ANSWER = re.compile(r"(\d{1,4}) ([0-9a-f]{64}) ([0-9a-f]{64})")


class Frames(Protocol):
    """Both directions of one connection. A frame is sealed just before it is sent, in the order of sending."""

    def seal(self, frame: str) -> str:
        """The frame as it is sent."""
        ...

    def open(self, frame: Text) -> Text:
        """The frame as the peer meant it.

        Raises:
            RemoteProtocolError: the peer did not send it, or not as the next one.
        """
        ...


class PlainFrames:
    """Frames as they are: TLS or the kernel proves who sends them, or the peer is of a version before codes."""

    def seal(self, frame: str) -> str:
        """Returns the frame unchanged."""
        return frame

    def open(self, frame: Text) -> Text:
        """Returns the frame unchanged."""
        return frame


class CodedFrames:
    """Frames with a code each, after both sides have proved that they have the key.

    Attributes:
        lasting_token: What both sides would use from now on, if the key is an invitation's.
    """

    def __init__(self, key: bytes, own: proof.Side, said: bytes) -> None:
        lasting = hmac.digest(key, b"farside lasting token " + said, "sha256")
        self.lasting_token = base64.urlsafe_b64encode(lasting).decode().rstrip("=")
        self._sending = proof.Codes(key, own, said)
        self._receiving = proof.Codes(key, own.other, said)

    def seal(self, frame: str) -> str:
        """The frame and its code."""
        return f"{frame}\n{self._sending.code(frame.encode()).hex()}"

    def open(self, frame: Text) -> Text:
        """The frame without its code.

        Raises:
            RemoteProtocolError: the code is not that of this frame in this place.
        """
        whole = frame if isinstance(frame, bytes) else frame.encode(errors="surrogatepass")
        body, _, code = whole.rpartition(b"\n")
        if not proof.is_same(code, self._receiving.code(body).hex().encode()):
            raise RemoteProtocolError("a frame has no code of the peer that proved itself", code=CloseCode.FORBIDDEN)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What an agent says before anything else: the name of its key, which gives away nothing of it, and its number."""

    key_id: bytes
    nonce: bytes

    @property
    def text(self) -> str:
        """The header's value."""
        return f"{VERSION} {self.key_id.hex()} {self.nonce.hex()}"


def key_of(token: str) -> bytes:
    """The key that follows from a token: its SHA-256, which is all that the manager keeps."""
    return hashlib.sha256(token.encode()).digest()


def offer(key: bytes, nonce: bytes) -> Offer:
    """The agent's. ``nonce``: `NONCE_BYTES` random bytes, new for each connection."""
    return Offer(key_id=proof.key_id(key), nonce=nonce)


def read_offer(text: str) -> Offer:
    """The offer that a header holds.

    Raises:
        RemoteProtocolError: it is none, or of another version.
    """
    _, key_id, nonce = _parts(_OFFER, text)
    return Offer(key_id=bytes.fromhex(key_id), nonce=bytes.fromhex(nonce))


def answer(key: bytes, offered: Offer, nonce: bytes) -> tuple[str, CodedFrames]:
    """The manager's: the header that proves it, and the frames that follow."""
    said = _said(offered, nonce)
    shown = proof.proof(key, proof.Side.MANAGER, said)
    return f"{VERSION} {nonce.hex()} {shown.hex()}", CodedFrames(key, proof.Side.MANAGER, said)


def check_answer(key: bytes, offered: Offer, text: str) -> CodedFrames:
    """The agent's frames, once the manager's header has proved that it has the key.

    Raises:
        RemoteProtocolError: it proves nothing.
    """
    _, nonce, shown = _parts(_ANSWER, text)
    said = _said(offered, bytes.fromhex(nonce))
    if not proof.is_same(bytes.fromhex(shown), proof.proof(key, proof.Side.MANAGER, said)):
        raise RemoteProtocolError("what answers there is not this cluster's manager: its proof is wrong")
    return CodedFrames(key, proof.Side.AGENT, said)


def _said(offered: Offer, nonce: bytes) -> bytes:
    return proof.transcript(_LABEL, offered.key_id, offered.nonce, nonce)


def _parts(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = pattern.fullmatch(text.strip())
    version = text.strip().partition(" ")[0]
    if version.isdecimal() and version != VERSION:
        raise RemoteProtocolError(
            f"version {version[:8]} of the proof is not spoken here, only {VERSION}",
            code=CloseCode.VERSION,
            hint="bring manager and agents to versions of Farside that are at most one apart",
        )
    if found is None:
        raise RemoteProtocolError(f"no proof: {HEADER} is {text!r:.60}", code=CloseCode.MALFORMED)
    return found.groups()
