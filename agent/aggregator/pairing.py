"""Queue pairs to members on other machines: who was invited to make one, and what has become of it.

The Aggregator is the end that reads and writes, as a borrower is; the member's region is what it reaches. A pair that
can't be made within `PAIR_LIMIT_S`, or by which nothing can be read, is counted, and its lane goes by TCP.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from farside.agent.aggregator.door import Feature, Hello, Pair
from farside.errors import EngineError, RemoteProtocolError
from farside.kmod_shim.engine.aggregation import REGION_LEASE
from farside.kmod_shim.engine.binding import RdmaLink, rdma_devices
from farside.log import get_log

_log = get_log("aggregator.rdma")

PAIR_LIMIT_S = 3.0
"""From the invitation to a pair that has been tried; a member waits a little longer for its lane."""
TELL_PERIOD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A link that has read the member's region; ``token`` opens it."""

    link: RdmaLink
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A member that is to connect for its queue pair; ``came``: its connection, and its region's token."""

    number: int
    job: str
    start: int
    came: "asyncio.Future[tuple[socket.socket, int]]"
    until_s: float


class Pairing:
    """The pairs of one Aggregator process that are being made."""

    def __init__(self, *, rdma: str) -> None:
        """``rdma``: the setting."""
        self.lacks = ""
        """Why there is none; empty: there may be."""
        if rdma == "off":
            self.lacks = "off"
        elif not rdma_devices():
            self.lacks = "no RDMA device here, or an engine built without rdma-core"
        self.fallbacks = 0
        self._invited: dict[int, Invitation] = {}
        self._told_s = -TELL_PERIOD_S

    @property
    def features(self) -> Feature:
        """What this Aggregator offers to callers."""
        known = Feature.CODES | Feature.APART
        return known if self.lacks else known | Feature.RDMA

    @contextmanager
    def invited(self, hello: Hello) -> Iterator[Invitation]:
        """An invitation of this caller, for as long as it is waited for."""
        loop = asyncio.get_running_loop()
        made = Invitation(
            number=secrets.randbits(62), job=hello.job, start=hello.start, came=loop.create_future(),
            until_s=time.monotonic() + PAIR_LIMIT_S,
        )  # fmt: skip
        self._invited[made.number] = made
        try:
            yield made
        finally:
            del self._invited[made.number]

    def come(self, hello: Hello, pair: Pair, sock: socket.socket, welcome: bytes) -> None:
        """A member makes its connection for a pair, which is taken.

        Raises:
            RemoteProtocolError: it was not invited, or too late.
        """
        one = self._invited.get(pair.number)
        if one is None or one.came.done() or (one.job, one.start) != (hello.job, hello.start):
            sock.close()
            raise RemoteProtocolError("a queue pair comes to which nobody was invited, or too late")
        try:
            sock.send(welcome)
        except OSError:
            sock.close()
            raise
        one.came.set_result((sock, pair.token))

    async def made(self, invitation: Invitation) -> Made | None:
        """The pair, once it has been tried; None: there is none, and the lane goes by TCP."""
        try:
            async with asyncio.timeout(PAIR_LIMIT_S):
                sock, token = await asyncio.shield(invitation.came)
            return await _made_aside(sock, token, invitation.until_s)
        except TimeoutError:
            self._fell_back(invitation, "the member made no connection for it in time")
        except EngineError as error:
            self._fell_back(invitation, str(error))
        return None

    def _fell_back(self, invitation: Invitation, why: str) -> None:
        self.fallbacks += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_PERIOD_S:
            self._told_s = now_s
            _log.warning("no queue pair to a member; its gradients go by TCP", job=invitation.job, reason=why)


async def _made_aside(sock: socket.socket, token: int, until_s: float) -> Made:
    # In a thread, because both calls block until the fabric has answered. It can't be cancelled: a caller that gives up
    # leaves connection and pair to it.
    def make() -> Made:
        try:
            link = RdmaLink(sock.fileno(), _left_ms(until_s))
        except BaseException:
            sock.close()
            raise
        sock.detach()  # it is the link's now
        try:
            link.probe(REGION_LEASE, token, _left_ms(until_s))
        except BaseException:
            link.close()
            raise
        return Made(link=link, token=token)

    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_made)
        raise


def _left_ms(until_s: float) -> int:
    return max(1, int((until_s - time.monotonic()) * 1000))


def _close_made(making: "asyncio.Future[Made]") -> None:
    with suppress(asyncio.CancelledError):
        if making.exception() is None:
            making.result().link.close()
