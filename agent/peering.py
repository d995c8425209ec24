"""Donor list of this node's borrower, merged from the manager's last lists. PURE.

A donor that is new on the manager's list, or has moved, is taken at once; another machine's unix socket is of no use
here. A donor that is not on it any more stays for `HOLD_S`: a manager that was restored from a backup, or whose agents
come back one by one, knows few donors at first, and a donor that leaves the peers file has its slabs moved away. One
that has really gone costs the borrower no more than attempts to reach it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from farside.agent.messages import DonorAddress
from farside.endpoint import is_on_network

HOLD_S = 3600.0
KNOWN_MAX = 256
"""Donors of one peers file, those that are held included; of these the longest missed go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A donor that the borrower has. ``missed_s``: since when the manager's list is without it; None: it is there."""

    address: DonorAddress
    missed_s: float | None = None


def merged(known: Iterable[Known], told: Iterable[DonorAddress], now_s: float) -> tuple[Known, ...]:
    """Donors from now on, by name: those that the manager lists, and those that it left out not long ago."""
    found = {address.node: Known(address=address) for address in told if is_on_network(address.control)}
    missed = [
        replace(one, missed_s=now_s) if one.missed_s is None else one for one in known if one.address.node not in found
    ]
    held = [one for one in missed if one.missed_s is not None and now_s - one.missed_s < HOLD_S]
    # Those missed last come first, so that the longest missed are cut off.
    held.sort(key=lambda one: -(one.missed_s or 0.0))
    for one in held[: max(0, KNOWN_MAX - len(found))]:
        found[one.address.node] = one
    return tuple(found[name] for name in sorted(found))
