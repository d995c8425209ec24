"""The protocol between node agents and manager: JSON in text frames, and which side may send which. PURE.

How it works
============
One WebSocket a node, opened by the agent at ``PATH`` with a bearer token of role node. Each text frame is one JSON
object of at most 1 MiB with ``v``, the protocol's version, and ``type``; `messages.py` says what else. The order::

    agent                                                   manager
      HELLO  what the node is, tasks it knows            ->
                                                         <-  WELCOME  generation
      REPORT seq, readings, tasks that changed           ->
                                                         <-  ACK seq; at any time START, STOP, EXTEND, FORGET, PROBE,
                                                             DONORS, LENDING, SERVICE, POWEROFF
      PROBED  the answer to a PROBE                      ->

`AgentSide` and `ManagerSide` keep that order: frames go in and messages come out, and the other way round. A fault of
ours raises LocalProtocolError and nothing is sent. A fault of the peer raises RemoteProtocolError, whose code is the
WebSocket close code to hang up with and whose text is the one line to say.

Guarantees: a manager that wrote a START or STOP and lost the connection sends it again, and the agent does it once,
by (task_id, start). A report that was not acknowledged comes again after reconnection, before any newer one. Reports
are whole states, so that repeating them is harmless.

Versions: ``v`` grows only where an older reader would do the wrong thing; it is refused then, in one line. Unknown
fields are skipped and new ones have defaults, which is how Farside N and N-1 work together. Unknown types are refused.

Rejected: gRPC (a code generator, and no browser speaks it for the same endpoint), msgpack (a person with `websocat`
should be able to read along; reports are small), polling (START would wait for the next poll).
"""

from enum import IntEnum
from typing import TypeAlias, TypeVar, get_args

import msgspec

from farside.agent import messages as m
from farside.errors import LocalProtocolError, RemoteProtocolError

PATH = "/v1/agents/session"
VERSION_MIN = 1
VERSION_MAX = 1
FRAME_BYTES_MAX = 1 << 20
"""A HELLO of 512 tasks is at most 0.9 MB; arguments and environment of a task rarely pass 64 KiB."""

REASON_BYTES_MAX = 123
"""Of a close frame, beside its code (RFC 6455 §5.5)."""


def lost_after_s(fence_s: float) -> float:
    """How long a manager must not have heard of a node with this fence before other starts of its jobs may begin.

    Its tasks get SIGTERM after ``fence_s``, and SIGKILL after half of that more at most. The other half is for a
    machine that is slow, and a task supervisor's look at its record may be a second late. No fence: 0.
    """
    return 2 * fence_s + 2.0 if fence_s else 0.0


class CloseCode(IntEnum):
    """Why a side hangs up: WebSocket close codes of ours (4000 to 4999 are private use, RFC 6455 §7.4.2)."""

    MALFORMED = 4400  # no frame of this protocol, or not its turn
    FORBIDDEN = 4403  # the token is not this node's
    NAME_TAKEN = 4409  # another machine, or another agent of the same, has this name
    FENCED = 4412  # a manager of an older generation
    VERSION = 4426  # no common version


# Decoded first and alone: a frame of another version is refused as that, and not for a field that it has otherwise.
class _Head(msgspec.Struct, frozen=True):
    v: int
    type: str


Text: TypeAlias = str | bytes
MessageT = TypeVar("MessageT", bound=m.Message)

_HEAD = msgspec.json.Decoder(_Head)
_ENCODER = msgspec.json.Encoder()
_FROM_AGENT: dict[str, msgspec.json.Decoder[m.AgentMessage]] = {
    kind.__name__.lower(): msgspec.json.Decoder(kind) for kind in get_args(m.AgentMessage)
}
_FROM_MANAGER: dict[str, msgspec.json.Decoder[m.ManagerMessage]] = {
    kind.__name__.lower(): msgspec.json.Decoder(kind) for kind in get_args(m.ManagerMessage)
}


