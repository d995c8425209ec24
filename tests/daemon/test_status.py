"""The donor's picture of itself: whole in its numbers, bounded in its rows."""

import asyncio
from collections import Counter
from pathlib import Path

from prometheus_client.core import Metric

from farside import admin
from farside.daemon.control import messages as m
from farside.daemon.metrics import donor_metrics
from farside.daemon.slab.pool import Slab
from farside.daemon.slab.sessions import Transport
from farside.daemon.status import ROWS_MAX, DonorStatus
from tests.daemon.plane import Plane, running

MANY = ROWS_MAX + 500


def lend_made_up(plane: Plane) -> None:
    """As many sessions as slabs, all with the longest names that a borrower can have, and ever so long ago."""
    assert plane.donor.lender is not None
    ledger = plane.donor.lender.ledger
    for number in range(1, MANY + 1):
        session = ledger.open(number=number, node="n" * m.NODE_CHARS_MAX, now_s=-1e9, address=f"a{number % 8}")
        slab = Slab(fd=-1, address=0, length_bytes=1, is_huge=False)
        ledger.grant(session, slab=slab, device="\x01" * 256, transport=Transport.NETWORK, token=1, now_s=-1e9)


def forget_made_up(plane: Plane) -> None:
    assert plane.donor.lender is not None
    ledger = plane.donor.lender.ledger
    for loan in ledger.loans:
        ledger.end(loan)
    for session in ledger.sessions:
        ledger.close(session)


def values(metric: Metric, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in metric.samples}


def test_a_donor_of_very_many_slabs_can_still_be_asked_and_says_how_many_it_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        plane = Plane(tmp_path)
        async with running(plane):
            lend_made_up(plane)
            told = await admin.ask(tmp_path / "admin.sock", "status")
            picture = plane.status()
            forget_made_up(plane)

        assert (len(told["slabs"]), told["slabs_omitted"]) == (ROWS_MAX, MANY + 2 - ROWS_MAX)
        assert (len(told["sessions"]), told["sessions_omitted"]) == (ROWS_MAX, MANY - ROWS_MAX)
        assert told["slab_counts"] == {"ready": 2, "lent": MANY, "migrating": 0, "evicting": 0}
        assert_metrics_count_all(picture)

    asyncio.run(scenario())


def assert_metrics_count_all(picture: DonorStatus) -> None:
    metrics = {metric.name: metric for metric in donor_metrics(picture)}

    assert Counter(values(metrics["farside_donor_slabs"], "state")) == Counter(ready=2, lent=MANY)
    assert metrics["farside_donor_sessions"].samples[0].value == MANY
