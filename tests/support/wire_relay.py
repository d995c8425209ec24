"""Someone on the wire between a borrower and its donor, who has no key: passes frames on, and spoils one when told.

How it works. Each connection begins with frames of the control protocol (daemon/control/protocol.py); after WELCOME a
data connection goes on with those of kmod_shim/engine/wire.h. Both say in the clear how long they are, and a request
how long its answer is. Two threads a connection read one frame after the other, and send it.

`Relay.arm` names a way to spoil one frame. What has to hold a frame until the next one comes lets it go when none
comes, and tries another.
"""

import random
import select
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from farside.daemon.control import messages as m

HELD_S = 0.1
KEPT_MAX = 4096  # pages that are kept to be replayed, of each direction
LIMIT_S = 60.0
PAGE_BYTES = 4096
TO_DONOR, TO_BORROWER = "to the donor", "to the borrower"

_CONTROL = struct.Struct("<IHHI")  # the first number is the length of what follows it
_REQUEST, _REPLY = struct.Struct("<IHHIIQQQ"), struct.Struct("<IIQ")
_REQUEST_MAGIC, _REPLY_MAGIC = 0x31515246, 0x31505246
_READ, _WRITE = 1, 2
_CODE_BYTES, _CONTROL_CODE_BYTES = 8, 16
_HANDSHAKE_FRAMES = 2  # each way: HELLO and AUTH, HELLO_REPLY and WELCOME


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame. ``place``: of the pages in its payload, as lease, offset and length."""

    head: bytes
    payload: bytes = b""
    place: tuple[int, ...] = ()

    @property
    def data(self) -> bytes:
        """As it is on the wire."""
        return self.head + self.payload

    def pages(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Each page of the payload, by lease and offset."""
        for at in range(0, len(self.payload), PAGE_BYTES):
            yield (self.place[0], self.place[1] + at), self.payload[at : at + PAGE_BYTES]


@dataclass
class Stream:
    """One direction of one connection.

    Attributes:
        kept: What pages once were when they went this way, by lease and offset.
        held: A frame that was not passed on yet.
    """

    rng: random.Random
    way: str
    kept: dict[tuple[int, int], bytes]
    is_data: bool = False
    held: Frame | None = None

    def keep(self, frame: Frame) -> None:
        """Remembers the frame's pages."""
        if len(self.kept) > KEPT_MAX:
            self.kept.clear()  # a new lease has other places
        for place, page in frame.pages():
            self.kept.setdefault(place, page)

    def release(self) -> list[Frame]:
        """What is held, which is then not held any more."""
        held, self.held = self.held, None
        return [held] if held is not None else []


class Sent(NamedTuple):
    """What goes on in a frame's place, whether that was spoilt, whether the connection ends then, and wrong pages."""

    data: bytes
    is_spoilt: bool = True
    is_cut: bool = False
    pages: int = 0


Spoil = Callable[[Stream, Frame], Sent]


# ---------------------------------------------------------------------------------------- ways to spoil


def flip_head(stream: Stream, frame: Frame) -> Sent:
    """Another bit in the head, or in its code."""
    return Sent(_flipped(stream.rng, frame.head) + frame.payload)


def replay_frame(_: Stream, frame: Frame) -> Sent:
    """The frame twice."""
    return Sent(frame.data + frame.data)


def drop_frame(_stream: Stream, _frame: Frame) -> Sent:
    """Nothing in its place."""
    return Sent(b"")


