"""What this node's donor says of itself: what it has lent and to whom, and where others reach it.

A donor that stops answering is told of for `GONE_S` more, as one that lends nothing: it may only be restarted, and who
borrows from it would else take it for one that has left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from farside import admin
from farside.agent import messages as m
from farside.clock import Clock
from farside.endpoint import parse_endpoint
from farside.errors import FarsideError
from farside.log import get_log

ASK_LIMIT_S = 1.0
GONE_S = 60.0

_log = get_log("agent.sense")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Memory that this node's donor has in slabs, which borrower has how much of it, and the donor itself."""

    slabs_bytes: int = 0
    loans: tuple[m.Loan, ...] = ()
    donor: m.Donor | None = None


NOTHING_LENT = Lent()


class DonorSense:
    """Asks the donor by its admin socket."""

    def __init__(self, socket: Path | None, *, control: str, clock: Clock) -> None:
        """``socket`` None: there is no donor. ``control`` is where others reach it; empty: where it says."""
        self._socket, self._control, self._clock = socket, control, clock
        self._last: m.Donor | None = None
        self._heard_s = 0.0

    async def read(self) -> Lent:
        """The donor now; nothing lent where none answers."""
        lent = await self._ask()
        now_s = self._clock.now_s()
        if lent is not None:
            self._last, self._heard_s = lent.donor, now_s
            return lent
        if self._last is None or now_s - self._heard_s > GONE_S:
            self._last = None
            return NOTHING_LENT
        return Lent(donor=msgspec.structs.replace(self._last, lends=False, free_bytes=0, lent_bytes=0))

    async def _ask(self) -> Lent | None:
        if self._socket is None or not self._socket.exists():
            return None
        try:
            return lent_of(await admin.ask(self._socket, "status", timeout_s=ASK_LIMIT_S), self._control)
        except (FarsideError, KeyError, TypeError, ValueError) as error:
            _log.debug("the donor does not say what it has lent", why=error)
            return None


def lent_of(told: Mapping[str, Any], control: str = "") -> Lent:
    """What a donor's status says of its slabs, its borrowers and itself; ``control`` goes before where it listens.

    Raises:
        KeyError, TypeError, ValueError: It is no donor's status.
    """
    sessions = [(str(one["borrower"])[:64], int(one["slabs"]) * int(told["slab_bytes"])) for one in told["sessions"]]
    largest = sorted(sessions, key=lambda one: -one[1])[: m.LOANS_MAX]
    loans = tuple(m.Loan(borrower=name, bytes=count) for name, count in largest if count)
    return Lent(slabs_bytes=int(told["memory"]["slabs_bytes"]), loans=loans, donor=_donor_of(told, control))


def _donor_of(told: Mapping[str, Any], control: str) -> m.Donor | None:
    """The donor, where other nodes can reach it: not one on a unix socket, nor one of a version that says not where."""
    at = control or next((one for one in told.get("listen", ()) if _is_tcp(one)), "")
    if not at:
        return None
    return m.Donor(
        node=str(told["node"])[:64],
        control=at,
        has_rdma=bool(told.get("has_rdma", False)),
        lends=not (told["closing"] or told["draining"]),
        free_bytes=int(told["memory"]["free_slabs"]) * int(told["slab_bytes"]),
        lent_bytes=sum(int(one["slabs"]) for one in told["sessions"]) * int(told["slab_bytes"]),
    )


def _is_tcp(endpoint: str) -> bool:
    return isinstance(parse_endpoint(endpoint), tuple)