def decode_from_agent(frame: Text) -> m.AgentMessage:
    """The message that an agent sent.

    Raises:
        RemoteProtocolError: it is none; the code is a `CloseCode`.
    """
    return _decode(frame, _FROM_AGENT)


def decode_from_manager(frame: Text) -> m.ManagerMessage:
    """The message that a manager sent.

    Raises:
        RemoteProtocolError: it is none; the code is a `CloseCode`.
    """
    return _decode(frame, _FROM_MANAGER)


def encode(message: m.AgentMessage | m.ManagerMessage) -> str:
    """The frame of a message.

    Raises:
        LocalProtocolError: a field is out of its bounds, or the frame too long; a peer would refuse it.
    """
    name = type(message).__name__
    try:
        body = _ENCODER.encode(message)
        # {"type": ...} becomes {"v": 1, "type": ...}
        frame = b'{"v":%d,%s' % (VERSION_MAX, body[1:])
        # msgspec checks bounds when it decodes, and not when it encodes: so the frame is read as the peer will read it.
        if isinstance(message, m.AgentMessage):
            decode_from_agent(frame)
        else:
            decode_from_manager(frame)
    except (msgspec.MsgspecError, UnicodeError, RemoteProtocolError) as error:
        raise LocalProtocolError(f"{name.upper()} cannot be sent: {error}") from error
    return frame.decode()


def close_reason(error: RemoteProtocolError) -> str:
    """What to say with its close code: the error's text, cut to what a close frame holds."""
    return str(error).encode()[:REASON_BYTES_MAX].decode(errors="ignore")


class AgentSide:
    """The order of frames on one connection as the agent keeps it.

    Attributes:
        generation: The manager's, from WELCOME; 0 before.
        acked: Highest sequence that the manager has acknowledged on this connection.
    """

    def __init__(self, *, seen_generation: int = 0) -> None:
        """``seen_generation`` is the highest this node ever took a command of."""
        self.generation = 0
        self.acked = 0
        # Over all connections, unlike `generation`: a manager that was replaced must not get through by a new
        # connection.
        self._seen = seen_generation
        self._said_hello = False
        self._sent = 0

    @property
    def is_open(self) -> bool:
        """WELCOME has come."""
        return self.generation > 0

    def send(self, message: m.AgentMessage) -> str:
        """The frame to send: HELLO first, and reports once WELCOME has come, in the order of their numbers.

        Raises:
            LocalProtocolError: it is not its turn, or it cannot be encoded; nothing has changed.
        """
        if isinstance(message, m.Hello):
            if self._said_hello:
                raise LocalProtocolError("HELLO is the first frame only")
        elif isinstance(message, m.Probed):
            if not self.is_open:
                raise LocalProtocolError("PROBED answers a PROBE")
        # Reports that come again after reconnection keep their numbers, so these only grow within one connection.
        elif not self.is_open or message.seq <= self._sent:
            raise LocalProtocolError(f"REPORT {message.seq} cannot be sent now, after {self._sent}")
        frame = encode(message)
        self._said_hello = True
        self._sent = message.seq if isinstance(message, m.Report) else self._sent
        return frame

    def receive(self, frame: Text) -> m.ManagerMessage:
        """What the manager says.

        Raises:
            RemoteProtocolError: the manager did what the protocol forbids; hang up with its code.
        """
        message = decode_from_manager(frame)
        if isinstance(message, m.Welcome):
            self._welcome(message)
        elif not self.is_open:
            raise _fault(CloseCode.MALFORMED, f"{type(message).__name__.upper()} before WELCOME")
        elif isinstance(message, m.Ack):
            # An acknowledgement of what the manager can't have would drop reports that it never got.
            if message.seq > self._sent:
                raise _fault(CloseCode.MALFORMED, f"ACK of report {message.seq}, which was not sent on this connection")
            self.acked = max(self.acked, message.seq)
        elif isinstance(message, m.Start | m.Stop | m.Extend | m.Lending | m.Service | m.PowerOff):
            self._check_generation(message.generation)
        return message

    def _welcome(self, message: m.Welcome) -> None:
        if self.is_open or not self._said_hello:
            raise _fault(CloseCode.MALFORMED, "WELCOME answers one HELLO only")
        if message.generation == 0:
            raise _fault(CloseCode.MALFORMED, "WELCOME of generation 0; they are counted from 1")
        self._check_generation(message.generation)
        self.generation = message.generation

    def _check_generation(self, generation: int) -> None:
        # Equal is fine: one manager says many things in its generation.
        obeyed = max(self._seen, self.generation)
        if generation < obeyed:
            raise _fault(CloseCode.FENCED, f"generation {generation} is over, this node obeys {obeyed}")
        self._seen = max(self._seen, generation)


