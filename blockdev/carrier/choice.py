"""How pages may travel to a donor, and what is tried first. PURE.

A donor at a unix: address is on this host, and its memory can be mapped here; to any other there are RDMA and TCP. What
is tried first and then given up for the next is a fallback: it is logged, counted, and tried again later (donor/links.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Carrier(StrEnum):
    """What carries pages."""

    SHM = "shm"
    RDMA = "rdma"
    TCP = "tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """``tried`` in this order; ``missing`` says why something that was preferred is not among them, or is empty."""

    tried: Sequence[Carrier]
    missing: str = ""


def is_shared(control: str, transport: str) -> bool:
    """True when a donor at this address lends by shared memory, under the setting ``transport``."""
    return control.startswith("unix:") and transport in ("auto", "shm")


def wants_rdma(control: str, transport: str, *, has_device: bool) -> bool:
    """True when queue pairs are asked of a donor at this address."""
    return transport == "rdma" or (transport == "auto" and has_device and not is_shared(control, transport))


def ways(control: str, transport: str, *, has_device: bool, donor_has_rdma: bool) -> Ways:
    """The carriers to a donor; none where the setting allows nothing that both ends have."""
    if is_shared(control, transport):
        return Ways(tried=(Carrier.SHM,))
    if not wants_rdma(control, transport, has_device=has_device):
        return Ways(tried=(Carrier.TCP,))
    missing = "" if has_device and donor_has_rdma else _missing(has_device=has_device)
    rdma = () if missing else (Carrier.RDMA,)
    return Ways(tried=rdma if transport == "rdma" else (*rdma, Carrier.TCP), missing=missing)


def _missing(*, has_device: bool) -> str:
    if not has_device:
        return "no RDMA device here, or an engine built without rdma-core"
    return "the donor offers no RDMA"
