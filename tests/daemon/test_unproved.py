"""Strangers at a donor's door, who have no key: they keep nobody out who has it [M1]."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.daemon.newcomers import Newcomers
from farside.daemon.slab.sessions import SESSIONS_AN_ADDRESS, Ledger, Refused
from farside.proof import UNPROVED_AN_ADDRESS, Unproved
from tests.daemon.plane import Plane, running, until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_there_are_never_more_than_allowed_and_the_newest_is_always_in(steps: list[tuple[str, bool]]) -> None:
    crowd = Unproved(an_address=3, all_addresses=6)
    there: dict[int, str] = {}
    for number, (address, leaves) in enumerate(steps):

        def close(number: int = number) -> None:
            del there[number]

        there[number] = address
        crowd.come(address, number, close)
        assert number in there
        assert len(there) == crowd.count <= 6
        assert max(list(there.values()).count(one) for one in "abc") <= 3
        if leaves:
            crowd.leave(there.pop(number), number)


def test_who_has_most_makes_room_for_another_address() -> None:
    crowd = Unproved(an_address=10, all_addresses=4)
    closed: list[str] = []

    def closing(name: str) -> Callable[[], None]:
        return lambda: closed.append(name)

    for name in ("x1", "y1", "x2", "x3"):
        assert crowd.come(name[0], name, closing(name))

    assert not crowd.come("z", "z1", closing("z1"))

    assert closed == ["x1"]


def names_served(newcomers: Newcomers) -> list[str]:
    """The addresses in the order in which they are served."""
    served = []
    while (one := newcomers.take()) is not None:
        one[0].close()
        served.append(one[1])
    return served


def test_who_comes_with_many_is_served_in_turn_with_those_who_come_with_one() -> None:
    """[M1]"""
    newcomers = Newcomers()
    for address in ("stranger",) * 5 + ("b1", "b2"):
        assert newcomers.come(socket.socket(), address)

    assert names_served(newcomers) == ["stranger", "b1", "b2", *("stranger",) * 4]
    assert newcomers.count == 0


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_newcomers_are_bounded_and_the_newest_of_an_address_stay(addresses: list[str]) -> None:
    newcomers = Newcomers(an_address=3, all_addresses=6)
    made = []
    for address in addresses:
        made.append((address, sock := socket.socket()))
        newcomers.come(sock, address)
        assert newcomers.count == len([each for _, each in made if each.fileno() >= 0]) <= 6

    for address in "abc":
        is_open = [sock.fileno() >= 0 for of, sock in made if of == address]
        assert is_open == sorted(is_open), "the oldest went first"
        assert sum(is_open) <= 3
    newcomers.close()
    assert all(sock.fileno() < 0 for _, sock in made)


def test_a_borrower_comes_in_while_strangers_hold_all_places(tmp_path: Path) -> None:
    """[M1] 8,600 connections of one stranger kept borrowers out, and one hiccup of a link cost all slabs."""

    async def live() -> None:
        async with running(Plane(tmp_path)) as plane:
            with ExitStack() as stack:
                strangers = []
                for _ in range(UNPROVED_AN_ADDRESS + 40):
                    sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    sock.connect(os.fspath(plane.path))
                    sock.setblocking(False)
                    strangers.append(sock)
                    await asyncio.sleep(0)
                await until(lambda: plane.status().refused.get("CONNECTIONS", 0) >= 40, "strangers that made room")

                borrower = await plane.borrower()

                assert await borrower.map(1)
                assert await asyncio.get_running_loop().sock_recv(strangers[0], 1) == b"", "the oldest went first"

    asyncio.run(asyncio.wait_for(live(), 60))


def test_one_address_opens_no_session_without_end() -> None:
    """[L10]"""
    ledger = Ledger(lease_expiry_s=10.0)
    for number in range(SESSIONS_AN_ADDRESS):
        ledger.open(number=number + 1, node="greedy", now_s=0.0, address="10.0.0.1")

    with pytest.raises(Refused, match="from this address"):
        ledger.open(number=10_000, node="another", now_s=0.0, address="10.0.0.1")
    assert ledger.open(number=10_001, node="other", now_s=0.0, address="10.0.0.2")
