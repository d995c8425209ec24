"""The classic nbd-client, whose negotiation is the one that Linux swap on NBD has used for years."""

from tests.interop.server import Server
from tests.support.programs import need, run


def test_nbd_client_lists_the_export(server: Server) -> None:
    need("nbd-client")

    printed = run(["nbd-client", "-l", server.tcp_host, str(server.tcp_port)])

    # The default export has an empty name; what matters is that the negotiation went to its end.
    assert printed.startswith("Negotiation: ..")
