"""How pages may travel to a donor."""

import pytest

from farside.blockdev.carrier.choice import Carrier, ways

REMOTE, LOCAL = "tcp:10.0.0.7:7677", "unix:/run/farside/donor.sock"
SHM, RDMA, TCP = Carrier.SHM, Carrier.RDMA, Carrier.TCP


@pytest.mark.parametrize(
    ("control", "transport", "tried"),
    [
        (REMOTE, "auto", (RDMA, TCP)),
        (REMOTE, "rdma", (RDMA,)),
        (REMOTE, "tcp", (TCP,)),
        (REMOTE, "shm", (TCP,)),
        (LOCAL, "auto", (SHM,)),
        (LOCAL, "shm", (SHM,)),
        (LOCAL, "tcp", (TCP,)),
        (LOCAL, "rdma", (RDMA,)),
    ],
)
def test_what_is_tried_when_both_ends_have_rdma(control: str, transport: str, tried: tuple[Carrier, ...]) -> None:
    found = ways(control, transport, has_device=True, donor_has_rdma=True)

    assert (tuple(found.tried), found.missing) == (tried, "")


@pytest.mark.parametrize(
    ("transport", "has_device", "donor_has_rdma", "tried", "missing"),
    [
        ("auto", False, True, (TCP,), ""),  # nobody expects it on a machine without a device
        ("auto", True, False, (TCP,), "donor offers no RDMA"),
        ("rdma", False, True, (), "no RDMA device here"),
        ("rdma", True, False, (), "donor offers no RDMA"),
        ("tcp", True, False, (TCP,), ""),
    ],
)
def test_what_is_tried_when_one_end_has_none(
    transport: str, has_device: bool, donor_has_rdma: bool, tried: tuple[Carrier, ...], missing: str
) -> None:
    found = ways(REMOTE, transport, has_device=has_device, donor_has_rdma=donor_has_rdma)

    assert tuple(found.tried) == tried
    assert missing in found.missing
    assert bool(missing) == bool(found.missing)
