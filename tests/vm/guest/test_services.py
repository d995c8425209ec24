"""The units of systemd/ under real systemd: started, restarted, upgraded, killed, stopped while the machine swaps."""

import os
import pwd
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import outcome
from tests.support.waiting import until
from tests.vm.guest import service_plane as plane
from tests.vm.guest.service_plane import BLOCKDEV, DONOR, SWAP, must, show, swaps, told
from tests.vm.guest.swap_plane import LIMIT_S, hog, kernel_errors

WATCHDOG = Path(f"/run/systemd/system/{BLOCKDEV}.d/watchdog.conf")


@pytest.fixture(scope="module")
def services() -> Iterator[None]:
    """Installed and running."""
    outcome(["dmesg", "--clear"])
    plane.install_units()
    WATCHDOG.parent.mkdir(parents=True)
    WATCHDOG.write_text("[Service]\nWatchdogSec=30\n")
    must("daemon-reload")
    plane.configure()
    plane.start()
    yield
    plane.systemctl("stop", SWAP, BLOCKDEV, DONOR)
    print(plane.journal())


pytestmark = pytest.mark.usefixtures("services")


def supervisor() -> int:
    return int(show(BLOCKDEV, "MainPID"))


def until_own_server(before: int) -> None:
    """A supervisor that is not ``before`` serves with a server process of its own."""

    def own() -> bool:
        status, main = told(), supervisor()
        return bool(status) and main not in (0, before) and _parent(status["server_pid"]) == main

    until(own, what="a new supervisor's own server", deadline_s=2 * LIMIT_S, every_s=1)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_one_command_lends_borrows_and_swaps() -> None:
    assert "/dev/nbd0" in swaps()
    assert [show(unit, "ActiveState") for unit in (DONOR, BLOCKDEV, SWAP)] == ["active"] * 3
    assert int(show(BLOCKDEV, "NFileDescriptorStore")) >= 7
    assert Path(f"/proc/{show(DONOR, 'MainPID')}").stat().st_uid == pwd.getpwnam("farside").pw_uid
    (attached,) = [line for line in outcome(["farside", "swap", "status"]).stdout.splitlines() if "nbd0" in line][:1]
    assert "swap0" in attached


def test_the_donor_lends_and_the_borrower_is_guarded(tmp_path: Path) -> None:
    with hog(tmp_path, seconds=5) as program:
        said = program.end()

    assert said.startswith("wrong=0 ")
    assert told()["pages_out"]["remote"] > 0
    checks = outcome(["farside", "doctor"], limit_s=LIMIT_S).stdout
    assert "FAIL" not in checks, checks


@pytest.mark.parametrize("verb", ["restart", "reload"])
def test_an_upgrade_under_load_loses_no_page(tmp_path: Path, verb: str) -> None:
    before, server = supervisor(), told()["server_pid"]
    with hog(tmp_path, seconds=60) as program:
        must(verb, BLOCKDEV)
        if verb == "restart":
            until_own_server(before)
        until(lambda: told().get("server_pid", server) != server, what="a new server", deadline_s=LIMIT_S, every_s=1)
        said = program.end()

    print(verb, said)
    assert said.startswith("wrong=0 ")
    assert (supervisor() == before) == (verb == "reload")
    assert told()["connections"] == 1  # one a core
    assert show(SWAP, "ActiveState") == "active"
    assert kernel_errors() == []


@pytest.mark.parametrize("how", ["killed", "stuck", "killed with its server"])
def test_a_supervisor_that_dies_is_succeeded_under_load(tmp_path: Path, how: str) -> None:
    before, server = supervisor(), told()["server_pid"]
    with hog(tmp_path, seconds=60) as program:
        os.kill(before, signal.SIGSTOP if how == "stuck" else signal.SIGKILL)
        if how == "killed with its server":
            os.kill(server, signal.SIGKILL)
        until_own_server(before)
        said = program.end()

    print(how, said)
    assert said.startswith("wrong=0 ")
    assert told()["connections"] == 1  # one a core
    assert show(SWAP, "ActiveState") == "active"
    assert kernel_errors() == []


def test_the_donors_restart_loses_no_page(tmp_path: Path) -> None:
    with hog(tmp_path, seconds=30) as program:
        must("restart", DONOR)
        said = program.end()
    until(lambda: plane.donors() == ["up"], what="the donor's return", deadline_s=LIMIT_S, every_s=1)

    assert said.startswith("wrong=0 ")
    assert told()["errors"]["pages_lost"] == 0
    assert kernel_errors() == []


def test_stopping_the_borrower_switches_swap_off_first() -> None:
    must("stop", BLOCKDEV)

    assert "/dev/nbd0" not in swaps()
    assert not Path("/sys/block/nbd0/pid").exists()
    assert [show(unit, "ActiveState") for unit in (BLOCKDEV, SWAP)] == ["inactive"] * 2
    assert show(BLOCKDEV, "NFileDescriptorStore") == "0"
    assert outcome(["pgrep", "-f", "farside.blockdev.server"]).status == 1
    assert kernel_errors() == []


def test_it_starts_again_from_nothing() -> None:
    plane.start()

    assert "/dev/nbd0" in swaps()
