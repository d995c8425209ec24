"""Connect to a donor's control listener, for a control or a data connection."""

import asyncio
import secrets
import socket
from typing import Any

from farside.blockdev.carrier.carrier import DataConnection
from farside.daemon.control.channel import Channel
from farside.daemon.control.messages import NONCE_BYTES, Feature, Welcome
from farside.daemon.control.protocol import Connection, Side
from farside.endpoint import parse_endpoint
from farside.errors import PeerError

CONNECT_AGAIN_S = 0.25
"""A donor that strangers crowd drops first packets, and the kernel sends one again after a second only."""


async def connect(endpoint: str) -> socket.socket:
    """A connected, non-blocking stream socket. Raises OSError; the caller bounds the time."""
    target = parse_endpoint(endpoint)
    loop = asyncio.get_running_loop()
    if isinstance(target, str):
        return await _connect(socket.AF_UNIX, target)
    host, port = target
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await _connect_soon([(family, address) for family, _, _, _, address in found])


async def _connect_soon(addresses: list[tuple[int, tuple[Any, ...]]]) -> socket.socket:
    """Tries each address, and all of them again with twice the time: the donor may just be far away.

    An address that refuses is not tried again. Raises OSError, the last one's, when all have.
    """
    limit_s = CONNECT_AGAIN_S
    last = OSError("the donor's name has no address")
    while addresses:
        silent = []
        for family, address in addresses:
            try:
                async with asyncio.timeout(limit_s) as scope:
                    return await _connect(family, address)
            except OSError as error:
                # The kernel's own ETIMEDOUT is a TimeoutError, too, and is this address's answer.
                if scope.expired():
                    silent.append((family, address))
                else:
                    last = error
        addresses = silent
        limit_s *= 2
    raise last


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
