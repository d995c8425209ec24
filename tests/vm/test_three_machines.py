"""A borrower and two donors, each a machine of its own, set up by the scripts that vagrant provisions with."""

import json
import secrets
from typing import Any

import pytest

from tests.support.waiting import until
from tests.vm.harness.network import Network
from tests.vm.inside import TREE

pytestmark = pytest.mark.vm

BORROWER, DONORS = 1, (2, 3)
START_S = 600.0  # three Python programs under emulation, on a host that may be busy
PROVISION = f"{TREE}/vagrant/provision"
# Where the scripts expect a checkout with its virtual environment.
CHECKOUT = "mkdir -p /opt/farside/.venv/bin /etc/farside && ln -s /usr/bin/python3 /opt/farside/.venv/bin/python"
# Rounds of writing and reading back, until /run/stop is there.
VERIFY = (
    "n=0; while [ $n = 0 ] || [ ! -e /run/stop ]; do n=$((n + 1)); "
    "fio --name=v --ioengine=nbd --uri='nbd+unix:///swap0?socket=/run/farside/nbd.sock' --thread "
    "--rw=randwrite --bssplit=4k/50:128k/50 --size=48M --iodepth=16 --randseed=$n "
    "--verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 || exit 1; done"
)


@pytest.fixture
def plane(trio: Network) -> Network:
    """All three are set up, and the borrower has reached both donors."""
    key = secrets.token_hex(32)
    for guest in trio:
        guest.run(f"{CHECKOUT} && (umask 077 && echo {key} >/etc/farside/key)")
        guest.run(f"{PROVISION}/rxe.sh {guest.address}", limit_s=START_S)
    for number in DONORS:
        guest = trio[number]
        guest.run(f"{PROVISION}/donor.sh {guest.name} {guest.address}", limit_s=START_S)
    donors = " ".join(f"{trio[number].name}={trio[number].address}" for number in DONORS)
    borrower = trio[BORROWER]
    borrower.run(f"{PROVISION}/borrower.sh {borrower.name} {borrower.address} 128MiB {donors}", limit_s=START_S)
    until(lambda: states(trio) == ["up", "up"], what="both donors", deadline_s=START_S, every_s=5)
    return trio


def told(plane: Network) -> dict[str, Any]:
    """What the borrower says of itself; empty while it does not answer."""
    done = plane[BORROWER].outcome("farside status --json", limit_s=120)
    borrowers: list[dict[str, Any]] = json.loads(done.stdout)["blockdevs"] if done.status == 0 else []
    return borrowers[0] if borrowers else {}


def states(plane: Network) -> list[str]:
    return [donor["state"] for donor in told(plane).get("donors", [])]


def test_pages_of_one_machine_lie_in_two_others_and_come_back_right(plane: Network) -> None:
    plane[BORROWER].run(f"touch /run/stop; {VERIFY}", limit_s=START_S)

    after = told(plane)
    assert {slab["donor"] for slab in after["slabs"]} <= {"node2", "node3"}
    assert after["pages_out"]["remote"] > 0
    assert (after["errors"]["requests"], after["errors"]["pages_lost"]) == (0, 0)


def test_a_donor_whose_machine_dies_under_load_loses_no_page(plane: Network) -> None:
    borrower = plane[BORROWER]
    with borrower.spawn(VERIFY) as load:
        until(lambda: told(plane)["slabs"], what="pages at a donor", deadline_s=START_S)
        (lost,) = {number for number in DONORS if plane[number].name == told(plane)["slabs"][0]["donor"]}

        plane[lost].power_off()
        until(lambda: set(states(plane)) & {"failed", "down"}, what="a donor that is given up", deadline_s=START_S)
        borrower.run("touch /run/stop")
        said = load.communicate(timeout=START_S)[0]

    assert load.returncode == 0, said
    errors = told(plane)["errors"]
    assert (errors["requests"], errors["pages_lost"]) == (0, 0)
