"""Clients by TLS at an engine in this process, with Python's own client: records that end anywhere, and bad ends."""

import os
import random
import select
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from farside.kmod_shim.engine.binding import EventKind, features
from farside.kmod_shim.engine.tls import Certificates, Tls, Wants
from tests.support.certificates import SERVER, Authority
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import MIB, PAGE_BYTES, Rig

pytestmark = pytest.mark.skipif(
    "tls" not in features(), reason="the engine was built without GnuTLS (Debian: libgnutls28-dev)"
)
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Door:
    """What both ends of a session know."""

    def __init__(self, authority: Authority) -> None:
        device, client = authority.make("device", says=SERVER), authority.make("client")
        texts = {"cert": device.cert, "key": device.key, "client_ca": authority.cert}
        self.tls = Tls({}, Certificates(**{name: path.read_bytes() for name, path in texts.items()}))
        self.context = ssl.create_default_context(cafile=authority.cert)
        self.context.load_cert_chain(client.cert, client.key)

    def connect(self, rig: Rig, worker: int = 0, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> NbdClient:
        """A client whose requests this worker serves."""
        self.context.maximum_version = version
        ours, theirs = socket.socketpair()
        session = self.tls.begin(ours.fileno())
        with ThreadPoolExecutor(1) as other:
            there = other.submit(self.context.wrap_socket, theirs, server_hostname="localhost")
            while wants := session.handshake():
                readable, writable = ([ours], []) if wants is Wants.READ else ([], [ours])
                select.select(readable, writable, [], 60)
            client = NbdClient(there.result())
        rig.device.conn_attach(worker, ours.detach(), session)
        rig.clients.append(client)
        return client


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    made = Door(Authority(tmp_path_factory.mktemp("tls")))
    yield made
    made.tls.destroy()


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_all_sizes_with_a_full_queue_come_back_whole(rig: Rig, door: Door, version: ssl.TLSVersion) -> None:
    """[M11] Records end where requests do not: in a header, in a payload, several requests in one."""
    rig.donors_with_slabs(2, granules=8)
    told = random.Random(7)
    client, shadow = door.connect(rig, version=version), bytearray(16 * MIB)
    for _ in range(6):
        writes: list[tuple[int, int]] = []
        sent = b""
        for cookie in range(1000, 1000 + told.randrange(1, 60)):
            length = PAGE_BYTES * told.choice((1, 1, 1, 2, 5, 16, 40, 128))
            at = PAGE_BYTES * told.randrange((len(shadow) - length) // PAGE_BYTES)
            if any(at < end and begin < at + length for begin, end in writes):
                continue  # of two at once either may be the later one
            writes.append((at, at + length))
            shadow[at : at + length] = told.randbytes(length)
            sent += client.encode(Command.WRITE, cookie, at, length, bytes(shadow[at : at + length]))
        while sent:
            part = told.randrange(1, 50_000)
            client.sock.sendall(sent[:part])
            sent = sent[part:]
        assert [client.reply().error for _ in writes] == [0] * len(writes)
        reads = [client.send(Command.READ, begin, end - begin) for begin, end in writes]
        for cookie, (begin, end) in zip(reads, writes, strict=True):
            assert client.wait(cookie).data == shadow[begin:end]

    clear = rig.connect(1)
    assert b"".join(clear.read(at, MIB) for at in range(0, len(shadow), MIB)) == shadow


def test_answers_wait_for_a_client_that_does_not_read_and_are_whole(rig: Rig, door: Door) -> None:
    """More than the socket holds: what is encrypted already is sent once, and nothing twice."""
    rig.donors_with_slabs(2, granules=8)
    client, data = door.connect(rig), random.Random(3).randbytes(8 * MIB)
    client.write(0, data)

    cookies = [client.send(Command.READ, at, MIB) for at in range(0, 8 * MIB, MIB)]
    assert rig.connect(1).read(0, PAGE_BYTES) == data[:PAGE_BYTES], "others do not wait"

    assert b"".join(client.wait(cookie).data for cookie in cookies) == data


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_in_the_place_of_records_end_that_connection_alone(rig: Rig, door: Door, version: ssl.TLSVersion) -> None:
    """[M11]"""
    rig.donors_with_slabs(2, granules=2)
    client, other = door.connect(rig, 0, version), door.connect(rig, 1)
    client.write(0, b"a" * PAGE_BYTES)
    with socket.socket(fileno=os.dup(client.sock.fileno())) as raw:
        raw.sendall(b"\x17\x03\x03\x00\x40" + random.Random(5).randbytes(64))

    assert rig.wait_event(EventKind.CONN_CLOSED, a=0).b != 0
    assert other.read(0, PAGE_BYTES) == b"a" * PAGE_BYTES
    assert door.connect(rig, 0).read(0, PAGE_BYTES) == b"a" * PAGE_BYTES, "its worker serves the next one"


def test_half_a_write_of_a_client_that_is_gone_changes_nothing(rig: Rig, door: Door) -> None:
    """[M11]"""
    rig.donors_with_slabs(2, granules=2)
    client, other = door.connect(rig, 0), door.connect(rig, 1)
    client.write(0, b"a" * MIB)
    client.sock.sendall(client.encode(Command.WRITE, 7, 0, MIB, b"b" * MIB)[: MIB // 2])
    client.sock.close()

    rig.wait_event(EventKind.CONN_CLOSED, a=0)
    assert other.read(0, MIB) == b"a" * MIB


def test_a_process_that_stops_says_goodbye_and_its_successor_drops_what_was_not_answered(rig: Rig, door: Door) -> None:
    """[M11] A session can't be passed on."""
    rig.donors_with_slabs(2, granules=2)
    clear, client = rig.connect(1), door.connect(rig, 0)
    client.write(0, b"a" * MIB)
    client.sock.sendall(client.encode(Command.WRITE, 7, MIB, MIB, b"b" * MIB)[: MIB // 2])

    rig.take_over()

    with suppress(ConnectionError):
        assert client.sock.recv(1) == b"", "the end that TLS knows, and not one that anybody could make"
    assert rig.device.conn_is_unfinished(0)
    rig.device.conn_forget(0)
    rig.wait_event(EventKind.CONN_CLOSED, a=0)
    again = door.connect(rig, 0)
    assert again.read(0, 2 * MIB) == b"a" * MIB + bytes(MIB)
    assert clear.read(0, PAGE_BYTES) == b"a" * PAGE_BYTES
