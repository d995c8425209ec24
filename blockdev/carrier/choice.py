"""Choice of the carrier to a donor: which are allowed, and in which order they are tried. PURE.

A donor at a unix: address is on this host, and its memory can be mapped here; any other is reached over a network. A
carrier that is preferred and can't be had means a fallback: it is logged, counted, and tried again later
(donor/links.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

SHM = "shm"
LAST_RESORT = "tcp"  # each machine has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A carrier over the network: what this machine and what the donor lack for it; empty texts mean nothing."""

    name: str
    lacks_here: str = ""
    lacks_there: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``tried`` in this order; ``missing`` says why a carrier that is preferred is not among them, or is empty."""

    tried: Sequence[str]
    missing: str = ""


def is_shared(control: str, transport: str) -> bool:
    """True when a donor at this address lends by shared memory, under the setting ``transport``."""
    return control.startswith("unix:") and transport in ("auto", SHM)


def asked(control: str, transport: str, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """The carriers that a donor at this address is asked for, the preferred one first.

    ``auto`` asks for what this machine has. A carrier that the setting names is asked for alone.
    """
    if is_shared(control, transport):
        return (Offer(name=SHM),)
    if transport == "auto":
        return tuple(offer for offer in offers if not offer.lacks_here)
    # 'shm' names no carrier over the network: under it a donor on another host is reached by TCP.
    named = transport if any(offer.name == transport for offer in offers) else LAST_RESORT
    return tuple(offer for offer in offers if offer.name == named)


def choose(control: str, transport: str, offers: Sequence[Offer]) -> Choice:
    """The carriers to a donor; none where the setting allows nothing that both ends have."""
    wanted = asked(control, transport, offers)
    # In the order of preference, so that `missing` is about the carrier that is preferred most.
    lacks = {offer.name: offer.lacks_here or offer.lacks_there for offer in wanted}
    return Choice(
        tried=tuple(name for name, lack in lacks.items() if not lack), missing=next(filter(None, lacks.values()), "")
    )
