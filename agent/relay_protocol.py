"""Protocol between a job's members and the relay of their node: what they declare and measure, and their plan. PURE.

    member                                            relay
    Ask(token, digest, rule, epoch)                ->
                                                   <- Given(plan), Wait(), Declare() or Refused(line)
    Ask(the same, and the tensors)                 ->
    Measured(token, iteration, seconds)            ->

Each message is its length in 4 bytes, little-endian, and as much MessagePack. A member that has a plan asks with its
epoch, and is answered when there is a newer one, or by `Wait` after `POLL_S`.

A token says which rank of which start of a job, and as which user, and has a code that only the node's agent can make:
so it counts as well for an agent that was started anew.
"""

import hmac
from typing import Annotated

import msgspec

from farside.agent.aggregator.layout import DECLARATION_BYTES_MAX, RULES, TENSORS_MAX, Tensor
from farside.agent.aggregator.plan import MEMBERS_MAX, JobPlan
from farside.errors import RemoteProtocolError

VERSION = 1
BYTES_MAX = 4 << 20
"""A plan of as many runs as there may be chunks."""
MEMBER_BYTES_MAX = 2 * DECLARATION_BYTES_MAX
"""A declaration, whose limit is that of its fields in the oldest version, and what is beside it."""
HEAD_BYTES = 4
POLL_S = 25.0
"""A member that waits for a newer plan is answered after this time in any case: it sees that the agent lives."""
TOKEN_CHARS_MAX = 300
LINE_CHARS_MAX = 400
_CODE_CHARS = 32
_LABEL = b"farside relay "

_Token = Annotated[str, msgspec.Meta(max_length=TOKEN_CHARS_MAX)]
_Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Version = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Member: give me a plan newer than this epoch; of a model with this digest, and these tensors if any are named."""

    token: _Token
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    rule: Annotated[str, msgspec.Meta(max_length=20)]
    after_epoch: _Epoch = 0
    tensors: Annotated[tuple[Tensor, ...], msgspec.Meta(max_length=TENSORS_MAX)] = ()
    version: _Version = VERSION


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """Member: its iterations up to this one took so long, each."""

    token: _Token
    iteration: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    iteration_s: Annotated[float, msgspec.Meta(ge=0, le=4e9)]
    version: _Version = VERSION


class Given(msgspec.Struct, frozen=True, kw_only=True, tag="given"):
    """Relay: the plan."""

    plan: JobPlan


class Wait(msgspec.Struct, frozen=True, kw_only=True, tag="wait"):
    """Relay: there is no newer one; ask again."""


class Declare(msgspec.Struct, frozen=True, kw_only=True, tag="declare"):
    """Relay: say the tensors."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Relay: there will be none."""

    line: Annotated[str, msgspec.Meta(max_length=LINE_CHARS_MAX)]


class _Shown(msgspec.Struct, frozen=True):
    token: _Token


FromMember = Ask | Measured
FromRelay = Given | Wait | Declare | Refused
_ENCODER = msgspec.msgpack.Encoder()
_MEMBER = msgspec.msgpack.Decoder(FromMember)
_SHOWN = msgspec.msgpack.Decoder(_Shown)
_RELAY = msgspec.msgpack.Decoder(FromRelay)


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says: a rank among the members of a start of a job, and the user that it runs as."""

    job: str
    start: int
    rank: int
    members: int
    uid: int

    @property
    def text(self) -> str:
        """Text of it in the token."""
        return f"{self.job}/{self.start}/{self.rank}/{self.members}/{self.uid}"


def token_of(ticket: Ticket, key: bytes) -> str:
    """The token of a ticket; ``key`` is the agent's own."""
    return f"{ticket.text}/{_code(ticket.text, key)}"


def ticket_in(token: str) -> Ticket:
    """The ticket of a token, whether or not its code is right.

    Raises:
        RemoteProtocolError: It is no token.
    """
    parts = token.split("/")
    try:
        job, (start, rank, members, uid) = parts[0], map(int, parts[1:5])
    except ValueError:
        raise RemoteProtocolError("this is no token of a member") from None
    if len(parts) != 6 or not job or not 0 <= rank < members <= MEMBERS_MAX:
        raise RemoteProtocolError("this is no token of a member")
    return Ticket(job=job, start=start, rank=rank, members=members, uid=uid)


def proved_ticket(token: str, key: bytes, uid: int) -> Ticket:
    """The ticket of a token that this agent has given to a process of this user.

    Raises:
        RemoteProtocolError: It has not, or another user's process shows it.
    """
    ticket = ticket_in(token)
    if not hmac.compare_digest(token.rpartition("/")[2].encode(), _code(ticket.text, key).encode()):
        raise RemoteProtocolError("this token is not of this node; run inside the job that Farside started")
    if uid != ticket.uid:
        raise RemoteProtocolError(f"this token is of a process of uid {ticket.uid}, and uid {uid} shows it")
    return ticket


def _code(text: str, key: bytes) -> str:
    return hmac.digest(key, _LABEL + text.encode(), "sha256").hex()[:_CODE_CHARS]


def encoded(message: FromMember | FromRelay) -> bytes:
    """A message with its length before it."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


def length_of(head: bytes, most: int = BYTES_MAX) -> int:
    """Bytes of the message behind this head, at most ``most``.

    Raises:
        RemoteProtocolError: More than there may be.
    """
    length = int.from_bytes(head, "little")
    if not 0 < length <= most:
        raise RemoteProtocolError(f"a message has 1 to {most} bytes, not {length}")
    return length


def token_in(body: bytes) -> str:
    """The token of a member's message. The rest is passed over: it costs nothing before the token is proved.

    Raises:
        RemoteProtocolError: It has none.
    """
    try:
        return _SHOWN.decode(body).token
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"no message of a member: {error}") from None


def from_member(body: bytes) -> FromMember:
    """A message of a member.

    Raises:
        RemoteProtocolError: It is none of this version.
    """
    try:
        message: FromMember = _MEMBER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"no message of a member: {error}") from None
    if message.version != VERSION:
        raise RemoteProtocolError(f"version {message.version} is not spoken here, only {VERSION}; update Farside")
    if isinstance(message, Ask) and message.rule not in RULES:
        raise RemoteProtocolError(f"there is no rule '{message.rule}'; there are {', '.join(RULES)}")
    return message


def from_relay(body: bytes) -> FromRelay:
    """A message of the relay.

    Raises:
        RemoteProtocolError: It is none of this version.
    """
    try:
        message: FromRelay = _RELAY.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"no message of a relay: {error}") from None
    return message