class ManagerSide:
    """The order of frames on one connection as the manager keeps it.

    Attributes:
        hello: What the agent said it is; None before.
    """

    def __init__(self) -> None:
        self.hello: m.Hello | None = None
        self._welcomed = False
        self._last_seq = 0

    def send(self, message: m.ManagerMessage) -> str:
        """The frame to send: WELCOME once, after HELLO, and then anything.

        Raises:
            LocalProtocolError: it is not its turn, or it cannot be encoded; nothing has changed.
        """
        is_welcome = isinstance(message, m.Welcome)
        if self.hello is None or is_welcome is self._welcomed:
            raise LocalProtocolError(f"{type(message).__name__.upper()} cannot be sent now")
        frame = encode(message)
        self._welcomed = True
        return frame

    def receive(self, frame: Text) -> m.AgentMessage:
        """What the agent says; reports come with growing numbers.

        Raises:
            RemoteProtocolError: the agent did what the protocol forbids; hang up with its code.
        """
        message = decode_from_agent(frame)
        if isinstance(message, m.Hello):
            if self.hello is not None:
                raise _fault(CloseCode.MALFORMED, "HELLO is the first frame only")
            self.hello = message
            return message
        if not self._welcomed:
            raise _fault(CloseCode.MALFORMED, f"{type(message).__name__.upper()} before WELCOME")
        if isinstance(message, m.Probed):
            return message
        # Greater, and not by one: a connection may begin with any number, after reports that are acknowledged.
        if message.seq <= self._last_seq:
            raise _fault(CloseCode.MALFORMED, f"REPORT {message.seq} after {self._last_seq}")
        self._last_seq = message.seq
        return message


def _decode(frame: Text, decoders: dict[str, msgspec.json.Decoder[MessageT]]) -> MessageT:
    if _length(frame) > FRAME_BYTES_MAX:
        raise _fault(CloseCode.MALFORMED, f"a frame is at most {FRAME_BYTES_MAX} bytes long")
    try:
        head = _HEAD.decode(frame)
        if not VERSION_MIN <= head.v <= VERSION_MAX:
            raise _fault(
                CloseCode.VERSION,
                f"protocol version {head.v} is not spoken here, only {VERSION_MIN} to {VERSION_MAX}",
                hint="bring manager and agents to versions of Farside that are at most one apart",
            )
        decoder = decoders.get(head.type)
        if decoder is None:
            raise _fault(CloseCode.MALFORMED, f"no type {head.type!r:.40}; there are {', '.join(decoders)}")
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _fault(CloseCode.MALFORMED, f"no frame of this protocol: {error}") from error


def _length(frame: Text) -> int:
    # A text of fewer characters may have more bytes; only where it could matter are they counted.
    if isinstance(frame, bytes) or len(frame) > FRAME_BYTES_MAX or len(frame) * 4 <= FRAME_BYTES_MAX:
        return len(frame)
    return len(frame.encode(errors="surrogatepass"))


def _fault(code: CloseCode, text: str, *, hint: str = "") -> RemoteProtocolError:
    # One line, whatever a peer wrote into the text that is quoted.
    return RemoteProtocolError(" ".join(text.split())[:400], code=code, hint=hint)
