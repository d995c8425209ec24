"""The first hour of docs/operating.md, run in guests word for word: each command prints what the document says."""

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.vm.conftest import LOGS
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network
from tests.vm.test_package import FORGET_CHECKOUT
from tests.vm.transcript import EVERYWHERE, Command, File, agrees, section, steps

pytestmark = pytest.mark.vm

ROOT = Path(__file__).parents[2]
KEY = "/etc/farside/key"
ADDRESS = "10.0.0.1"  # the donor's, in the document
LIMIT_S = 600.0
# What a document says of a moment comes a moment later here.
SETTLE_S = 180.0
# A machine of 768 MiB with an emulated processor, where the document's has 64 GiB; nothing else is changed.
SMALLER = {
    "daemon": 'slab_bytes = "8MiB"\nheadroom_bytes = "32MiB"\nmax_slabs = 16\n',
    "blockdev": 'slab_bytes = "8MiB"\nsize_bytes = "128MiB"\npending_bytes = "16MiB"\nworkers = 1\n'
    "deadline_s = 5\ngrace_s = 20\n",
}
# Only looks, so that it may be asked again.
LOOKS = ("farside status", "farside swap status", "farside doctor")


def test_the_first_hour_prints_what_the_document_says(pair: Network, tmp_path: Path) -> None:
    machines = {"n1": pair[1], "d1": pair[2]}
    package = built(tmp_path)
    for name, guest in machines.items():
        prepare(guest, name, package)
    said, wrong = "", list[str]()
    try:
        for step in steps(section((ROOT / "docs/operating.md").read_text(), "## The first hour")):
            for name in machines if step.machine == EVERYWHERE else (step.machine,):
                if isinstance(step, File):
                    text = step.text.replace(ADDRESS, machines["d1"].address)
                    machines[name].run(f"cat >{step.path}", stdin=text.encode())
                    continue
                printed = run(machines[name], step).replace(machines["d1"].address, ADDRESS)
                said += f"{name}# {step.command}\n{printed}"
                if not agrees(step.prints, printed):
                    wrong.append(f"{name}# {step.command}\n{printed}-- the document has:\n" + "\n".join(step.prints))
            if isinstance(step, Command) and "keygen" in step.command:
                hand_over_key(machines[step.machine], machines.values(), tmp_path)
    finally:
        LOGS.mkdir(parents=True, exist_ok=True)
        (LOGS / "first-hour.txt").write_text(said)

    assert wrong == [], "\n\n".join(wrong)


def built(folder: Path) -> Path:
    """The package, by the name that the document has."""
    argv = [sys.executable, "-m", "tools.build_deb", "--out", str(folder), "--fast"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    if "dpkg-dev" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def prepare(guest: Guest, name: str, package: Path) -> None:
    """A bare machine with the package's file on it."""
    guest.run(f"{FORGET_CHECKOUT} && hostname {name}")
    guest.put(package, f"/root/{package.name}")
    for program, text in SMALLER.items():
        guest.run(f"mkdir -p /etc/farside/{program}.d && cat >/etc/farside/{program}.d/guest.toml", stdin=text.encode())


def run(guest: Guest, step: Command) -> str:
    """What it prints. One that only looks is asked again for a while, until it agrees."""
    printed = ""

    def agreed() -> bool:
        nonlocal printed
        command = f"cd /root && export DEBIAN_FRONTEND=noninteractive && {{ {step.command}; }} 2>&1"
        printed = guest.outcome(command, limit_s=LIMIT_S).stdout
        return agrees(step.prints, printed) or step.command not in LOOKS

    with suppress(AssertionError):  # then the caller tells both
        until(agreed, what=step.command, deadline_s=SETTLE_S, every_s=5)
    return printed


def hand_over_key(source: Guest, guests: Iterable[Guest], folder: Path) -> None:
    """As the document asks: the same key on every machine."""
    source.get(KEY, folder / "key")
    (folder / "key").chmod(0o600)
    for guest in guests:
        if guest is not source:
            guest.put(folder / "key", KEY)
