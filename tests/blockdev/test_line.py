"""A control connection in use: what happens to answers that nobody waits for any more."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import cast

import pytest

from farside.blockdev.donor.control_connection import ASKS_MAX, Line
from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.errors import LocalProtocolError, PeerError

LEASE = m.Lease(lease=3, token=9, rkey=0, addr=0, length=1 << 23, epoch=1)


class Wire:
    """Where a channel would be: remembers what was said."""

    def __init__(self) -> None:
        self.said: list[m.Message] = []
        self.is_full = False
        self.is_closed = False

    def ask(self, message: m.Message) -> int:
        if self.is_full:
            raise LocalProtocolError("64 requests wait for an answer")
        self.said.append(message)
        return len(self.said)

    def take_fds(self, count: int) -> tuple[int, ...]:
        return tuple(os.memfd_create("slab") for _ in range(count))

    def close(self) -> None:
        self.is_closed = True


def play(body: Callable[[Line, Wire], Coroutine[object, object, None]]) -> Wire:
    wire = Wire()

    async def live() -> None:
        line = Line(
            cast(Channel, wire), has_fds=True, on_notice=lambda *_: None, is_known=lambda lease: False
        )  # fmt: skip
        async with asyncio.timeout(60):
            await body(line, wire)

    asyncio.run(live())
    return wire


async def said(wire: Wire, count: int) -> None:
    while len(wire.said) < count:
        await asyncio.sleep(0)


def test_an_answer_in_the_turn_in_which_its_asker_gives_up_is_put_back() -> None:
    async def body(line: Line, wire: Wire) -> None:
        asker = asyncio.create_task(line.ask(m.Map(device="w"), 5.0))
        await said(wire, 1)
        line._take(1, m.MrInfo(leases=(LEASE,)))
        asker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asker

    before = len(os.listdir("/proc/self/fd"))
    wire = play(body)

    assert wire.said[1:] == [m.Release(leases=(3,))]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lease_that_can_not_be_given_back_ends_the_connection() -> None:
    async def body(line: Line, wire: Wire) -> None:
        wire.is_full = True
        line._take(1, m.MrInfo(leases=(LEASE,)))

    assert play(body).is_closed


def test_who_waits_for_a_turn_waits_no_longer_than_for_an_answer() -> None:
    async def body(line: Line, wire: Wire) -> None:
        async with asyncio.TaskGroup() as group:
            asks = [group.create_task(line.ask(m.KeepAlive(), 10.0)) for _ in range(ASKS_MAX)]
            await said(wire, ASKS_MAX)
            with pytest.raises(PeerError, match="no answer to QueryMem"):
                await line.ask(m.QueryMem(), 0.01)
            for seq in range(1, len(asks) + 1):
                line._take(seq, m.Ok())

    assert play(body).said == [m.KeepAlive()] * ASKS_MAX
