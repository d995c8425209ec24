"""The server that the interop tests speak to, and what they may know of it."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running NBD server with one export, on a unix socket and on loopback TCP."""

    socket: str
    tcp_host: str
    tcp_port: int
    size_bytes: int
    is_reference: bool = False
    """True for nbdkit, against which the tests themselves are checked."""

    @property
    def uri(self) -> str:
        """URI of the unix listener."""
        return f"nbd+unix:///?socket={self.socket}"

    @property
    def tcp_uri(self) -> str:
        """URI of the TCP listener."""
        return f"nbd://{self.tcp_host}:{self.tcp_port}"
