"""Swap by soft RDMA between two machines: networks are cut and healed, machines stand still, and lose their power."""

import json
import secrets
import shlex
from typing import Any

import pytest

from tests.support.waiting import until
from tests.vm.conftest import LOGS
from tests.vm.guest.faults import STANDSTILL
from tests.vm.harness.network import Network
from tests.vm.inside import PATIENCE, TREE, keep_rows

pytestmark = pytest.mark.vm

BORROWER, DONOR = 1, 2
LIMIT_S = 600.0 * PATIENCE
SAID = "/run/said"
MODULE = f"cd {TREE} && python3 -B -m tests.vm.guest"


class Faults:
    """The guest's program (tests/vm/guest/faults.py), spoken to from here."""

    def __init__(self, pair: Network) -> None:
        self._borrower = pair[BORROWER]
        self._answers = 0
        key, address = secrets.token_hex(32), pair[DONOR].address
        pair[DONOR].run(f"({MODULE}.far_donor {address} {key}) >/root/log 2>&1 </dev/null", limit_s=LIMIT_S)
        self._borrower.run(f"({MODULE}.faults {address} {key}) >{SAID} 2>&1 </dev/null &")
        self._hear("ready")

    def begin(self, fault: str) -> None:
        """A row begins."""
        self._say(fault)
        self._hear(fault)

    def end(self) -> None:
        """All pages are read and right."""
        self._say("end")
        self._hear("judged")
        keep_rows(self._borrower, LOGS / "survival/test_survival_rdma.jsonl")

    def told(self) -> Any:
        """What the borrower tells; empty while it tells nothing."""
        done = self._borrower.outcome("farside admin status --socket /root/plane/blockdev.sock", limit_s=120)
        return json.loads(done.stdout) if done.status == 0 else {}

    def donor_state(self) -> str:
        """The donor's, as the borrower has it."""
        told = self.told()
        return str(told["donors"][0]["state"]) if told else ""

    def _say(self, word: str) -> None:
        self._borrower.run(f"echo {shlex.quote(word)} >/run/words")

    def _hear(self, wanted: str) -> None:
        self._answers += 1
        lines = until(self._lines, what=f"{wanted!r} of the borrower", deadline_s=LIMIT_S, every_s=1)
        assert lines[self._answers - 1] == wanted, lines

    def _lines(self) -> list[str]:
        lines = self._borrower.run(f"cat {SAID}").splitlines()
        return lines if len(lines) >= self._answers else []


def test_swap_by_rdma_outlives_its_network_and_its_donor(pair: Network) -> None:
    faults = Faults(pair)

    faults.begin("none")
    faults.end()

    faults.begin("donor cut off, until it is given up")
    pair.cut(DONOR)
    until(lambda: faults.donor_state() in ("failed", "down"), what="a donor given up", deadline_s=LIMIT_S, every_s=1)
    faults.end()

    faults.begin("the network healed")
    pair.heal(DONOR)
    until(lambda: faults.donor_state() == "up", what="the donor's return", deadline_s=LIMIT_S, every_s=1)
    faults.end()

    faults.begin(STANDSTILL)
    pair[BORROWER].stand_still(60)
    until(lambda: faults.donor_state() == "up", what="the donor's return", deadline_s=LIMIT_S, every_s=1)
    faults.end()
    assert faults.told()["connections"] == 1

    faults.begin("the donor's machine without power")
    pair[DONOR].power_off()
    until(lambda: faults.donor_state() in ("failed", "down"), what="a donor given up", deadline_s=LIMIT_S, every_s=1)
    faults.end()
