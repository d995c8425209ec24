"""Node service `donor`: asks the donor process of this node what it lends to whom, and drains or undrains it.

A donor that stops answering is reported for `GONE_S` more, as one that lends nothing: it may only be restarting, and
otherwise its borrowers would take it for one that has left.

A manager that lets the node sleep has it closed first (LENDING); an operator bounds what it lends, by the manager or by
this agent's settings. That is looked after at each reading and not once: a donor that was started again lends again,
until it is told once more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from farside import admin
from farside.agent import messages as m
from farside.agent.service.memory_rules import NO_RULES, MemoryRules
from farside.agent.service.service import NodeService
from farside.clock import Clock
from farside.endpoint import parse_endpoint
from farside.errors import FarsideError, PeerError
from farside.log import get_log
from farside.units import format_bytes

ASK_LIMIT_S = 1.0
GONE_S = 60.0
BY = "manager"
"""For whom the donor is drained here: what an operator has drained stays so."""
_MOVE_S = 600.0  # that borrowers get, where no manager has said how long

_log = get_log("agent.sense")
_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.DonorOrder)


class Lent(m.DonorFacts, frozen=True, kw_only=True):
    """Facts of this node's donor, and the memory that it has in slabs."""

    slabs_bytes: int = 0


NOTHING_LENT = Lent()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """What a donor's process had served over networks at a time."""

    at_s: float
    pid: int
    read_bytes: int
    written_bytes: int


