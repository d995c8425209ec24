"""A donor spoils pages that a borrower reads by RDMA, over the kernel's soft adapter: each is counted [H1]."""

from pathlib import Path

import pytest

from tests.support.rig import Rig, default_params
from tests.support.spoilt_reads import PAGES, attacked

pytestmark = pytest.mark.usefixtures("lasting_rxe0")

PATIENT_MS = 60_000  # an emulated guest: no read may be late and come from the disk instead


def test_every_page_that_a_donor_spoils_is_counted_and_none_is_read(tmp_path: Path) -> None:
    params = default_params(workers=1, hedge_us=PATIENT_MS * 1000, deadline_ms=PATIENT_MS)
    with Rig(tmp_path, params, transport="rdma") as rig:
        told = attacked(rig, PAGES)

    assert told["pages spoilt"] == told["pages counted as damaged"] != 0
    assert (told["reads that the donor's processor served"], told["connections by RDMA"]) == (0, 2)
