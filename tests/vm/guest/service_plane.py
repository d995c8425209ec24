"""A donor and a borrower as systemd's services in one guest, set up as an operator does it."""

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from farside import admin
from farside.cli.keygen import make_key
from farside.errors import PeerError
from tests.support.programs import Outcome, outcome, run
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S, SIZE

UNITS = Path(__file__).parents[3] / "systemd"
BLOCKDEV, SWAP, DONOR = "farside-blockdev@swap0.service", "farside-swap@swap0.service", "farside-daemon.service"
ADMIN = Path("/run/farside/blockdev.sock")
# Emulated processors: a donor that answers after a second is no dead one.
SETTINGS = {
    "daemon": 'node = "d1"\nlisten = ["tcp:127.0.0.1:7677"]\nheadroom_bytes = "32MiB"\nmax_slabs = 12\n'
    'preallocate_slabs = 1\nslab_bytes = "8MiB"\n',
    "blockdev": f'size_bytes = {SIZE}\nslab_bytes = "8MiB"\ndisk_path = "/var/lib/farside/swap0.img"\n'
    'pending_bytes = "16MiB"\nworkers = 2\ndeadline_s = 5\ngrace_s = 20\n',
    "peers": '[[donor]]\nnode = "d1"\ncontrol = "tcp:127.0.0.1:7677"\n',
}


def install_units() -> None:
    """As the package does it."""
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.target")):
        shutil.copy(unit, "/etc/systemd/system")
    for folder in ("sysusers.d", "tmpfiles.d"):
        target = Path("/etc", folder)
        target.mkdir(exist_ok=True)
        shutil.copy(UNITS / folder / "farside.conf", target)
    launcher = Path("/usr/bin/farside")
    if not launcher.exists():
        launcher.symlink_to("/farside/bin/farside")
    run(["systemd-sysusers"])
    run(["systemctl", "daemon-reload"], limit_s=LIMIT_S)


def configure() -> None:
    """Key and settings; then folders and the key's owner, by tmpfiles."""
    etc = Path("/etc/farside")
    etc.mkdir(exist_ok=True)
    make_key(etc / "key")
    for name, text in SETTINGS.items():
        (etc / f"{name}.toml").write_text(text)
    run(["systemd-tmpfiles", "--create", "farside.conf"])


def systemctl(*words: str) -> Outcome:
    """`systemctl ...`, whatever comes of it; what the journal has stands behind a failure."""
    done = outcome(["systemctl", *words], limit_s=2 * LIMIT_S)
    if done.status:
        print(done.stderr, journal(), file=sys.stderr)
    return done


def must(*words: str) -> None:
    """`systemctl ...`, which must succeed."""
    assert systemctl(*words).status == 0


def start() -> None:
    """Lends, borrows, and swaps."""
    must("start", DONOR, SWAP)
    until(lambda: donors() == ["up"], what="the donor", deadline_s=LIMIT_S, every_s=1)


def journal() -> str:
    """The last lines of ours."""
    done = subprocess.run(
        ["journalctl", "--no-pager", "-n", "80", "-o", "cat", "-u", "farside-*"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout


def show(unit: str, name: str) -> str:
    """A property of a unit."""
    return run(["systemctl", "show", "--property", name, "--value", unit], limit_s=60).strip()


def told() -> Any:
    """What the borrower tells; empty while it tells nothing."""
    with suppress(PeerError):
        return admin.call(ADMIN, "status", timeout_s=60)
    return {}


def donors() -> list[str]:
    """The donors' states."""
    return [donor["state"] for donor in told().get("donors", [])]


def swaps() -> str:
    """What the kernel swaps to."""
    return Path("/proc/swaps").read_text()


if __name__ == "__main__":
    install_units()
    configure()
    start()
