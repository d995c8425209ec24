"""Strangers at a donor's door, who have no key: they keep nobody out who has it [M1]."""

import asyncio
import errno
import os
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.daemon import newcomers
from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.protocol import Connection, Output, Received, Side
from farside.daemon.counters import Counters
from farside.daemon.newcomers import BACKLOG, HANDLED_A_TURN, Newcomers, Turns
from farside.daemon.refusals import ADDRESSES_MAX, Refusals
from farside.daemon.server import DATA_LOOK_S
from farside.daemon.slab.sessions import SESSIONS_AN_ADDRESS, Ledger, Refused
from farside.listen import allow_many_connections
from farside.proof import UNPROVED_AN_ADDRESS, Unproved, subnet
from tests.daemon.plane import KEY, Plane, running, settled, until
from tests.support.ports import free_port
from tests.support.strangers import BEGUN

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


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 5)), max_size=60))
def test_the_oldest_of_its_own_address_or_of_who_has_most_makes_room(steps: list[tuple[str, int]]) -> None:
    crowd = Unproved(an_address=3, all_addresses=7)
    there: dict[int, str] = {}  # the oldest first
    for number, (address, leaves) in enumerate(steps):
        counts = Counter(there.values())
        before = dict(there)

        def close(number: int = number) -> None:
            del there[number]

        there[number] = address
        is_free = crowd.come(address, number, close)

        gone = before.keys() - there.keys()
        assert len(gone) == (not is_free) == (counts[address] == 3 or counts.total() == 7)
        for one in gone:
            assert one == min(other for other in before if before[other] == before[one])
            assert before[one] == address if counts[address] == 3 else counts[before[one]] == max(counts.values())
        if leaves < len(there):
            left = list(there)[leaves]
            crowd.leave(there.pop(left), left)


def test_who_has_most_makes_room_for_another_address() -> None:
    crowd = Unproved(an_address=10, all_addresses=4)
    closed: list[str] = []

    def closing(name: str) -> Callable[[], None]:
        return lambda: closed.append(name)

    for name in ("x1", "y1", "x2", "x3"):
        assert crowd.come(name[0], name, closing(name))

    assert not crowd.come("z", "z1", closing("z1"))

    assert closed == ["x1"]


def test_who_comes_with_many_has_its_turn_with_those_who_come_with_one() -> None:
    """[M1]"""
    turns: Turns[str] = Turns()
    for address, one in (*(("stranger", f"s{number}") for number in range(5)), ("b1", "b1"), ("b2", "b2")):
        turns.add(address, one)

    assert list(iter(turns.take, None)) == ["s0", "b1", "b2", "s1", "s2", "s3", "s4"]
    assert not turns


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=60))
def test_turns_lose_nothing_and_keep_the_order_of_each_address(steps: list[str | None]) -> None:
    turns: Turns[tuple[str, int]] = Turns()
    waiting: dict[str, list[int]] = {address: [] for address in "abc"}
    taken = []
    for number, address in enumerate(steps):
        if address is not None:
            turns.add(address, (address, number))
            waiting[address].append(number)
        elif (one := turns.take()) is not None:
            taken.append(one)
    taken += iter(turns.take, None)

    assert {address: [number for of, number in taken if of == address] for address in "abc"} == waiting


def many_files(count: int) -> None:
    """Lets this process open so many; skips where it may not."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count:
        pytest.skip(f"a process may not open {count} files here")
    allow_many_connections()


class Door:
    """The donor's listener, for a test that comes with many connections before the donor has its turn."""

    def __init__(self, stack: ExitStack, at: str | tuple[str, int]) -> None:
        self._stack, self._at = stack, at

    def come(self, said: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """One connection more, which says this at once."""
        is_local = isinstance(self._at, str)
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX if is_local else socket.AF_INET))
        if not is_local:
            sock.bind((source, 0))
        sock.connect(self._at)
        sock.setblocking(False)
        sock.sendall(said)
        return sock


async def heard(sock: socket.socket) -> bytes:
    """What the donor says next; nothing when it has closed."""
    with suppress(ConnectionResetError):  # it was closed with bytes of ours unread
        return await asyncio.get_running_loop().sock_recv(sock, 4096)
    return b""


async def is_welcome(sock: socket.socket, connection: Connection, challenge: bytes) -> bool:
    """Answers the challenge; whether the donor lets the borrower in."""
    connection.receive(challenge)
    auth = connection.next_event()
    assert isinstance(auth, Output)
    sock.sendall(auth.data)
    connection.receive(await heard(sock))
    event = connection.next_event()
    return isinstance(event, Received) and isinstance(event.message, m.Welcome)


