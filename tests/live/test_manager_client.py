"""The client's one connection: what it does when the manager hangs up, against a server that hangs up as told."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import pytest

from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.errors import ConfigError, PeerError
from farside.http_header import IDEMPOTENCY_KEY, TAKES
from tests.support.waiting import until


@dataclass
class Server:
    """Answers each request with its number, and hangs up after those that it is told."""

    takes_keys: bool = True
    silent_after: frozenset[int] = frozenset()  # these are read, and the connection is closed without an answer
    closes_after: frozenset[int] = frozenset()  # these are answered, and the connection is closed
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    asked: list[tuple[str, str]] = field(default_factory=list)  # method and key
    closed: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                while self.one(connection, stream):
                    pass
            self.closed += 1

    def one(self, connection: socket.socket, stream: BinaryIO) -> bool:
        first = stream.readline()
        if not first:
            return False
        headers: dict[str, str] = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        stream.read(int(headers.get("content-length", "0")))
        self.asked.append((first.split()[0].decode(), headers.get(IDEMPOTENCY_KEY.lower(), "")))
        number = len(self.asked)
        if number in self.silent_after:
            return False
        body = json.dumps({"number": number}).encode()
        takes = f"{TAKES}: {IDEMPOTENCY_KEY}\r\n" if self.takes_keys else ""
        connection.sendall(f"HTTP/1.1 200 OK\r\n{takes}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return number not in self.closes_after


@contextmanager
def serving(server: Server) -> Iterator[ManagerClient]:
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        with ManagerClient(ManagerAddress(endpoint=server.url)) as client:
            yield client
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join()


def test_what_changes_something_is_sent_once_on_a_new_connection_where_the_idle_one_was_closed() -> None:
    server = Server(takes_keys=False, closes_after=frozenset({1}))
    with serving(server) as client:
        client.get("health")
        until(lambda: server.closed == 1, what="a closed connection")

        assert client.post("jobs", body={"argv": ["true"]}) == {"number": 2}
        assert [method for method, _ in server.asked] == ["GET", "POST"]


def test_a_lost_answer_is_asked_for_again_under_the_same_key() -> None:
    server = Server(silent_after=frozenset({2}))
    with serving(server) as client:
        client.get("health")

        assert client.post("jobs", body={"argv": ["true"]}) == {"number": 3}
        (_, first), (_, second) = server.asked[1:]
        assert first == second != ""


def test_each_request_has_a_key_of_its_own() -> None:
    server = Server()
    with serving(server) as client:
        for _ in range(3):
            client.post("jobs", body={})

    assert len({key for _, key in server.asked}) == 3


def test_a_manager_that_knows_no_keys_is_not_asked_twice_to_change_something() -> None:
    server = Server(takes_keys=False, silent_after=frozenset({2}))
    with serving(server) as client:
        client.get("health")

        with pytest.raises(PeerError):
            client.post("jobs", body={"argv": ["true"]})
        assert len(server.asked) == 2


def test_what_fails_on_a_new_connection_is_not_tried_again() -> None:
    server = Server(silent_after=frozenset({1}))
    with serving(server) as client:
        with pytest.raises(PeerError):
            client.post("jobs", body={"argv": ["true"]})
        assert len(server.asked) == 1


def test_a_manager_that_takes_no_more_says_so_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    with serving(server) as client:
        monkeypatch.setattr(client, "_exchange", lambda *_: (413, b"Content Too Large", ""))

        with pytest.raises(ConfigError, match="larger than the manager accepts; put it into a file"):
            client.post("jobs", body={})


def test_an_empty_name_is_one_clear_line_and_nobody_is_asked() -> None:
    server = Server()
    with serving(server) as client:
        with pytest.raises(ConfigError, match="a name is empty"):
            client.get("jobs", "")
        assert server.asked == []
