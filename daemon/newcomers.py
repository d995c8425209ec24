"""Connections of a donor's listener from accept to a proved key: strangers among them keep no borrower out.

How it works
============
A connection here costs a socket and a little memory, and no task. Each turn of the event loop has four steps, each with
a bound: see whose bytes have come, handle them (the handshake of control/protocol.py goes on there and then), end those
that took too long, and accept who waits in the kernel. Who has proved the key becomes a channel, and is let in.

What keeps strangers from locking borrowers out [M1]:

* Two rooms (`Unproved`), each with a bound by address and one for all. In the first is who has not named a key of this
  donor, in the second who has: its HELLO was read, and it was sent the challenge. One more takes the place of the
  oldest of its own room. So whoever can't name a key puts out nobody whose HELLO was read.
* More are handled in a turn than are accepted, so a HELLO that comes with its connection is read a turn or two after
  it was accepted; to fill the first room from one address takes four. What comes in pieces waits behind what is new.
* Who has seen a key's name on the wire can fill the second room. A borrower is in there for one round trip, and the
  room is turned over in four turns of the event loop at the soonest. The right answer is checked as it comes, and
  whoever gave it is in neither room.
* Each address has its turn, so that strangers of one address delay borrowers of another by one connection, not by all.
* Where this process, or the machine, has no descriptor left before the rooms are full, the oldest of the address that
  has most in the first room makes room as well, or of the second where the first is empty; in a turn a quarter of all
  that are there at most. The rooms need `DESCRIPTORS` of them.

Rejected: a challenge that the donor does not keep (as SYN cookies are). What a connection costs is its socket, which
TCP keeps between both messages in any case. To put out one at random and not the oldest: whoever has the key proves it
within milliseconds, and who comes first goes first gives it that time for certain, where chance sometimes does not.
"""

import asyncio
import errno
import select
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.protocol import Connection, NeedData, Output, PeerProved
from farside.daemon.counters import Counters
from farside.errors import RemoteProtocolError
from farside.log import Rarely, get_log
from farside.proof import UNPROVED_ALL, Unproved

_log = get_log("daemon.newcomers")

HANDSHAKE_LIMIT_S = 5.0
"""From accept to a proved key: two round trips, so 5 s is a peer that only holds a place."""
ACCEPTED_A_TURN = 256
"""A quarter of the places that an address has in either room. Some 5 ms; what a borrower says next waits for it."""
HANDLED_A_TURN = 2 * ACCEPTED_A_TURN
"""A connection is new twice: with its HELLO and with its AUTH."""
BACKLOG = 4 * ACCEPTED_A_TURN
"""Connections that wait in the kernel. A borrower that comes behind strangers waits for all of them there, where no
address has its turn. Where it finds no place its first packet is dropped, and it tries again (blockdev/donor/dial.py).
"""
ENDED_A_TURN = ACCEPTED_A_TURN
"""No more become late in a turn than were accepted in one; after a hiccup of this process they take a few turns."""
ACCEPT_PAUSE_S = 0.1
"""After accept failed and nothing could make room, so as not to spin on a listener that stays readable."""
DESCRIPTORS = 2 * UNPROVED_ALL
"""What both rooms of one listener hold when they are full."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)  # this process has none left, or the machine
_READ_BYTES = 4096  # a handshake's frame is a quarter of that at most
_ONCE = select.EPOLLIN | select.EPOLLONESHOT  # not again before it was handled

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue for each address, and each address in turn. PURE."""

    def __init__(self) -> None:
        # Not a dict: to find its first member takes the longer the more were taken out before it.
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, address: str, one: T) -> None:
        """One more, behind those of its address."""
        self._waiting.setdefault(address, deque()).append(one)

    def take(self) -> T | None:
        """The oldest of the address whose turn it is. None: none waits."""
        if not self._waiting:
            return None
        address = next(iter(self._waiting))
        queue = self._waiting[address]
        one = queue.popleft()
        if queue:
            self._waiting.move_to_end(address)  # behind the other addresses
        else:
            del self._waiting[address]
        return one


@dataclass(slots=True, eq=False, kw_only=True)
class _Newcomer:
    sock: socket.socket
    address: str
    since_s: float
    connection: Connection | None = None  # from its first bytes on
    is_new: bool = True  # nothing was read since it came, or since it was sent the challenge


