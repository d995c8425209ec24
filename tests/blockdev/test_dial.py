"""How a borrower reaches a donor whose queue of connections is full, or whose name has several addresses."""

import asyncio
import errno
import os
import socket
from typing import Any
from unittest.mock import patch

import pytest

from farside.blockdev.donor import dial


def test_a_first_packet_that_was_dropped_is_followed_by_another_before_the_kernel_sends_it_again() -> None:
    """[M1] Strangers who come faster than a donor accepts have the kernel drop packets for a second at least."""
    tries: list[tuple[Any, ...] | str] = []
    ours, theirs = socket.socketpair()

    async def connect(_: int, address: tuple[Any, ...] | str) -> socket.socket:
        tries.append(address)
        if len(tries) < 3:
            await asyncio.Event().wait()
        return ours

    with ours, theirs, patch.object(dial, "CONNECT_AGAIN_S", 0.001), patch.object(dial, "_connect", connect):
        assert asyncio.run(asyncio.wait_for(dial.connect("tcp:127.0.0.1:7677"), 60)) is ours

    assert tries == [("127.0.0.1", 7677)] * 3


def test_a_first_try_that_takes_long_is_taken_though_others_were_begun_and_those_are_closed() -> None:
    """A busy donor answers the first packet late: a try that was given up for the next would be behind all others."""
    begun: list[asyncio.Event] = []
    ours, theirs = socket.socketpair()
    spare, other = socket.socketpair()

    async def connect(*_: object) -> socket.socket:
        begun.append(asyncio.Event())
        if len(begun) == 1:
            while len(begun) < 3:
                await asyncio.sleep(0)
            return ours
        if len(begun) == 3:
            return spare  # in the same turn as the first
        await asyncio.Event().wait()
        raise AssertionError

    async def dialled() -> socket.socket:
        async with asyncio.timeout(60):
            got = await dial.connect("tcp:127.0.0.1:7677")
            while asyncio.all_tasks() != {asyncio.current_task()}:  # until no try is left
                await asyncio.sleep(0)
        return got

    with ours, theirs, spare, other, patch.object(dial, "CONNECT_AGAIN_S", 0.001):
        with patch.object(dial, "_connect", connect):
            got = asyncio.run(dialled())
        assert got in (ours, spare)
        assert (got.fileno() < 0, (spare if got is ours else ours).fileno() < 0) == (False, True)


FIRST, SECOND = ("192.0.2.1", 7677), ("192.0.2.2", 7677)


async def dialled(answers: dict[tuple[Any, ...], list[socket.socket | OSError | None]]) -> socket.socket:
    """Connects to a name of these addresses. Each tells its answer to each try, the last one from then on.

    None: nothing comes.
    """

    async def found(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in answers]

    async def connect(_: int, address: tuple[Any, ...]) -> socket.socket:
        left = answers[address]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, OSError):
            raise answer
        assert answer is not None
        return answer

    with (
        patch.object(dial, "CONNECT_AGAIN_S", 0.001),
        patch.object(dial, "_connect", connect),
        patch.object(asyncio.get_running_loop(), "getaddrinfo", found),
    ):
        async with asyncio.timeout(60):
            return await dial.connect("tcp:donor.example:7677")


def failed(number: int) -> OSError:
    """As the kernel says it."""
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "first", [None, failed(errno.ETIMEDOUT), failed(errno.ECONNREFUSED)], ids=["silent", "ETIMEDOUT", "ECONNREFUSED"]
)
def test_where_a_names_first_address_does_not_answer_the_second_is_taken(first: OSError | None) -> None:
    """The kernel's ETIMEDOUT is a TimeoutError in Python: it was tried again without a pause, and the second never."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert asyncio.run(dialled({FIRST: [first], SECOND: [ours]})) is ours


def test_silent_addresses_are_tried_again_in_turns_until_one_answers() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert asyncio.run(dialled({FIRST: [None, None, ours], SECOND: [None]})) is ours


def test_a_try_that_fails_for_want_of_a_descriptor_ends_no_earlier_one() -> None:
    ours, theirs = socket.socketpair()
    begun: list[asyncio.Event] = []

    async def connect(*_: object) -> socket.socket:
        begun.append(asyncio.Event())
        if len(begun) > 1:
            begun[0].set()
            raise failed(errno.EMFILE)
        await begun[0].wait()
        await asyncio.sleep(0)  # the other one has failed
        await asyncio.sleep(0)
        return ours

    with ours, theirs, patch.object(dial, "CONNECT_AGAIN_S", 0.001), patch.object(dial, "_connect", connect):
        assert asyncio.run(asyncio.wait_for(dial.connect("tcp:127.0.0.1:7677"), 60)) is ours
    assert len(begun) == 2, "the address is not tried again"


def test_where_each_address_refuses_the_last_reason_is_raised() -> None:
    answers: dict[tuple[Any, ...], list[socket.socket | OSError | None]] = {
        FIRST: [failed(errno.ETIMEDOUT)], SECOND: [failed(errno.EHOSTUNREACH)],
    }  # fmt: skip

    with pytest.raises(OSError, match=os.strerror(errno.EHOSTUNREACH)):
        asyncio.run(dialled(answers))
