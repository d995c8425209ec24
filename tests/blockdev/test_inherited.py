"""What a supervisor finds of the server that ran under the one before it."""

import os
import socket
import subprocess

import pytest

from farside.blockdev import fdpass
from farside.blockdev.inherited import take_server


def ended_process() -> int:
    """The id of a process that has ended, and been waited for."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@pytest.mark.parametrize("has_unread", [False, True], ids=["all_read", "something_unread"])
def test_a_client_that_a_killed_server_told_of_last_is_not_lost(has_unread: bool) -> None:
    ours, theirs = fdpass.pair()
    client, served = socket.socketpair()
    fdpass.send(theirs, "conn", number=3, fd=served.fileno())
    if has_unread:
        fdpass.send(ours, "stays")  # the kernel then tells of the end before it hands over what was sent
    served.close()
    theirs.close()
    heard: list[fdpass.Message] = []
    fds = {f"server:{ended_process()}": ours.detach(), "state": 99}

    assert take_server(fds, heard.append) is None

    assert fds == {"state": 99}
    assert [(message.op, message.number) for message in heard] == [("conn", 3)]
    os.write(heard[0].fd, b"still here")
    assert client.recv(20) == b"still here"
    os.close(heard[0].fd)
    client.close()


def test_a_message_sent_before_the_end_comes_before_the_end() -> None:
    ours, theirs = fdpass.pair()
    fdpass.send(theirs, "loaded")
    fdpass.send(ours, "check")
    theirs.close()

    assert fdpass.receive(ours) == fdpass.Message(op="loaded")
    assert fdpass.receive(ours) is None
    ours.close()