def test_a_borrower_comes_in_while_strangers_of_its_address_hold_all_places(tmp_path: Path) -> None:
    """[M1] 8,600 connections of one stranger kept borrowers out, and one hiccup of a link cost all slabs."""

    async def live() -> None:
        async with running(Plane(tmp_path)) as plane:
            with ExitStack() as stack:
                door = Door(stack, os.fspath(plane.path))
                strangers = []
                for _ in range(UNPROVED_AN_ADDRESS + 40):
                    strangers.append(door.come())
                    await asyncio.sleep(0)
                await until(lambda: plane.status().refused.get("CONNECTIONS", 0) >= 40, "strangers that made room")

                borrower = await plane.borrower()

                assert await borrower.map(1)
                assert await heard(strangers[0]) == b"", "the oldest went first"

    many_files(2 * UNPROVED_AN_ADDRESS)
    asyncio.run(asyncio.wait_for(live(), 60))


def test_a_hello_is_answered_though_more_strangers_of_its_address_come_than_there_are_places(tmp_path: Path) -> None:
    """[M1] Connections of its own address put out a borrower before its HELLO was read: it got in never."""
    strangers = 3 * UNPROVED_AN_ADDRESS // 2

    async def live() -> None:
        async with running(Plane(tmp_path)) as plane:
            with ExitStack() as stack:
                door = Door(stack, os.fspath(plane.path))
                connection = plane.connection()
                # All at once: the donor's loop has its turn only after the last of them.
                for _ in range(strangers):
                    door.come(BEGUN)
                sock = door.come(connection.start())
                for _ in range(strangers):
                    door.come(BEGUN)

                challenge = await heard(sock)
                assert challenge, "the donor closed it"
                # It has named a key: those who can't have a room of their own, however many more come.
                for _ in range(strangers):
                    door.come(BEGUN)
                made_room = 3 * strangers - UNPROVED_AN_ADDRESS
                await until(
                    lambda: plane.status().refused.get("CONNECTIONS", 0) >= made_room, "strangers that made room"
                )

                assert await is_welcome(sock, connection, challenge)

    many_files(5 * strangers)
    asyncio.run(asyncio.wait_for(live(), 60))


