"""One descriptor is received, and no other one enters the process."""

import os
import socket

import pytest

from farside.kmod_shim.received_fd import receive_with_fd


def open_ones() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("sent", "has_fd", "is_cut"), [(0, False, False), (1, True, False), (2, True, True), (253, True, True)]
)
def test_the_first_descriptor_is_received_and_the_others_are_closed(sent: int, has_fd: bool, is_cut: bool) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        before = open_ones()
        socket.send_fds(one, [b"data"], [one.fileno()] * sent)

        received = receive_with_fd(other, 100)

        assert (received.data, received.fd >= 0, received.is_cut) == (b"data", has_fd, is_cut)
        assert open_ones() == before + has_fd
        if has_fd:
            assert not os.get_inheritable(received.fd)
            os.close(received.fd)
