"""The two ways in which a client starts its server itself: systemd's socket activation, and standard input."""

import secrets
from collections.abc import Iterator

import pytest

from farside.sandbox import settings
from farside.sandbox.files import make_disk
from farside.sandbox.layout import BORROWER
from farside.sandbox.main import make_plan
from farside.sandbox.session import open_sandbox
from tests.interop.server import MIB
from tests.support.programs import nbdsh_unconnected
from tests.support.sandbox import farside


@pytest.fixture(scope="module")
def blockdev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Command line of a borrower that nobody has started, with two donors that run (a sandbox's)."""
    folder = tmp_path_factory.mktemp("activation")
    sizes = ["--donors", "2", "--donor-memory", "96MiB", "--size", "32MiB", "--slab", "4MiB"]
    with open_sandbox(sizes, state=folder / "state") as session:
        plan = make_plan(
            donors=2,
            donor_memory_bytes=96 * MIB,
            transport="tcp",
            size_bytes=64 * MIB,
            listen=(f"unix:{folder / 'unused'}",),
            protection="disk",
            disk=folder / "disk",
            slab_bytes=4 * MIB,
            workers=2,
            restart_donors=False,
        )
        make_disk(folder / "disk", plan.size_bytes)
        values = settings.blockdev_settings(plan, session.state) | {
            "node": f"{BORROWER}-2",
            "state_dir": str(folder / "own"),
            "admin_socket": str(folder / "own" / "admin.sock"),
        }
        config = folder / "blockdev.toml"
        config.write_text(settings.toml_text(values))
        yield farside("blockdev", "--config", str(config))


def check(connect: str, argv: list[str]) -> None:
    """Lets libnbd start the server with one of its connect calls, and use it."""
    nbdsh_unconnected(
        f"h.{connect}({argv!r})\n"
        f"data = bytes.fromhex({secrets.token_hex(64)!r}) * 1024\n"
        "assert h.get_size() == 64 << 20\n"
        "h.pwrite(data, 1 << 20)\n"
        "h.flush()\n"
        "assert h.pread(len(data), 1 << 20) == data\n"
        "h.shutdown()\n"
    )


def test_a_listening_socket_is_taken_from_whoever_started_us(blockdev: list[str]) -> None:
    check("connect_systemd_socket_activation", blockdev)


def test_a_client_is_served_on_standard_input(blockdev: list[str]) -> None:
    check("connect_command", [*blockdev, "-s"])
