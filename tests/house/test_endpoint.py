"""Endpoints and addresses as text."""

import pytest

from farside.endpoint import UNIX_PATH_BYTES_MAX, exclude, parse_address, parse_endpoint
from farside.errors import ConfigError
from farside.listen import open_listener


def test_an_endpoint_is_a_path_or_a_host_and_a_port() -> None:
    assert parse_endpoint("unix:/a/b") == "/a/b"
    assert parse_endpoint("tcp:10.0.0.1:7000") == ("10.0.0.1", 7000)
    assert parse_endpoint("tcp:[::1]:7000") == ("::1", 7000)
    assert parse_address("localhost:0") == ("localhost", 0)


@pytest.mark.parametrize("text", ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:host:http", "tcp:h:65536", "udp:h:1"])
def test_what_is_no_endpoint_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_endpoint(text)


@pytest.mark.parametrize("letter", ["a", "ü"])
def test_a_path_that_no_socket_can_have_is_refused(letter: str) -> None:
    longest = "/" + letter * ((UNIX_PATH_BYTES_MAX - 1) // len(letter.encode()))

    assert parse_endpoint(f"unix:{longest}") == longest
    with pytest.raises(ValueError, match="longer than the 107 bytes"):
        parse_endpoint(f"unix:{longest}{letter}")


@pytest.mark.parametrize(
    ("host", "other", "is_excluded"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "localhost", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "[0:0::1]", True),
        ("[::]", "::1", True),
        ("[::]", "0.0.0.0", False),
        ("[::1]", "127.0.0.1", False),
    ],
)
def test_two_listeners_exclude_each_other_as_the_kernel_has_it(host: str, other: str, is_excluded: bool) -> None:
    try:
        first = open_listener(f"tcp:{host}:0")
    except ConfigError as error:
        pytest.skip(str(error))  # no IPv6
    with first:
        port = first.getsockname()[1]
        assert exclude(f"{host}:{port}", f"{other}:{port}") == is_excluded == (not can_listen(f"tcp:{other}:{port}"))
        assert not exclude(f"{host}:{port}", f"{other}:{port + 1}")


def can_listen(endpoint: str) -> bool:
    try:
        open_listener(endpoint).close()
    except ConfigError:
        return False
    return True


def test_names_of_hosts_exclude_each_other_where_they_are_the_same_and_all_of_ipv4_does() -> None:
    assert exclude("Node:80", "node:80")
    assert exclude("node:80", "0.0.0.0:80")
    assert not exclude("node:80", "[::]:80")
    assert not exclude("node:80", "other:80")
    assert not exclude("node:0", "node:0")
