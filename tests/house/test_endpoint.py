"""Endpoints and addresses as text."""

import pytest

from farside.endpoint import UNIX_PATH_BYTES_MAX, parse_address, parse_endpoint


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
