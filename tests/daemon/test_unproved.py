"""Strangers at a donor's door, who have no key: they keep nobody out who has it [M1]."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.protocol import Connection, Side
from farside.daemon.slab.sessions import SESSIONS_AN_ADDRESS, Ledger, Refused
from farside.proof import UNPROVED_AN_ADDRESS, Unproved
from tests.daemon.plane import KEY, Plane, running, until
from tests.daemon.test_process import daemon, status, write_config
from tests.support.ports import free_port
from tests.support.waiting import until as until_true

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


async def let_in(port: int, node: str) -> m.Welcome:
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection = Connection(
        side=Side.BORROWER, keys=(KEY,), nonce=os.urandom(m.NONCE_BYTES), node=node, features=m.Feature.NONE
    )
    channel = Channel(sock, connection)
    try:
        return await channel.open()
    finally:
        channel.close()


@pytest.mark.long
@pytest.mark.parametrize("addresses", [1, 64])
def test_ten_thousand_strangers_keep_no_borrower_out(addresses: int, tmp_path: Path) -> None:
    """[M1] By a network, and a donor as a process."""
    strangers, port = 10_000, free_port()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < strangers + 200:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("listen = [", f"listen = ['tcp:127.0.0.1:{port}', "))
    with daemon(config), ExitStack() as stack:
        until_true(lambda: status(tmp_path), what="the donor's status")
        for number in range(strangers):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.bind((f"127.0.0.{1 + number % addresses}", 0))
            sock.connect_ex(("127.0.0.1", port))
            if number % 500 == 0:
                assert asyncio.run(let_in(port, f"b{number}")).session
        for number in range(20):
            assert asyncio.run(let_in(port, f"c{number}")).session
