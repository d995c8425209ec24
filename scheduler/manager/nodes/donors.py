"""Which donors each node may borrow from. PURE.

How it works
  All donors of nodes that are up stand on a ring, each at the hash of its name. A borrower gets the first
  `DONORS_MAX` behind its own name's hash: each donor goes to about as many borrowers, and when one comes or goes,
  a borrower's list changes by one at most. Nobody gets its own node's donor, nor one that only its own machine reaches.

  A donor's name is what its node says. One that is another node's own name does not count: else any node could draw the
  borrowers of that one to an address where nobody answers.

  These are addresses. Who answers there proves by the cluster's key that it is a donor, and the manager does not have
  that key: the worst that a wrong list can do is to name donors that nobody can use.
"""

import hashlib
from bisect import bisect
from collections.abc import Iterable

from farside.agent.messages import DONORS_MAX, Donor
from farside.endpoint import is_near, parse_endpoint
from farside.scheduler.manager.model.lending import borrows_name, is_loopback
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.model.state import LiveState


def donor_at(donor: Donor, address: str) -> Donor | None:
    """A node's donor as others reach it; ``address`` is the node's, for a donor that listens on all of its addresses.

    None where its ``control`` is no address on a network.
    """
    try:
        where = parse_endpoint(donor.control)
    except ValueError:
        return None
    if isinstance(where, str) or not donor.node:
        return None
    host, port = where
    host = address if host in ("0.0.0.0", "::", "*") else host
    return donor.lasting(f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}")


class DonorRing:
    """The donors of one state."""

    def __init__(self, state: LiveState) -> None:
        self.version = state.donors_version
        up = (node for node in state.nodes.values() if node.is_up and not borrows_name(node, state))
        self._ring = sorted((_place_of(node.name), node.name) for node in up if node.donor is not None)
        self._nodes = {name: state.nodes[name] for _, name in self._ring}

    def of(self, borrower: LiveNode, most: int = DONORS_MAX) -> tuple[Donor, ...]:
        """Those that this node may borrow from, by name; no two with the same name."""
        return tuple(donor for _, donor in self.lenders(borrower, most))

    def lenders(self, borrower: LiveNode, most: int = DONORS_MAX) -> tuple[tuple[str, Donor], ...]:
        """Those donors, each with the name of the node that it belongs to."""
        found: dict[str, tuple[str, Donor]] = {}
        for node in self._behind(borrower.name):
            assert node.donor is not None
            donor = node.donor.address
            is_reached = not is_loopback(donor.control) or is_near(borrower.address)
            if node.name != borrower.name and is_reached:
                found.setdefault(donor.node, (node.name, donor))
            if len(found) == most:
                break
        return tuple(found[name] for name in sorted(found))

    def _behind(self, name: str) -> Iterable[LiveNode]:
        first = bisect(self._ring, (_place_of(name), name))
        return (self._nodes[one] for _, one in (*self._ring[first:], *self._ring[:first]))


def _place_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
