"""`farside daemon drain` with real donors: its pages move to the other one, and none is lost."""

import re
from pathlib import Path
from typing import Any

from farside.sandbox import control
from farside.sandbox.session import open_sandbox
from tests.support.programs import nbdsh, outcome
from tests.support.sandbox import farside
from tests.support.waiting import until

WRITE = "for i in range(48): h.pwrite(bytes([i + 1]) * 1048576, i << 20)"
CHECK = "print(all(h.pread(1048576, i << 20) == bytes([i + 1]) * 1048576 for i in range(48)))"


def holders(state: Path) -> set[str]:
    """Donors that have slabs of the device."""
    told: dict[str, Any] = dict(control.blockdev_status(state))
    return {slab["donor"] for slab in told["slabs"]}


def test_a_donor_is_emptied_without_losing_a_page(tmp_path: Path) -> None:
    sizes = ("--donors", "2", "--donor-memory", "256MiB", "--size", "64MiB", "--slab", "4MiB")
    with open_sandbox(sizes, state=tmp_path / "state") as session:
        nbdsh(session.uri, WRITE)
        until(lambda: holders(session.state) == {"d1", "d2"}, what="pages at both donors", deadline_s=60)
        socket = ("--socket", str(session.state / "donors/d1/admin.sock"))

        done = outcome(farside("daemon", "drain", *socket))

        assert done.status == 0, done.stderr
        assert done.stdout.startswith("empty: ")
        assert re.search(r"draining: \d+ slabs? lent", done.stderr)
        assert "d1" not in holders(session.state)
        assert nbdsh(session.uri, CHECK).strip() == "True"
        assert outcome(farside("daemon", "drain", "--undo", *socket)).stdout == "lending again\n"
