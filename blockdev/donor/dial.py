"""Connect to a donor's control listener, for a control or a data connection."""

import asyncio
import secrets
import socket
from collections import deque
from typing import Any

from farside.blockdev.carrier.carrier import DataConnection
from farside.daemon.control.channel import Channel
from farside.daemon.control.messages import NONCE_BYTES, Feature, Welcome
from farside.daemon.control.protocol import Connection, Side
from farside.endpoint import parse_endpoint
from farside.errors import PeerError

Address = tuple[int, tuple[Any, ...]]
"""Family, and what socket(7) calls an address of it."""
CONNECT_AGAIN_S = 0.25
"""A donor that strangers crowd drops first packets, and the kernel sends one again after a second only."""
TRIES = 5
"""Tries of each address, within about a second. All of them go on, and the kernel repeats their packets."""


async def connect(endpoint: str) -> socket.socket:
    """A connected, non-blocking stream socket. Raises OSError; the caller bounds the time."""
    target = parse_endpoint(endpoint)
    loop = asyncio.get_running_loop()
    if isinstance(target, str):
        return await _connect(socket.AF_UNIX, target)
    host, port = target
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await _connect_soon([(family, address) for family, _, _, _, address in found])


async def _connect_soon(addresses: list[Address]) -> socket.socket:
    """The first that answers. Addresses are tried in turns, and a try goes on beside those that follow it.

    After an error its address is not tried again. Raises OSError, the last one's, when no try is left.
    """
    left = deque(addresses * TRIES)
    tries: dict[asyncio.Task[socket.socket], Address] = {}
    last: BaseException = OSError("the donor's name has no address")
    try:
        while left or tries:
            if left:
                address = left.popleft()
                tries[asyncio.ensure_future(_connect(*address))] = address
            pause_s = CONNECT_AGAIN_S if left else None
            ended, _ = await asyncio.wait(tries, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for one in ended:
                address = tries.pop(one)
                if (error := one.exception()) is None:
                    return one.result()
                last, left = error, deque(other for other in left if other != address)
        raise last
    finally:
        for one in tries:
            one.cancel()
            one.add_done_callback(_close)  # it may have ended already


def _close(ended: asyncio.Task[socket.socket]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        ended.result().close()


async def _connect(family: int, address: tuple[Any, ...] | str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if family != socket.AF_UNIX:
            # Requests are small, and each waits for its answer: Nagle's algorithm would hold them back.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A donor whose machine has vanished sends no reset. The deadline notices it while an answer is owed;
            # keepalive ends connections that are idle.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def make_channel(sock: socket.socket, *, keys: tuple[bytes, ...], node: str, features: Feature) -> Channel:
    """The borrower's side of the control protocol on a connected socket."""
    connection = Connection(
        side=Side.BORROWER, keys=keys, nonce=secrets.token_bytes(NONCE_BYTES), node=node, features=features
    )
    return Channel(sock, connection)


async def open_data(
    endpoint: str,
    *,
    keys: tuple[bytes, ...],
    node: str,
    session: int,
    worker: int,
    epoch: int,
    features: Feature = Feature.NONE,
) -> DataConnection:
    """A data connection of a session, at the first byte of wire.h, or with ``Feature.RDMA`` of verbs.h.

    Raises:
        OSError, PeerError, RemoteProtocolError: it can't be had.
    """
    # A donor of before has no codes, and is used without: pages are sealed in any case.
    offered = features if Feature.RDMA in features else features | Feature.CODES
    channel = make_channel(await connect(endpoint), keys=keys, node=node, features=offered)
    try:
        await channel.open(role="data", session=session, worker=worker, epoch=epoch)
        # The control session has agreed on them, but each connection agrees for itself.
        if features not in channel.connection.features:
            raise PeerError("the donor no longer offers RDMA")
        return DataConnection(await channel.hand_over(), channel.connection.head_keys)
    finally:
        # After hand_over the channel has no socket any more: this closes what an error has left.
        channel.close()


async def open_control(
    endpoint: str, *, keys: tuple[bytes, ...], node: str, session: int, features: Feature
) -> tuple[Channel, Welcome]:
    """A control connection, new or of an earlier session. Raises as ``open_data``."""
    channel = make_channel(await connect(endpoint), keys=keys, node=node, features=features)
    try:
        return channel, await channel.open(session=session)
    except BaseException:
        channel.close()
        raise
