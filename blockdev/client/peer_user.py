"""User at the other end of a TCP connection from this machine: the kernel is asked for that one socket.

A device's event loop asks, which a machine that swaps waits for. So the cost must not grow with the sockets that others
open: ``/proc/net/tcp`` lists them all, ``sock_diag(7)`` looks one up. The kernel answers within ``sendto``, and nothing
here waits.
"""

import errno
import ipaddress
import os
import socket
import struct

# sock_diag(7), netlink(7), linux/inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ASKED = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
_PORTS = struct.Struct(">HH")
_END = struct.Struct("=III")  # interface, cookie
_TOLD = struct.Struct("=BBBB")  # family, state, timer, retransmissions
_FIGURES = struct.Struct("=IIIII")  # expiry, two queues, uid, inode
_ADDRESS_BYTES, _ANSWER_BYTES = 16, 4096
_ANY_COOKIE = 0xFFFFFFFF
_ESTABLISHED = 1

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Place = tuple[_Address, int]


def peer_uid(sock: socket.socket) -> int | None:
    """The uid of whose the other end is; None: no process of this network namespace has that end open, or
    the kernel has no ``tcp_diag``, which looks the same.

    A socket that its process has closed lives on without an owner, and is then shown as root's: such a one is None.

    Raises:
        OSError: the connection is gone, or the kernel can't be asked.
    """
    theirs, ours = _place_of(sock.getpeername()), _place_of(sock.getsockname())
    answer = _ask(theirs, ours, interface=_scope(sock.getpeername()))
    if answer is None:
        return None
    family, state, _, _ = _TOLD.unpack_from(answer)
    at = _TOLD.size
    ports = _PORTS.unpack_from(answer, at)
    bytes_each = 4 if family == socket.AF_INET else _ADDRESS_BYTES
    at += _PORTS.size
    source, target = (
        _plain(ipaddress.ip_address(answer[begin : begin + bytes_each])) for begin in (at, at + _ADDRESS_BYTES)
    )
    *_, uid, inode = _FIGURES.unpack_from(answer, at + 2 * _ADDRESS_BYTES + _END.size)
    # The kernel falls back to a listener at that place where no connection is.
    is_theirs = (source, ports[0]) == theirs and (target, ports[1]) == ours
    return int(uid) if is_theirs and state == _ESTABLISHED and inode else None


def _ask(source: _Place, target: _Place, interface: int) -> bytes | None:
    """``inet_diag_msg`` of the TCP socket at ``source`` that talks to ``target``; None: the kernel has none."""
    family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
    asked = (
        _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_COOKIE)
        + _PORTS.pack(source[1], target[1])
        + b"".join(place[0].packed.ljust(_ADDRESS_BYTES, b"\0") for place in (source, target))
        + _END.pack(interface, _ANY_COOKIE, _ANY_COOKIE)
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.sendto(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked, (0, 0))
        answer = kernel.recv(_ANSWER_BYTES, socket.MSG_DONTWAIT)
    _, kind, *_ = _HEADER.unpack_from(answer)
    body = answer[_HEADER.size :]
    if kind != _ERROR:
        return body
    (error,) = struct.unpack_from("=i", body)
    if -error == errno.ENOENT:
        return None
    raise OSError(-error, os.strerror(-error))


def _place_of(name: tuple[object, ...]) -> _Place:
    return _plain(ipaddress.ip_address(str(name[0]).partition("%")[0])), int(str(name[1]))


def _scope(name: tuple[object, ...]) -> int:
    """The interface of a link-local address; 0 for others."""
    return int(str(name[3])) if len(name) > 3 else 0


def _plain(address: _Address) -> _Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
