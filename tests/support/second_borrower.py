"""A second borrower for a sandbox's donors, with settings that a test may change."""

from collections.abc import Mapping
from pathlib import Path

from farside.sandbox import settings
from farside.sandbox.layout import BORROWER, Plan
from farside.sandbox.session import Session
from tests.support.sandbox import farside

MIB = 1 << 20
SIZE_BYTES = 64 * MIB
# Options for a sandbox whose donors fit it.
DONORS = ("--donors", "2", "--donor-memory", "96MiB", "--size", "32MiB", "--slab", "4MiB")


def second_borrower(session: Session, folder: Path, changes: Mapping[str, str] | None = None) -> list[str]:
    """Command line of a borrower over TCP with its own disk, node name and admin socket (folder/own/admin.sock)."""
    plan = Plan(
        donors=2,
        donor_memory_bytes=96 * MIB,
        transport="tcp",
        size_bytes=SIZE_BYTES,
        listen=(f"unix:{folder / 'second'}",),
        protection="disk",
        disk=folder / "disk",
        slab_bytes=4 * MIB,
        workers=2,
        restart_donors=False,
    )
    own = {
        "node": f"{BORROWER}-2",
        "state_dir": str(folder / "own"),
        "admin_socket": str(folder / "own" / "admin.sock"),
    }
    config = folder / "second.toml"
    config.write_text(settings.toml_text(settings.blockdev_settings(plan, session.state) | own | dict(changes or {})))
    return farside("blockdev", "--config", str(config))