def test_who_repeats_a_hello_that_was_seen_on_the_wire_puts_out_no_borrower_of_another_address(tmp_path: Path) -> None:
    """[M1]"""
    port = free_port()
    strangers = 3 * UNPROVED_AN_ADDRESS // 2

    async def live() -> None:
        async with running(Plane(tmp_path, settings={"listen": (f"tcp:127.0.0.1:{port}",)})) as plane:
            with ExitStack() as stack:
                door = Door(stack, ("127.0.0.1", port))
                connection = plane.connection()
                seen = connection.start()
                sock = door.come(seen)
                challenge = await heard(sock)

                for number in range(strangers):
                    door.come(seen, source="127.0.0.2")
                    if number % (BACKLOG // 4) == 0:  # so that the kernel's queue is never full
                        await asyncio.sleep(0)
                made_room = strangers - UNPROVED_AN_ADDRESS
                await until(
                    lambda: plane.status().refused.get("CONNECTIONS", 0) >= made_room, "strangers that made room"
                )

                assert await is_welcome(sock, connection, challenge)

    many_files(4 * strangers)
    asyncio.run(asyncio.wait_for(live(), 60))


def test_a_hello_in_many_pieces_waits_for_those_that_come_whole(tmp_path: Path) -> None:
    """[M1] Bytes that drip in cost turns of the event loop; they are not the turns of who says all at once."""

    async def live() -> list[str]:
        async with running(Plane(tmp_path)) as plane:
            with ExitStack() as stack:
                door = Door(stack, os.fspath(plane.path))
                drips, whole = plane.connection("b1"), plane.connection("b2")
                said = drips.start()
                slow = door.come(said[:20])
                others = [door.come() for _ in range(HANDLED_A_TURN - 1)]
                quick = door.come()
                await settled()
                # All in one turn, and just as many of them are new as are handled in it.
                slow.sendall(said[20:])
                for other in others:
                    other.sendall(BEGUN)
                quick.sendall(whole.start())
                answered: list[str] = []

                async def wait(sock: socket.socket, name: str) -> None:
                    assert await heard(sock)
                    answered.append(name)

                async with asyncio.TaskGroup() as group:
                    group.create_task(wait(slow, "in pieces"))
                    group.create_task(wait(quick, "whole"))
                return answered

    many_files(4 * HANDLED_A_TURN)
    assert asyncio.run(asyncio.wait_for(live(), 60)) == ["whole", "in pieces"]


def test_one_address_opens_no_session_without_end() -> None:
    """[L10]"""
    ledger = Ledger(lease_expiry_s=10.0)
    for number in range(SESSIONS_AN_ADDRESS):
        ledger.open(number=number + 1, node="greedy", now_s=0.0, address="10.0.0.1")

    with pytest.raises(Refused, match="from this address"):
        ledger.open(number=10_000, node="another", now_s=0.0, address="10.0.0.1")
    assert ledger.open(number=10_001, node="other", now_s=0.0, address="10.0.0.2")


def test_a_stranger_that_says_nothing_is_told_to_go_when_its_time_is_over(tmp_path: Path) -> None:
    """[M1]"""

    async def live() -> None:
        async with running(Plane(tmp_path)) as plane:
            with ExitStack() as stack:
                sock = Door(stack, os.fspath(plane.path)).come()

                assert b"no proof of the key" in await heard(sock)
                assert await heard(sock) == b""
                assert plane.status().refused == {"NOT_NOW": 1, "DATA": 0}

    with patch.object(newcomers, "HANDSHAKE_LIMIT_S", 0.02):
        asyncio.run(asyncio.wait_for(live(), 60))


class Scarce(socket.socket):
    """A listener of a process that may have only so many connections open."""

    def __init__(self, most: int) -> None:
        super().__init__(socket.AF_UNIX)
        self._most = most
        self.taken: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """As accept(2) does: looks for a descriptor first, and then who waits."""
        if sum(sock.fileno() >= 0 for sock in self.taken) >= self._most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        sock, peer = super().accept()
        self.taken.append(sock)
        return sock, peer


@asynccontextmanager
async def door_with(plane: Plane, listener: Scarce, counters: Counters) -> AsyncIterator[list[str]]:
    """Serves the listener; yields the nodes that were let in."""
    let_in: list[str] = []

    def begin() -> Connection:
        return Connection(side=Side.DONOR, keys=(KEY,), nonce=os.urandom(32), node="d1")

    def take(channel: Channel, hello: m.Hello, _: str) -> None:
        let_in.append(hello.node)
        channel.close()

    listener.bind(os.fspath(plane.path))
    listener.listen(1000)
    door = Newcomers(listener, begin=begin, let_in=take, refused=lambda *_: None, counters=counters)
    task = asyncio.ensure_future(door.run())
    try:
        yield let_in
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_silent_strangers_that_hold_all_descriptors_keep_no_borrower_out(tmp_path: Path) -> None:
    """[M1] Nobody was put out then, and [L6] each try to accept cost a line of the log."""
    most, strangers = 40, 200
    counters = Counters()

    async def live() -> list[str]:
        with ExitStack() as stack:
            listener = stack.enter_context(Scarce(most))
            plane = Plane(tmp_path)
            async with door_with(plane, listener, counters) as let_in:
                door = Door(stack, os.fspath(plane.path))
                for _ in range(strangers // 2):
                    door.come()
                sock = door.come((connection := plane.connection()).start())
                for _ in range(strangers // 2):
                    door.come()
                connection.receive(await heard(sock))
                auth = connection.next_event()
                assert isinstance(auth, Output)
                sock.sendall(auth.data)
                await until(lambda: bool(let_in), "the borrower")
                await until(lambda: counters.refused["CONNECTIONS"] >= strangers - most, "strangers that made room")
                return list(let_in)

    with patch("farside.daemon.newcomers._log") as log:
        assert asyncio.run(asyncio.wait_for(live(), 60)) == ["b1"]

    (line,) = log.warning.call_args_list
    assert "LimitNOFILE" in line.kwargs["hint"]


def test_nobody_is_put_out_for_want_of_a_descriptor_where_nobody_waits(tmp_path: Path) -> None:
    """accept(2) says that there is no descriptor also where there is no connection."""
    counters = Counters()

    async def live() -> None:
        with ExitStack() as stack:
            listener = stack.enter_context(Scarce(2))
            plane = Plane(tmp_path)
            async with door_with(plane, listener, counters):
                door = Door(stack, os.fspath(plane.path))
                first, second = door.come(), door.come()
                await until(lambda: len(listener.taken) == 2, "both of them")
                second.sendall(plane.connection().start())

                assert await heard(second)
                await settled()
                first.sendall(plane.connection().start())
                assert await heard(first)

    asyncio.run(asyncio.wait_for(live(), 60))
    assert not counters.refused


def test_where_no_connection_can_make_room_it_is_said_once_a_minute(tmp_path: Path) -> None:
    """[L6]"""

    async def live() -> None:
        with ExitStack() as stack:
            listener = stack.enter_context(Scarce(0))
            plane = Plane(tmp_path)

            async with door_with(plane, listener, Counters()):
                Door(stack, os.fspath(plane.path)).come()
                await until(lambda: failures.call_count >= 5, "some tries")

    with (
        patch("farside.daemon.newcomers._log") as log,
        patch.object(newcomers, "ACCEPT_PAUSE_S", 0.001),
        patch.object(Scarce, "accept", side_effect=OSError(errno.ENFILE, os.strerror(errno.ENFILE))) as failures,
    ):
        asyncio.run(asyncio.wait_for(live(), 60))

    assert [call.args[0] for call in log.warning.call_args_list] == ["a connection could not be taken"]


def refused_lines(log: Mock) -> list[tuple[str, str]]:
    """Code and address of each line."""
    told = [call.kwargs for call in log.warning.call_args_list if call.args == ("connection refused",)]
    return [(fields["code"], fields["address"]) for fields in told]


def test_noise_from_many_addresses_hides_no_borrower_with_a_wrong_key(tmp_path: Path) -> None:
    """[L6] One table for all kinds was full after 256 addresses, and one line for all addresses hid the others."""
    port = free_port()
    plane = Plane(tmp_path, settings={"listen": (f"tcp:127.0.0.1:{port}",)})

    async def live() -> None:
        async with running(plane):
            with ExitStack() as stack:
                door = Door(stack, ("127.0.0.1", port))
                # Of more addresses than anybody reads, none is new before the time is over.
                for number in range(ADDRESSES_MAX + 2):
                    assert await heard(door.come(bytes(64), f"127.0.{1 + number // 200}.{1 + number % 200}"))
                for source in ("127.0.0.2", "127.0.0.2", "127.0.0.3"):
                    assert b"no common key" in await heard(door.come(plane.connection(key=b"o" * 32).start(), source))

    many_files(4 * ADDRESSES_MAX)
    with patch("farside.daemon.refusals._log") as log:
        asyncio.run(asyncio.wait_for(live(), 60))

    lines = refused_lines(log)
    assert lines[-2:] == [("AUTH", "127.0.0.2"), ("AUTH", "127.0.0.3")]
    assert len(lines) == len(set(lines)) == ADDRESSES_MAX + 2
    crowds = [call.kwargs["kind"] for call in log.warning.call_args_list if "more addresses" in call.args[0]]
    assert crowds == ["MALFORMED"]


def test_a_wrong_answer_is_told_of_though_unknown_keys_come_from_many_addresses() -> None:
    """[L6]"""
    refusals = Refusals(lambda: 0.0)

    with patch("farside.daemon.refusals._log") as log:
        for number in range(ADDRESSES_MAX + 2):
            refusals.refused(m.ErrorCode.AUTH, "no common key", f"10.0.{number // 200}.{number % 200}")
        refusals.refused(m.ErrorCode.AUTH, "the borrower's proof is wrong", "10.1.1.1")

    assert refused_lines(log)[-1] == ("AUTH", "10.1.1.1")


def test_all_addresses_of_a_subnet_of_ipv6_are_told_of_as_one() -> None:
    """[L6] Whoever has one of them has 2^64."""
    refusals = Refusals(lambda: 0.0)

    with patch("farside.daemon.refusals._log") as log:
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"):
            refusals.refused(m.ErrorCode.MALFORMED, "noise", address)

    told = [address for _, address in refused_lines(log)]
    assert told == ["2001:db8::1", "2001:db8:0:1::1", "::ffff:10.0.0.1", "10.0.0.2"]
    assert subnet("fe80::1%eth0") == "fe80::"
    assert subnet("") == ""


def test_what_is_no_request_on_a_data_connection_costs_a_line_a_minute_for_its_address(tmp_path: Path) -> None:
    """[L6]"""

    async def live() -> None:
        async with running(Plane(tmp_path)) as plane:
            borrower = await plane.borrower()

            plane.exporter.ended += [borrower.session, borrower.session, 999]
            await plane.pass_time(DATA_LOOK_S)
            plane.exporter.ended += [borrower.session]
            await plane.pass_time(DATA_LOOK_S)

    with patch("farside.daemon.refusals._log") as log:
        asyncio.run(asyncio.wait_for(live(), 60))

    told = [call.kwargs for call in log.warning.call_args_list if call.args == ("data connection ended",)]
    assert [fields.get("session_of") for fields in told] == ["unix", None]
    assert [(fields.get("borrower"), fields.get("session")) for fields in told] == [("b1", None), (None, "expired")]
