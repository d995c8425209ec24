"""The Debian package in a guest: installed, swapping by one command, upgraded under load, removed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from tests.vm.guest.service_plane import SETTINGS
from tests.vm.guest.swap_plane import HOG
from tests.vm.harness.guest import Guest

pytestmark = pytest.mark.vm

ROOT = Path(__file__).parents[2]
VERSIONS = ("0.1.0", "0.1.1")
LIMIT_S = 600.0
# What the harness put there to run the checkout: the package must do without.
FORGET_CHECKOUT = (
    "rm -f /usr/local/bin/farside /usr/local/lib/python3.11/dist-packages/farside.pth && umount /farside && "
    "! python3 -c 'import farside' 2>/dev/null"
)
HOG_MIB = 12


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The same files as two versions."""
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-dev is not installed")
    folder = tmp_path_factory.mktemp("deb")
    found = {}
    for version in VERSIONS:
        argv = [sys.executable, "-m", "tools.build_deb", "--version", version, "--out", str(folder), "--fast"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        found[version] = Path(done.stdout.strip())
    yield found
    shutil.rmtree(folder)


def told(guest: Guest) -> Any:
    """What the borrower says of itself; empty while it does not answer."""
    done = guest.outcome("farside status --json", limit_s=LIMIT_S)
    borrowers = json.loads(done.stdout)["blockdevs"] if done.status == 0 else []
    return borrowers[0] if borrowers else {}


def is_swapping(guest: Guest) -> bool:
    return "/dev/nbd0" in guest.run("cat /proc/swaps")


def test_the_package_from_first_to_last(guest: Guest, packages: dict[str, Path]) -> None:
    guest.run(FORGET_CHECKOUT)
    for version, path in packages.items():
        guest.put(path, f"/root/{version}.deb")

    # Installed: nothing starts by itself, and everything is there.
    guest.run("dpkg -i --force-confold /root/0.1.0.deb", limit_s=LIMIT_S)
    assert guest.run("farside --version", limit_s=LIMIT_S).startswith("farside ")
    assert guest.run("systemctl is-active farside-daemon || true").strip() == "inactive"
    assert guest.run("stat -c '%U %a' /run/farside").strip() == "root 1771"
    assert "-F _farside farside" in guest.run("cat /usr/share/bash-completion/completions/farside")

    # Key and settings; then one command brings up swap.
    guest.run("farside keygen", limit_s=LIMIT_S)
    for name, text in SETTINGS.items():
        guest.run(f"cat >/etc/farside/{name}.toml", stdin=text.encode())
    guest.run("systemctl enable --now farside-daemon", limit_s=LIMIT_S)
    guest.run("systemctl enable --now farside-swap@swap0", limit_s=LIMIT_S)
    assert is_swapping(guest)

    # Upgraded under load.
    before = told(guest)
    guest.run("cat >/root/hog.py", stdin=HOG.encode())
    hog = f"systemd-run --quiet --scope -p MemoryMax={HOG_MIB}M python3 /root/hog.py {3 * HOG_MIB * 256} 180"
    with guest.spawn(hog) as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "filled\n"
        said = guest.run("dpkg -i --force-confold /root/0.1.1.deb 2>&1", limit_s=LIMIT_S)
        until(
            lambda: told(guest).get("server_pid", before["server_pid"]) != before["server_pid"],
            what="a server of the new version", deadline_s=LIMIT_S, every_s=2,
        )  # fmt: skip
        verdict = load.communicate(timeout=LIMIT_S)[0]
    assert "the donor runs on with the old version" in said
    assert verdict.startswith("wrong=0 "), verdict
    assert told(guest)["supervisor_pid"] != before["supervisor_pid"]
    assert told(guest)["errors"]["pages_lost"] == 0
    assert guest.run("dpkg-query -W -f '${Version}' farside") == "0.1.1"

    # Not removed under swap.
    refused = guest.outcome("dpkg -r farside", limit_s=LIMIT_S)
    assert refused.status != 0
    assert "/dev/nbd0 is attached" in refused.stderr
    assert "the package is not removed" in refused.stderr
    assert is_swapping(guest)

    # Removed, and purged.
    guest.run("systemctl stop 'farside-swap@*'", limit_s=LIMIT_S)
    assert not is_swapping(guest)
    guest.run("dpkg -r farside", limit_s=LIMIT_S)
    assert guest.outcome("pgrep -f 'farside (daemon|blockdev|swap)'").status == 1
    assert guest.outcome("test -e /usr/bin/farside").status == 1
    guest.run("dpkg -P farside", limit_s=LIMIT_S)
    assert guest.outcome("ls -d /etc/farside /var/lib/farside /usr/lib/farside").stdout == ""