class DonorSense(NodeService):
    """The service ``donor``: asks the donor by its admin socket."""

    name = "donor"
    version = 2  # 2: it bounds what the donor lends

    def __init__(self, socket: Path | None, *, control: str, clock: Clock, rules: MemoryRules = NO_RULES) -> None:
        """``socket`` None: there is no donor. ``control`` is where others reach it; empty: where it says."""
        self._socket, self._control, self._clock, self._rules = socket, control, clock, rules
        self._last: m.Donor | None = None
        self._heard_s = 0.0
        self._wanted: m.DonorOrder | None = None  # None: no manager has said whether it may lend
        self._limit_problem = ""  # why the donor does not lend within what it was to be told
        self._is_late = False  # it did not answer in time when it was last asked
        self._logged_problem = ""
        self._lent = NOTHING_LENT
        self._traffic: _Traffic | None = None

    def obey(self, order: msgspec.Raw) -> None:
        """Whether the donor may lend, a `DonorOrder`; the next reading sees to it."""
        self.lend(_ORDER.decode(order))

    def lend(self, wanted: m.DonorOrder) -> None:
        """Whether the donor may lend, as a manager without services says it (LENDING)."""
        before = self._wanted or m.DonorOrder(closed_by=0, deadline_s=0.0)
        if self._wanted is None or wanted.closed_by != before.closed_by:
            _log.info("lending", may_lend=not wanted.closed_by, number=wanted.closed_by)
        if wanted.lend_bytes != before.lend_bytes:
            bound = "none" if wanted.lend_bytes is None else format_bytes(wanted.lend_bytes)
            _log.info("the manager bounds what is lent", bound=bound, refused=self._rules.lend_refusal)
        self._wanted = wanted

    def facts(self) -> bytes:
        """Its `DonorFacts` of the last reading."""
        return _ENCODER.encode(m.DonorFacts(**m.fields_of(m.DonorFacts, self._lent)))

    def metrics(self) -> Mapping[str, float]:
        """What it has lent, and could lend."""
        lent = self._lent.lent or m.LentMemory(lent_bytes=0)
        rates = {"read_bytes_per_s": lent.read_bytes_per_s, "written_bytes_per_s": lent.written_bytes_per_s}
        return {
            "slabs_bytes": self._lent.slabs_bytes,
            "lent_bytes": lent.lent_bytes,
            "free_bytes": lent.lendable_bytes,
            **{name: rate for name, rate in rates.items() if rate is not None},
        }

    @property
    def is_recalling(self) -> bool:
        """Whether it has lent more than it may, as far as it has said, or may have and was too late to say."""
        if self._is_late and self._limit_bytes is not None:
            return True
        lent, limit_bytes = self._lent.lent, self._lent.limit_bytes
        return lent is not None and limit_bytes is not None and lent.lent_bytes > limit_bytes

    def drained(self) -> bool:
        """Whether no borrower has memory of it."""
        drained = self._lent.drained
        return not self._lent.loans if drained is None else not drained.slabs

    async def read(self) -> Lent:
        """The donor now; nothing lent where none answers."""
        lent, ordered_bytes = await self._read(), None if self._wanted is None else self._wanted.lend_bytes
        if self._limit_problem not in ("", self._logged_problem):  # once, and not with each report
            _log.warning("this node's donor does not keep to its bound", why=self._limit_problem)
        self._logged_problem = self._limit_problem
        problem = self._rules.why_less(ordered_bytes) or self._limit_problem
        self._lent = msgspec.structs.replace(
            lent, limit_problem=problem[: m.CAUSE_CHARS_MAX], refusal=self._rules.lend_refusal
        )
        return self._lent

    async def _read(self) -> Lent:
        closed_by, self._is_late = 0 if self._wanted is None else self._wanted.closed_by, False
        if self._socket is None or not self._socket.exists():
            return self._without(_empty(closed_by))
        try:
            lent = await self._settled(self._socket)
        except FarsideError as error:
            _log.debug("the donor does not say what it has lent", why=error)
            # A socket on which nobody listens is a donor that has ended, and has nothing lent. One that does not answer
            # in time may have, so nothing is said of whether it is empty.
            nobody_listens = isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError)
            self._is_late = isinstance(error.__cause__, TimeoutError)
            return self._without(_empty(closed_by) if nobody_listens else None)
        except (KeyError, TypeError, ValueError) as error:
            _log.debug("this is no donor's status", why=error)
            return self._without(None)
        self._last, self._heard_s = lent.donor, self._clock.now_s()
        return lent

    def _with_rates(self, lent: Lent, told: Mapping[str, Any]) -> Lent:
        """With the rates since the status before, if that was of the same process."""
        traffic, now_s = told.get("traffic", {}), self._clock.now_s()
        if lent.lent is None or not traffic:
            return lent
        read_bytes, written_bytes = int(traffic["read_bytes"]), int(traffic["written_bytes"])
        now = _Traffic(at_s=now_s, pid=int(told["pid"]), read_bytes=read_bytes, written_bytes=written_bytes)
        before, self._traffic = self._traffic, now
        if before is None or before.pid != now.pid or now_s <= before.at_s:
            return lent
        elapsed_s = now_s - before.at_s
        memory = msgspec.structs.replace(
            lent.lent,
            read_bytes_per_s=max(0, read_bytes - before.read_bytes) / elapsed_s,
            written_bytes_per_s=max(0, written_bytes - before.written_bytes) / elapsed_s,
        )
        return msgspec.structs.replace(lent, lent=memory)

    async def _settled(self, socket: Path) -> Lent:
        """Status of the donor, which is first drained or undrained where it does other than the manager wants."""
        told = await self._limited(socket, await admin.ask(socket, "status", timeout_s=ASK_LIMIT_S))
        wanted = self._wanted
        if wanted is None:
            return self._with_rates(lent_of(told, self._control), told)
        # Compared at each reading: a donor that was restarted has forgotten what it was told.
        if bool(wanted.closed_by) is not _is_closed(told):
            if wanted.closed_by:
                await admin.ask(socket, "drain", timeout_s=ASK_LIMIT_S, deadline_s=wanted.deadline_s, by=BY)
            else:
                await admin.ask(socket, "undrain", timeout_s=ASK_LIMIT_S, by=BY)
            told = await admin.ask(socket, "status", timeout_s=ASK_LIMIT_S)
        lent = self._with_rates(lent_of(told, self._control), told)
        if not (wanted.closed_by and _is_closed(told)):
            return lent
        # Ready slabs are nobody's: the others are still lent.
        slabs = sum(count for state, count in told["slab_counts"].items() if state != "ready")
        return msgspec.structs.replace(lent, drained=m.Drained(number=wanted.closed_by, slabs=int(slabs)))

    async def _limited(self, socket: Path, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """A donor's status, after its limit was set where it is another."""
        limit_bytes, self._limit_problem = self._limit_bytes, ""
        has_bytes = told["memory"].get("limit_bytes")
        # An agent that was started anew does not undo what a manager bounded before; that one will say it again.
        is_tighter = has_bytes is not None and (limit_bytes is None or has_bytes < limit_bytes)
        if has_bytes == limit_bytes or (self._wanted is None and is_tighter):
            return told
        move_s = _MOVE_S if self._wanted is None else self._wanted.deadline_s
        try:
            await admin.ask(socket, "limit", timeout_s=ASK_LIMIT_S, bytes=limit_bytes, deadline_s=move_s)
        except PeerError as error:  # it is of a version before this one, or too busy to answer in time
            self._is_late = isinstance(error.__cause__, TimeoutError)
            self._limit_problem = f"its donor does not take the limit: {error}"
            return told
        limited: Mapping[str, Any] = await admin.ask(socket, "status", timeout_s=ASK_LIMIT_S)
        return limited

    @property
    def _limit_bytes(self) -> int | None:
        """The most that the donor may lend, by its owner and by the manager; None: what its settings allow."""
        return self._rules.lends_at_most(None if self._wanted is None else self._wanted.lend_bytes)

    def _without(self, drained: m.Drained | None) -> Lent:
        """While no donor answers; ``drained`` where there is none that could lend."""
        # Without a donor nothing is lent, as may be wanted.
        self._limit_problem = "no donor answers" if self._limit_bytes else ""
        if self._last is None or self._clock.now_s() - self._heard_s > GONE_S:
            self._last = None
            return Lent(drained=drained)
        # Still there by name, so that borrowers do not move their pages away, but with nothing to lend.
        gone = msgspec.structs.replace(self._last, lends=False, free_bytes=0, lent_bytes=0)
        return Lent(donor=gone, drained=drained)


def _empty(closed_by: int) -> m.Drained | None:
    return m.Drained(number=closed_by, slabs=0) if closed_by else None


def _is_closed(told: Mapping[str, Any]) -> bool:
    return BY in told.get("drained_by", ())


def lent_of(told: Mapping[str, Any], control: str = "") -> Lent:
    """What a donor's status says of its slabs, its borrowers and itself; ``control`` goes before where it listens.

    Raises:
        KeyError, TypeError, ValueError: It is no donor's status.
    """
    # The largest first: only LOANS_MAX of them are reported.
    sessions = sorted(((int(one["slabs"]), str(one["borrower"])[:64]) for one in told["sessions"]), reverse=True)
    slab_bytes = int(told["slab_bytes"])
    loans = tuple(
        m.Loan(borrower=name, bytes=slabs * slab_bytes, slabs=slabs) for slabs, name in sessions[: m.LOANS_MAX] if slabs
    )
    limit_bytes = told["memory"].get("limit_bytes")
    is_lending = not (told["closing"] or told["draining"]) and (limit_bytes is None or limit_bytes >= slab_bytes)
    memory = m.LentMemory(
        lent_bytes=sum(slabs for slabs, _ in sessions) * slab_bytes,
        lendable_bytes=int(told["memory"]["free_slabs"]) * slab_bytes if is_lending else 0,
    )
    return Lent(
        slabs_bytes=int(told["memory"]["slabs_bytes"]),
        loans=loans,
        donor=_donor_of(told, memory, is_lending=is_lending, control=control),
        lent=memory,
        limit_bytes=limit_bytes,
    )


def _donor_of(told: Mapping[str, Any], memory: m.LentMemory, *, is_lending: bool, control: str) -> m.Donor | None:
    """The donor, where other nodes can reach it: not one on a unix socket, nor one of a version that says not where."""
    limit_bytes = told["memory"].get("limit_bytes")
    at = control or next((one for one in told.get("listen", ()) if isinstance(parse_endpoint(one), tuple)), "")
    if not at:
        return None
    lent_bytes = memory.lent_bytes
    if limit_bytes is not None:  # what is beyond it in whole slabs is on its way back, and counts no more
        lent_bytes = min(lent_bytes, limit_bytes - limit_bytes % int(told["slab_bytes"]))
    return m.Donor(
        node=str(told["node"])[:64],
        control=at,
        has_rdma=bool(told.get("has_rdma", False)),
        lends=is_lending,
        free_bytes=memory.lendable_bytes,
        lent_bytes=lent_bytes,
    )
