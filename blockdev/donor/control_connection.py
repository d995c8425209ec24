"""An open control connection: requests, their answers, and notices from the donor.

Any number of tasks may ask at once; one task reads. An answer that comes after its asker has given up is not lost: the
descriptors in it are closed, and leases in it that nobody knows are given back. Where that can't be said the connection
ends: leases that are not named in the next RESUME expire.
"""

import asyncio
import os
from collections.abc import Callable

from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.protocol import PeerClosed, Received
from farside.errors import LocalProtocolError, PeerError

# Half of what the protocol allows in flight: the other half is for RELEASE of late answers, which waits for no turn.
ASKS_MAX = 32

Answer = tuple[m.Message, tuple[int, ...]]  # with the descriptors that came beside it


class Line:
    """One open control channel, borrower's side. Owns the channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        has_fds: bool,
        on_notice: Callable[["Line", int, m.Message], None],
        is_known: Callable[[int], bool],
    ) -> None:
        """``has_fds``: MR_INFO brings descriptors. ``on_notice`` gets what the donor asks; ``is_known(lease)``."""
        self._channel = channel
        self._has_fds = has_fds
        self._on_notice = on_notice
        self._is_known = is_known
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._asks = asyncio.Semaphore(ASKS_MAX)

    async def ask(self, message: m.Message, limit_s: float) -> Answer:
        """The donor's answer within ``limit_s``, the wait for our turn included.

        Raises:
            PeerError: it refused, is gone, or is late.
        """
        try:
            # The limit is outside: a caller that waits for its turn behind a donor that does not answer must not wait
            # longer.
            async with asyncio.timeout(limit_s), self._asks:
                answer, fds = await self._exchange(message)
        except TimeoutError as error:
            raise PeerError(f"no answer to {type(message).__name__} within {limit_s:g} s") from error
        if isinstance(answer, m.Error):
            raise PeerError(answer.message, code=answer.code)
        return answer, fds

    async def _exchange(self, message: m.Message) -> Answer:
        try:
            seq = self._channel.ask(message)
        # More in flight than the protocol allows, all without an answer: the donor is what is wrong.
        except LocalProtocolError as error:
            raise PeerError(str(error)) from error
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[seq] = future
        try:
            return await future
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the loop in which the time ran out. Nobody else would close
            # its descriptors, and our KEEPALIVE would keep its lease alive without end.
            if future.done() and not future.cancelled() and not future.exception():
                self.put_back(*future.result())
            raise
        finally:
            self._waiting.pop(seq, None)

    def put_back(self, answer: m.Message, fds: tuple[int, ...]) -> None:
        """Close the descriptors of an unwanted answer, and give back its leases that are not in the table."""
        for fd in fds:
            os.close(fd)
        leases = answer.leases if isinstance(answer, m.MrInfo) else ()
        unknown = tuple(lease.lease for lease in leases if not self._is_known(lease.lease))
        if not unknown:
            return
        try:
            self._channel.ask(m.Release(leases=unknown))
        except (LocalProtocolError, PeerError):
            # The next session's RESUME does not name these leases, so that they expire.
            self._channel.close()

    def answer(self, seq: int, message: m.Message) -> None:
        """Answers what the donor asked."""
        self._channel.answer(seq, message)

    async def read(self) -> None:
        """Handle messages until the connection ends; its end is raised as PeerError or RemoteProtocolError."""
        while True:
            event = await self._channel.next_event()
            if isinstance(event, PeerClosed):
                raise PeerError("the donor closed the connection")
            assert isinstance(event, Received)
            self._take(event.seq, event.message)

    def close(self) -> None:
        """Ends the connection and everything that waits on it."""
        self._channel.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerError("connection lost"))

    def _take(self, seq: int, message: m.Message) -> None:
        fds: tuple[int, ...] = ()
        if self._has_fds and isinstance(message, m.MrInfo):
            # Taken for every MR_INFO, awaited or not: descriptors are counted, and one that is left would belong to the
            # next.
            fds = self._channel.take_fds(len(message.leases))
        if isinstance(message, m.CheckActivity | m.Migrate | m.Evict):
            self._on_notice(self, seq, message)
        elif isinstance(message, m.Error) and seq == 0:
            # Its code is not passed on: only an answer to HELLO can say that our session is gone.
            raise PeerError(f"the donor ended the connection: {message.message}")
        else:
            self._settle(seq, message, fds)

    def _settle(self, seq: int, message: m.Message, fds: tuple[int, ...]) -> None:
        future = self._waiting.get(seq)
        # Its asker has given up.
        if future is None or future.done():
            self.put_back(message, fds)
        else:
            future.set_result((message, fds))
