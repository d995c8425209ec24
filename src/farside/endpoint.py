"""Addresses as text: ``tcp:HOST:PORT`` and ``unix:PATH`` of a listener, or ``HOST:PORT``."""

import ipaddress

UNIX_PATH_BYTES_MAX = 107  # sun_path of unix(7) has 108, and ends with a zero


def parse_endpoint(text: str) -> str | tuple[str, int]:
    """The path of ``unix:PATH``, or host and port of ``tcp:HOST:PORT``.

    Raises:
        ValueError: it is neither, or no socket can have that path.
    """
    kind, _, where = text.partition(":")
    if kind == "unix" and where:
        return socket_path(where)
    if kind == "tcp":
        return parse_address(where)
    raise ValueError(f"'{text}' is no endpoint; write tcp:HOST:PORT or unix:PATH")


def is_on_network(text: str) -> bool:
    """True for an endpoint that other machines can reach: ``tcp:HOST:PORT``."""
    try:
        return isinstance(parse_endpoint(text), tuple)
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 host may be in brackets.

    Raises:
        ValueError: it is something else.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return host, int(port)


def is_near(host: str) -> bool:
    """Whether only programs of this machine reach it: a loopback address, or its name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def exclude(first: str, second: str) -> bool:
    """Whether of two listeners at ``HOST:PORT`` of one machine only one can be, whatever names of hosts stand for.

    An address of all hosts has those of its own family, a name one of IPv4; port 0 is another one each time.
    """
    (host, port), (other, other_port) = (parse_address(text) for text in (first, second))
    if port != other_port or not port:
        return False
    hosts = {_plain(host), _plain(other)}
    of_six = {":" in one for one in hosts}
    return len(of_six) == 1 and (len(hosts) == 1 or bool(hosts & {"0.0.0.0", "::"}))


def _plain(host: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host.lower() == "localhost" else host))
    except ValueError:
        return host.lower()


def socket_path(path: str) -> str:
    """The path, when a unix socket can have it.

    Raises:
        ValueError: it is too long.
    """
    if len(path.encode(errors="surrogateescape")) > UNIX_PATH_BYTES_MAX:
        raise ValueError(
            f"'{path}' is longer than the {UNIX_PATH_BYTES_MAX} bytes of a unix socket's path; name a shorter one"
        )
    return path
