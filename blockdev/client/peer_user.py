"""User at the other end of a TCP connection from this machine, by the kernel's table of sockets."""

import ipaddress
import socket
import sys
from pathlib import Path

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # proc(5)

_Place = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def peer_uid(sock: socket.socket) -> int | None:
    """The uid of the process that made the other end; None: it is not in this network namespace.

    Raises:
        OSError: the connection is gone, or the table can't be read.
    """
    theirs, ours = _place_of(sock.getpeername()), _place_of(sock.getsockname())
    for table in _TABLES:
        try:
            lines = Path(table).read_text().split("\n")[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            words = line.split()
            # Theirs is the line whose own address is the peer's.
            if len(words) > 7 and _read(words[1]) == theirs and _read(words[2]) == ours:
                return int(words[7])
    return None


def _place_of(name: tuple[object, ...]) -> _Place:
    return _plain(ipaddress.ip_address(str(name[0]).partition("%")[0])), int(str(name[1]))


def _read(text: str) -> _Place:
    """``0100007F:1F90``: words of four bytes in the machine's own order, and a port."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8)]
    return _plain(ipaddress.ip_address(b"".join(words))), int(port, 16)


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
