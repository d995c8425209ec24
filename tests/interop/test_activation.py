"""The two ways in which a client starts its server itself: systemd's socket activation, and standard input."""

import secrets
from collections.abc import Iterator

import pytest

from farside.sandbox.session import open_sandbox
from tests.support.programs import nbdsh_unconnected
from tests.support.second_borrower import DONORS, SIZE_BYTES, second_borrower


@pytest.fixture(scope="module")
def blockdev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Command line of a borrower that nobody has started, with two donors that run (a sandbox's)."""
    folder = tmp_path_factory.mktemp("activation")
    with open_sandbox(DONORS, state=folder / "state") as session:
        yield second_borrower(session, folder)


def check(connect: str, argv: list[str]) -> None:
    """Lets libnbd start the server with one of its connect calls, and use it."""
    nbdsh_unconnected(
        f"h.{connect}({argv!r})\n"
        f"data = bytes.fromhex({secrets.token_hex(64)!r}) * 1024\n"
        f"assert h.get_size() == {SIZE_BYTES}\n"
        "h.pwrite(data, 1 << 20)\n"
        "h.flush()\n"
        "assert h.pread(len(data), 1 << 20) == data\n"
        "h.shutdown()\n"
    )


def test_a_listening_socket_is_taken_from_whoever_started_us(blockdev: list[str]) -> None:
    check("connect_systemd_socket_activation", blockdev)


@pytest.mark.long
def test_a_client_is_served_on_standard_input(blockdev: list[str]) -> None:
    check("connect_command", [*blockdev, "-s"])
