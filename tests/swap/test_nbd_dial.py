"""The client's side of the handshake, against our own server's side and against servers that misbehave."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from farside.blockdev.client import handshake
from farside.blockdev.client.handshake import Export, Handshake, Next
from farside.errors import FarsideError, PeerError, RemoteProtocolError
from farside.kmod_shim.nbd import dial as nbd_dial
from farside.kmod_shim.nbd.dial import Offer, dial, hang_up

EXPORT = Export(name="swap0", description="", size_bytes=64 << 20)


def test_both_sides_name_the_protocol_alike() -> None:
    for name in ("NBDMAGIC", "IHAVEOPT", "REPLY_MAGIC", "CAN_MULTI_CONN", "FLAG_FIXED_NEWSTYLE", "FLAG_NO_ZEROES"):
        assert getattr(nbd_dial, name) == getattr(handshake, name)


def serve(sock: socket.socket, export: Export) -> None:
    """One handshake by the server's own code; then a byte that belongs to the transmission phase."""
    talk = Handshake(export)
    sock.sendall(talk.greeting())
    while True:
        data = sock.recv(talk.needed(), socket.MSG_WAITALL)
        if len(data) < talk.needed():
            return
        step = talk.receive(data)
        if step.next is Next.ASKED:
            step = talk.accept()
        sock.sendall(step.send)
        if step.next is Next.TRANSMIT:
            sock.sendall(b"!")
            return
        if step.next is Next.CLOSE:
            return


@contextmanager
def server(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answers each connection with ``answer`` until the block ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        threads: list[threading.Thread] = []

        def talk(client: socket.socket) -> None:
            with client, suppress(OSError):
                answer(client)
                client.recv(1)  # until it leaves

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threads.append(threading.Thread(target=talk, args=(client,)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"unix:{path}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def answer_by_us(client: socket.socket) -> None:
    serve(client, EXPORT)


def test_size_flags_and_block_size_come_from_the_server(tmp_path: Path) -> None:
    with server(tmp_path / "s", answer_by_us) as endpoint:
        dialled = dial(endpoint, "swap0", count=1)
        hang_up(dialled.sockets)

    assert dialled.offer == Offer(size_bytes=64 << 20, flags=handshake.TRANSMISSION_FLAGS, block_bytes=4096)


def test_not_a_byte_of_the_transmission_phase_is_read(tmp_path: Path) -> None:
    with server(tmp_path / "s", answer_by_us) as endpoint:
        dialled = dial(endpoint, "swap0", count=1)
        first = dialled.sockets[0].recv(1)
        hang_up(dialled.sockets)

    assert first == b"!"


def test_the_kernel_gets_sockets_that_block(tmp_path: Path) -> None:
    with server(tmp_path / "s", answer_by_us) as endpoint:
        dialled = dial(endpoint, "swap0", count=1)
        blocking = dialled.sockets[0].getblocking()
        hang_up(dialled.sockets)

    assert blocking


def test_a_refusal_is_told_in_the_servers_words(tmp_path: Path) -> None:
    with server(tmp_path / "s", answer_by_us) as endpoint, pytest.raises(PeerError, match="refuses export 'other'"):
        dial(endpoint, "other", count=1)


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="farside blockdev"):
        dial(f"unix:{tmp_path}/none", "swap0", count=1)


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with server(tmp_path / "s", lambda client: None) as endpoint, pytest.raises(PeerError, match="no answer in time"):
        dial(endpoint, "swap0", count=1, limit_s=0.05)


GREETING = struct.pack(">QQH", nbd_dial.NBDMAGIC, nbd_dial.IHAVEOPT, 3)
ACK = struct.pack(">QIII", nbd_dial.REPLY_MAGIC, nbd_dial.OPT_GO, nbd_dial.REP_ACK, 0)
HUGE = struct.pack(">QIII", nbd_dial.REPLY_MAGIC, nbd_dial.OPT_GO, nbd_dial.REP_INFO, 1 << 30)


def info(size_bytes: int, flags: int) -> bytes:
    data = struct.pack(">HQH", nbd_dial.INFO_EXPORT, size_bytes, flags)
    return struct.pack(">QIII", nbd_dial.REPLY_MAGIC, nbd_dial.OPT_GO, nbd_dial.REP_INFO, len(data)) + data


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        struct.pack(">QQH", nbd_dial.NBDMAGIC, 0x00420281861253, 3),
        GREETING + ACK,
        GREETING + HUGE,
    ],
    ids=["another protocol", "oldstyle", "no size", "a huge reply"],
)
def test_what_is_no_such_server_is_told_so(tmp_path: Path, said: bytes) -> None:
    with server(tmp_path / "s", lambda client: client.sendall(said)) as endpoint, pytest.raises(RemoteProtocolError):
        dial(endpoint, "swap0", count=1)


def test_a_server_that_hangs_up_is_told_so(tmp_path: Path) -> None:
    def rude(client: socket.socket) -> None:
        client.sendall(GREETING)
        client.shutdown(socket.SHUT_RDWR)

    with server(tmp_path / "s", rude) as endpoint, pytest.raises(FarsideError):
        dial(endpoint, "swap0", count=1)


def test_several_connections_need_a_server_that_allows_them(tmp_path: Path) -> None:
    alone = GREETING + info(1 << 20, 1) + ACK
    with server(tmp_path / "s", lambda client: client.sendall(alone)) as endpoint:
        hang_up(dial(endpoint, "", count=1).sockets)
        with pytest.raises(RemoteProtocolError, match="--connections 1"):
            dial(endpoint, "", count=2)


def test_each_core_may_have_a_socket_of_its_own(tmp_path: Path) -> None:
    with server(tmp_path / "s", answer_by_us) as endpoint:
        dialled = dial(endpoint, "swap0", count=4)
        hang_up(dialled.sockets)

    assert len(dialled.sockets) == 4
