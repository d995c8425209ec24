"""The channel over real sockets: handshake, descriptors, hand-over, and peers that do not read."""

import asyncio
import errno
import fcntl
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from farside.daemon.control import messages as m
from farside.daemon.control.channel import OUT_BYTES_MAX, Channel
from farside.daemon.control.protocol import Connection, PeerClosed, Received, Side
from farside.errors import PeerError, RemoteProtocolError
from tests.daemon.plane import proved

KEY = b"k" * 32
WELCOME = m.Welcome(session=7, slab_bytes=1 << 26, lease_expiry_s=30.0)
LIMIT_S = 60.0


def borrower(sock: socket.socket) -> Channel:
    return Channel(sock, Connection(side=Side.BORROWER, keys=(KEY,), nonce=b"b" * 32, node="b1"))


def donor(sock: socket.socket) -> Channel:
    return Channel(sock, Connection(side=Side.DONOR, keys=(KEY,), nonce=b"d" * 32, node="d1"))


@asynccontextmanager
async def opened(role: m.Role = "control") -> AsyncIterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    b, d = borrower(left), donor(right)
    try:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            welcome = group.create_task(b.open(role=role))
            await proved(d)
            d.decide(WELCOME)
        assert welcome.result() == WELCOME
        async with asyncio.timeout(LIMIT_S):
            yield b, d
    finally:
        b.close()
        d.close()


async def received(channel: Channel) -> Received:
    event = await channel.next_event()
    assert isinstance(event, Received)
    return event


def test_a_request_and_its_answer_travel() -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            seq = b.ask(m.Release(leases=(1,)))
            asked = await received(d)
            d.answer(asked.seq, m.Ok())

            assert await received(b) == Received(seq=seq, message=m.Ok())

    asyncio.run(scenario())


def test_descriptors_come_with_their_frame_and_in_order() -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            for text in (b"one", b"two"):
                b.ask(m.Map(device="s"))
                asked = await received(d)
                fds = [os.memfd_create(str(number)) for number in range(3)]
                for number, fd in enumerate(fds):
                    os.write(fd, text + b"%d" % number)
                d.answer(asked.seq, m.MrInfo(leases=()), fds)
                for fd in fds:
                    os.close(fd)

            for text in (b"one", b"two"):
                await received(b)
                taken = b.take_fds(3)
                assert [os.pread(fd, 9, 0) for fd in taken] == [text + b"%d" % number for number in range(3)]
                for fd in taken:
                    os.close(fd)
            assert b.fds_waiting == 0

    asyncio.run(scenario())


def test_descriptors_that_wait_for_a_slow_reader_survive_their_senders_close() -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            waiting = 40
            for _ in range(waiting):
                b.ask(m.Map(device="s"))
            lease = m.Lease(lease=1, token=2**63, rkey=0, addr=0, length=1, epoch=1)
            for _ in range(waiting):  # more than a socket buffer holds
                asked = await received(d)
                fd = os.memfd_create("late")
                d.answer(asked.seq, m.MrInfo(leases=(lease,) * m.LEASES_MAX), [fd])
                os.close(fd)

            for _ in range(waiting):
                await received(b)
                for fd in b.take_fds(1):
                    os.close(fd)

    asyncio.run(scenario())


def test_an_answer_for_which_there_are_no_descriptors_ends_the_connection_and_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            b.ask(m.Map(device="s"))
            asked = await received(d)
            first, second = os.memfd_create("one"), os.memfd_create("two")
            duplicates: list[int] = []

            def dup_one(fd: int) -> int:
                if duplicates:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                duplicates.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0))
                return duplicates[0]

            with monkeypatch.context() as patch:
                patch.setattr(os, "dup", dup_one)
                with pytest.raises(PeerError, match="Too many open files"):
                    d.answer(asked.seq, m.MrInfo(leases=()), [first, second])

            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(duplicates[0])
            with pytest.raises(PeerError):  # the frame has had its number: none may follow it
                d.ask(m.CheckActivity(leases=(1,)))
            os.close(first)
            os.close(second)

    asyncio.run(scenario())


def test_fewer_descriptors_than_announced_is_the_donors_fault() -> None:
    async def scenario() -> None:
        async with opened() as (b, _):
            with pytest.raises(RemoteProtocolError, match="2 descriptors announced, 0 came"):
                b.take_fds(2)

    asyncio.run(scenario())


def test_what_a_borrower_passes_to_a_donor_is_closed_by_the_kernel() -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            read_end, write_end = os.pipe()
            data = b.connection.send(m.KeepAlive())
            socket.send_fds(b._sock, [data], [write_end])
            os.close(write_end)

            await received(d)

            assert os.read(read_end, 1) == b""  # nobody holds the other end
            os.close(read_end)

    asyncio.run(scenario())


def test_a_data_connection_is_handed_over_with_no_byte_lost() -> None:
    async def scenario() -> None:
        async with opened("data") as (b, d):
            left, right = await b.hand_over(), await d.hand_over()
            left.sendall(b"FRQ1 first bytes")

            assert right.recv(100) == b"FRQ1 first bytes"
            assert left.getblocking()
            left.close()
            right.close()

    asyncio.run(scenario())


def test_bytes_too_early_on_a_data_connection_are_not_handed_over() -> None:
    async def scenario() -> None:
        async with opened("data") as (b, _):
            b.connection.receive(b"early")

            with pytest.raises(RemoteProtocolError, match="bytes came before"):
                await b.hand_over()

    asyncio.run(scenario())


def test_a_peer_that_never_reads_is_given_up() -> None:
    async def scenario() -> None:
        async with opened() as (_, d):
            with pytest.raises(PeerError, match="does not read"):
                _shout(d)

    asyncio.run(scenario())


def _shout(channel: Channel) -> None:
    for _ in range(OUT_BYTES_MAX):
        channel.ask(m.Evict(leases=tuple(range(m.LEASES_MAX)), deadline_s=1.0))


def test_a_refusal_reaches_the_borrower_with_its_code() -> None:
    async def scenario() -> None:
        left, right = socket.socketpair()
        b, d = borrower(left), donor(right)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            task = group.create_task(_refused(b))
            await proved(d)
            d.decide(m.Error(code=m.ErrorCode.SLAB_SIZE, message="64 MiB here"))
        d.close()
        b.close()

        assert task.result().code == m.ErrorCode.SLAB_SIZE

    asyncio.run(scenario())


async def _refused(channel: Channel) -> PeerError:
    with pytest.raises(PeerError, match="64 MiB here") as caught:
        await channel.open()
    return caught.value


def test_a_peer_that_closes_is_an_event() -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            d.close()

            assert isinstance(await b.next_event(), PeerClosed)

    asyncio.run(scenario())


def test_a_farewell_is_read_before_the_close() -> None:
    async def scenario() -> None:
        async with opened() as (b, d):
            d.farewell(m.ErrorCode.NOT_NOW, "going away")

            event = await received(b)

            assert event.message == m.Error(code=m.ErrorCode.NOT_NOW, message="going away")
            assert isinstance(await b.next_event(), PeerClosed)

    asyncio.run(scenario())
