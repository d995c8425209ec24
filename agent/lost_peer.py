"""TCP connections that end when the other machine is gone."""

import socket

PEER_LOST_S = 5
"""A machine that is gone answers nothing: its silence is borne for this long."""


def notice_lost_peer(sock: socket.socket) -> None:
    """Has a connection end when its peer is silent, whether or not something is on its way there."""
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, PEER_LOST_S - 2),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, PEER_LOST_S * 1000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