class Newcomers:
    """The connections of one listener that have not proved the key yet."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        begin: Callable[[], Connection],
        let_in: Callable[[Channel, m.Hello, str], None],
        refused: Callable[[m.ErrorCode, str, str], None],
        counters: Counters,
    ) -> None:
        """``begin`` makes the donor's side of a handshake.

        ``let_in`` takes over a channel, what its borrower wants, and the address; ``refused`` is told of the others, by
        code, reason and address.
        """
        self._listener, self._begin, self._let_in, self._refused = listener, begin, let_in, refused
        self._counters = counters
        self._rarely = Rarely()
        self._nameless, self._named = Unproved(), Unproved()
        self._open: OrderedDict[int, _Newcomer] = OrderedDict()  # of both rooms, by descriptor, the oldest first
        self._new: Turns[_Newcomer] = Turns()
        self._again: Turns[_Newcomer] = Turns()
        listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(listener, select.EPOLLIN)

    async def run(self) -> None:
        """Takes connections until cancelled. Never raises for what a peer does."""
        try:
            while True:
                await self._anything()
                # 1. see whose bytes have come
                self._line_up()
                # 2. handle them
                self._handle_some()
                # 3. end those that took too long
                self._end_late()
                # 4. accept who waits in the kernel
                try:
                    self._accept_some()
                except OSError as error:
                    self._warn("a connection could not be taken", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
        finally:
            for one in list(self._open.values()):
                self._close(one)
            self._epoll.close()

    async def _anything(self) -> None:
        """Returns when there is something to do; all other tasks have had their turn."""
        if self._new or self._again:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._epoll.fileno(), _wake, woken)
        late = loop.call_at(self._oldest().since_s + HANDSHAKE_LIMIT_S, _wake, woken) if self._open else None
        try:
            await woken
        finally:
            loop.remove_reader(self._epoll.fileno())
            if late is not None:
                late.cancel()

    def _oldest(self) -> _Newcomer:
        return next(iter(self._open.values()))

    # ---- the steps

    def _line_up(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            one = self._open.get(descriptor)
            if one is not None:  # otherwise it is the listener
                (self._new if one.is_new else self._again).add(one.address, one)

    def _handle_some(self) -> None:
        handled = 0
        while handled < HANDLED_A_TURN and (one := self._new.take() or self._again.take()) is not None:
            # It may have made room for another one while it waited.
            if one.sock.fileno() >= 0:
                handled += 1
                self._handle(one)

    def _end_late(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for _ in range(ENDED_A_TURN):
            if not self._open or self._oldest().since_s + HANDSHAKE_LIMIT_S > now_s:
                return
            self._refuse(self._oldest(), m.ErrorCode.NOT_NOW, f"no proof of the key in {HANDSHAKE_LIMIT_S:g} s")

    def _accept_some(self) -> None:
        """Take what waits in the kernel, up to a bound. Raises OSError: it cannot be taken."""
        left_to_close = 1 + (self._nameless.count + self._named.count) // 4
        for _ in range(ACCEPTED_A_TURN):
            try:
                self._accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                if not _is_readable(self._listener):  # accept(2) looks for a descriptor first, and then who waits
                    return
                if not (self._nameless.make_room() or self._named.make_room()):
                    raise
                self._counters.refused["CONNECTIONS"] += 1
                self._warn("no descriptor is left: connections that have not proved the key make room", error)
                left_to_close -= 1
                if not left_to_close:
                    return

    def _accept(self) -> None:
        """Takes one, or raises what accept(2) does."""
        sock, peer = self._listener.accept()
        sock.setblocking(False)
        # Of an unknown length by family; empty for a unix socket.
        address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        one = _Newcomer(sock=sock, address=address, since_s=asyncio.get_running_loop().time())
        self._enter(self._nameless, one)
        self._open[sock.fileno()] = one
        self._epoll.register(sock, _ONCE)

    def _warn(self, text: str, error: OSError) -> None:
        left_out = self._rarely.may((text, error.errno))
        if left_out is not None:
            hint = "raise the limit of open files (LimitNOFILE)" if error.errno in _NO_DESCRIPTOR else None
            told = {"hint": hint, "more_like_it": left_out}
            _log.warning(text, error=error, **{name: value for name, value in told.items() if value})

    # ---- one connection

    def _handle(self, one: _Newcomer) -> None:
        """Goes on with its handshake. It waits for more afterwards, is let in, or is closed."""
        try:
            data = one.sock.recv(_READ_BYTES)
        except BlockingIOError:
            self._epoll.modify(one.sock, _ONCE)
            return
        except OSError:
            self._close(one)
            return
        one.is_new = False
        try:
            if one.connection is None:
                one.connection = self._begin()
            one.connection.receive(data)
            self._go_on(one, one.connection)
        except RemoteProtocolError as error:
            self._refuse(one, m.ErrorCode(error.code or m.ErrorCode.MALFORMED), str(error))
        # A fault of ours in one handshake must not end the listener for all others.
        except Exception as error:
            _log.error("unexpected fault", cause=error, work="a handshake")
            self._close(one)

    def _go_on(self, one: _Newcomer, connection: Connection) -> None:
        """Raises RemoteProtocolError: it broke the protocol, or does not have the key."""
        while True:
            event = connection.next_event()
            if isinstance(event, Output):
                if not _say(one.sock, event.data):
                    self._close(one)
                    return
                self._nameless.leave(one.address, one)
                self._enter(self._named, one)
                one.is_new = True
            elif isinstance(event, PeerProved):
                self._forget(one)
                self._epoll.unregister(one.sock)
                self._let_in(Channel(one.sock, connection), event.hello, one.address)
                return
            elif isinstance(event, NeedData):
                self._epoll.modify(one.sock, _ONCE)
                return
            else:  # it has closed, or says why it gives up
                self._close(one)
                return

    def _enter(self, room: Unproved, one: _Newcomer) -> None:
        if not room.come(one.address, one, partial(self._close, one)):
            self._counters.refused["CONNECTIONS"] += 1

    def _refuse(self, one: _Newcomer, code: m.ErrorCode, text: str) -> None:
        self._refused(code, text, one.address)
        _say(one.sock, (one.connection or self._begin()).farewell(code, text))
        self._close(one)

    def _close(self, one: _Newcomer) -> None:
        self._forget(one)
        one.sock.close()  # which takes it out of epoll

    def _forget(self, one: _Newcomer) -> None:
        self._open.pop(one.sock.fileno(), None)
        self._nameless.leave(one.address, one)
        self._named.leave(one.address, one)


def _say(sock: socket.socket, data: bytes) -> bool:
    """Whether the kernel took all of it: a frame of a handshake always fits, unless the peer is gone."""
    try:
        return sock.send(data, socket.MSG_NOSIGNAL) == len(data)
    except OSError:
        return False


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()  # which takes no descriptor
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


# The future may be done already: cancelled, or both have come in the same turn of the loop.
def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