def cut(_: Stream, frame: Frame) -> Sent:
    """The connection ends in the middle of it."""
    return Sent(frame.data[: len(frame.data) // 2], is_cut=True)


def reorder(stream: Stream, frame: Frame) -> Sent:
    """The next frame before it."""
    if stream.held is None:
        stream.held = frame
        return Sent(b"", is_spoilt=False)
    (first,) = stream.release()
    return Sent(frame.data + first.data)


def forge_frame(stream: Stream, frame: Frame) -> Sent:
    """A frame of the relay's own before it, right in all but the code.

    On a data connection: a WRITE of noise to where this frame goes, by its lease and token, which can be read on the
    wire; or the answer that is awaited, with noise for pages.
    """
    rng = stream.rng
    if not stream.is_data:
        return Sent(frame.head[:-_CONTROL_CODE_BYTES] + rng.randbytes(_CONTROL_CODE_BYTES) + frame.data)
    if stream.way == TO_DONOR:
        _, _, _, lease, _, offset, token, cookie = _REQUEST.unpack_from(frame.head)
        head = _REQUEST.pack(_REQUEST_MAGIC, _WRITE, 0, lease, PAGE_BYTES, offset, token, cookie)
        return Sent(head + rng.randbytes(_CODE_BYTES) + rng.randbytes(PAGE_BYTES) + frame.data)
    _, _, cookie = _REPLY.unpack_from(frame.head)
    head = _REPLY.pack(_REPLY_MAGIC, 0, cookie)
    return Sent(head + rng.randbytes(_CODE_BYTES) + rng.randbytes(len(frame.payload)) + frame.data)


def flip_page(stream: Stream, frame: Frame) -> Sent:
    """Another bit in the pages behind an untouched head."""
    return _with_payload(frame, _flipped(stream.rng, frame.payload) if frame.payload else b"")


def replay_page(stream: Stream, frame: Frame) -> Sent:
    """A page that was in the same place before, behind an untouched head."""
    for number, (place, page) in enumerate(frame.pages()):
        old = stream.kept.get(place, page)
        if old != page:
            at = number * PAGE_BYTES
            return _with_payload(frame, frame.payload[:at] + old + frame.payload[at + PAGE_BYTES :])
    return Sent(frame.data, is_spoilt=False)


def forge_page(stream: Stream, frame: Frame) -> Sent:
    """Noise behind an untouched head."""
    return _with_payload(frame, stream.rng.randbytes(len(frame.payload)))


def swap_pages(stream: Stream, frame: Frame) -> Sent:
    """The payloads of two frames, each behind the other's head."""
    if not frame.payload:
        return Sent(b"".join(each.data for each in [*stream.release(), frame]), is_spoilt=False)
    if stream.held is None:
        stream.held = frame
        return Sent(b"", is_spoilt=False)
    (first,) = stream.release()
    if len(first.payload) != len(frame.payload):
        return Sent(first.data + frame.data, is_spoilt=False)
    wrong = 2 * _pages_changed(first.payload, frame.payload)
    # Equal payloads are where they belong in either order.
    return Sent(first.head + frame.payload + frame.head + first.payload, is_spoilt=wrong > 0, pages=wrong)


def _with_payload(frame: Frame, payload: bytes) -> Sent:
    wrong = _pages_changed(frame.payload, payload)
    return Sent(frame.head + payload, is_spoilt=wrong > 0, pages=wrong)


def _pages_changed(old: bytes, new: bytes) -> int:
    return sum(old[at : at + PAGE_BYTES] != new[at : at + PAGE_BYTES] for at in range(0, len(old), PAGE_BYTES))


def _flipped(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


What = tuple[str, str, str]
"""A way to spoil: the kind of connection, a name, a direction."""
_OF_FRAMES: dict[str, Spoil] = {
    "flips a head": flip_head, "replays a frame": replay_frame, "drops a frame": drop_frame, "cuts": cut,
    "forges a frame": forge_frame,
}  # fmt: skip
_OF_PAGES: dict[str, Spoil] = {
    "reorders frames": reorder, "flips a page": flip_page, "replays a page": replay_page, "swaps pages": swap_pages,
    "forges a page": forge_page,
}  # fmt: skip
WAYS: dict[What, Spoil] = {
    (connection, name, way): spoil
    for connection, table in (("data", _OF_FRAMES | _OF_PAGES), ("control", _OF_FRAMES))
    for name, spoil in table.items()
    for way in (TO_DONOR, TO_BORROWER)
}


# ------------------------------------------------------------------------------------------- the relay


class Relay:
    """Listens on a port of loopback, and passes everything on to a donor on another one.

    Attributes:
        port: Where it listens.
        done: How many frames it has spoilt, by the way.
        pages: How many pages were wrong in them behind heads that are right.
    """

    def __init__(self, donor_port: int, seed: int) -> None:
        self.done: Counter[What] = Counter()
        self.pages = 0
        self._donor_port = donor_port
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._kept: dict[str, dict[tuple[int, int], bytes]] = {TO_DONOR: {}, TO_BORROWER: {}}
        self._armed: What | None = None
        self._skip = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def arm(self, what: What, *, skip: int) -> None:
        """Spoils one frame in this way: the first to which that can be done after ``skip`` others of its direction."""
        with self._lock:
            self._armed, self._skip = what, skip

    @property
    def is_armed(self) -> bool:
        """Whether what was armed last is still to be done."""
        with self._lock:
            return self._armed is not None

    def close(self) -> None:
        """Takes no connection any more; those that there are end with their ends."""
        self._listener.shutdown(socket.SHUT_RDWR)  # close() alone would leave accept() waiting
        self._accepting.join()
        self._listener.close()

    def stream(self, way: str) -> Stream:
        """One direction of a new connection."""
        with self._lock:
            return Stream(rng=random.Random(self._rng.random()), way=way, kept=self._kept[way])

    def spoil(self, stream: Stream, frame: Frame) -> Sent:
        """What to send in this frame's place."""
        with self._lock:
            what = self._armed
            stream.keep(frame)
            is_meant = what is not None and (what[0] == "data", what[2]) == (stream.is_data, stream.way)
            if is_meant and self._skip:
                self._skip -= 1
                is_meant = False
            if what is None or not is_meant:
                before = b"".join(held.data for held in stream.release())
                return Sent(before + frame.data, is_spoilt=False)
            sent = WAYS[what](stream, frame)
            if sent.is_spoilt:
                self.done[what] += 1
                self.pages += sent.pages
                self._armed = None
            return sent

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                borrower, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(borrower,), daemon=True).start()

    def _connect(self, borrower: socket.socket) -> None:
        try:
            donor = socket.create_connection(("127.0.0.1", self._donor_port), LIMIT_S)
        except OSError:
            borrower.close()
            return
        donor.settimeout(None)
        for end in (borrower, donor):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _Connection(self, borrower, donor).run()


class _Connection:
    """Both directions of one connection, until either end closes it or the relay cuts it."""

    def __init__(self, relay: Relay, borrower: socket.socket, donor: socket.socket) -> None:
        self._relay = relay
        self._borrower, self._donor = borrower, donor
        self._is_data = False  # known after HELLO
        self._owed: deque[tuple[int, ...]] = deque()  # places that READs have asked for, and () for WRITEs
        self._out, self._in = (relay.stream(way) for way in (TO_DONOR, TO_BORROWER))

    def run(self) -> None:
        answers = threading.Thread(
            target=self._pass_on, args=(self._donor, self._borrower, self._in, self._answer), daemon=True
        )
        answers.start()
        self._pass_on(self._borrower, self._donor, self._out, self._request)
        answers.join()
        self._borrower.close()
        self._donor.close()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, stream: Stream, next_frame: Callable[[], Frame]
    ) -> None:
        frames = 0
        with suppress(OSError, EOFError):
            while True:
                stream.is_data = self._is_data and frames >= _HANDSHAKE_FRAMES
                while stream.held is not None and not select.select([source], [], [], HELD_S)[0]:
                    target.sendall(b"".join(held.data for held in stream.release()))
                sent = self._relay.spoil(stream, next_frame() if stream.is_data else self._control(source))
                frames += 1
                target.sendall(sent.data)
                if sent.is_cut:
                    break
        # Both ends hear of it, and so does the thread of the other direction.
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _control(self, source: socket.socket) -> Frame:
        head = _exactly(source, _CONTROL.size)
        length, _, kind, _ = _CONTROL.unpack(head)
        rest = _exactly(source, length + 4 - _CONTROL.size)
        if kind == m.TYPE_NUMBERS[m.Hello]:
            self._is_data = msgspec.msgpack.decode(rest, type=m.Hello).role == "data"
        return Frame(head=head + rest)

    def _request(self) -> Frame:
        head = _exactly(self._borrower, _REQUEST.size + _CODE_BYTES)
        _, op, _, lease, length, offset, _, _ = _REQUEST.unpack_from(head)
        place = (lease, offset, length)
        self._owed.append(place if op == _READ else ())
        return Frame(head=head, payload=_exactly(self._borrower, length) if op == _WRITE else b"", place=place)

    def _answer(self) -> Frame:
        head = _exactly(self._donor, _REPLY.size + _CODE_BYTES)
        if not self._owed:
            raise EOFError("the donor answers what nobody asked")
        place = self._owed.popleft()
        return Frame(head=head, payload=_exactly(self._donor, place[2]) if place else b"", place=place)


def _exactly(source: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = source.recv(length - len(parts))
        if not part:
            raise EOFError("the end")
        parts += part
    return bytes(parts)
