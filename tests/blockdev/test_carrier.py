"""How pages may travel to a donor."""

import pytest

from farside.blockdev.carrier.choice import Offer, asked, choose

REMOTE, LOCAL = "tcp:10.0.0.7:7677", "unix:/run/farside/donor.sock"
SHM, RDMA, TCP = "shm", "rdma", "tcp"


def offers(*, has_device: bool = True, donor_has_rdma: bool = True) -> tuple[Offer, ...]:
    rdma = Offer(
        name=RDMA,
        lacks_here="" if has_device else "no RDMA device here",
        lacks_there="" if donor_has_rdma else "the donor offers no RDMA",
    )
    return rdma, Offer(name=TCP)


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
def test_what_is_tried_when_both_ends_have_rdma(control: str, transport: str, tried: tuple[str, ...]) -> None:
    found = choose(control, transport, offers())

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
    transport: str, has_device: bool, donor_has_rdma: bool, tried: tuple[str, ...], missing: str
) -> None:
    found = choose(REMOTE, transport, offers(has_device=has_device, donor_has_rdma=donor_has_rdma))

    assert tuple(found.tried) == tried
    assert missing in found.missing
    assert bool(missing) == bool(found.missing)


@pytest.mark.parametrize(
    ("control", "transport", "has_device", "names"),
    [
        (REMOTE, "auto", True, [RDMA, TCP]),
        (REMOTE, "auto", False, [TCP]),
        (REMOTE, "rdma", False, [RDMA]),
        (REMOTE, "tcp", True, [TCP]),
        (LOCAL, "auto", True, [SHM]),
    ],
)
def test_a_donor_is_asked_for_what_may_be_used(
    control: str, transport: str, has_device: bool, names: list[str]
) -> None:
    assert [offer.name for offer in asked(control, transport, offers(has_device=has_device))] == names
