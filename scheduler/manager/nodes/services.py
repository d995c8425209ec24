"""Table of the node services that the manager knows, and the reader of what agents report of any service. PURE.

How it works
============
An agent says of each service of its node one JSON value (`farside.agent.service`). `read` takes them in: what a service
of `KNOWN` says is checked and put where the manager uses it; what any other says is kept in the log as it came, and
shown. What can't be read is left out with a reason, and the rest of the report counts.

A service that the manager is to know is one entry in `KNOWN`. What it decides by that is an event of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from farside.agent import messages as m
from farside.scheduler.manager.model.record import LiveNode

SaidT = TypeVar("SaidT", m.Hello, m.Report)
UNKNOWN_PERIOD_S = 60.0
"""Time between two entries in the log for a service that this manager does not know, whatever changes meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the order of a service follows from.

    Attributes:
        node: Its node.
        move_s: Borrowers get so long to move what they have.
        recall_s: The same while a job on its way there waits for that memory; 0: none does.
        rest_after_s: Idle time after which the node may rest; 0: it may not.
        has_jobs: Jobs are on the node, or on their way there.
    """

    node: LiveNode | None
    move_s: float
    recall_s: float = 0.0
    rest_after_s: float = 0.0
    has_jobs: bool = False


def _nothing(_: Any) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownService:
    """How the manager deals with one service.

    Attributes:
        facts: What it says. Fields that HELLO or REPORT have as well are put there.
        keep: What of its facts the log keeps raw, as JSON; None: nothing.
        order: What it is told now; None: it is told nothing.
        is_asked: The manager asks for its drain by itself, and need not wait until it says that it holds nothing.
    """

    facts: type[Struct]
    keep: Callable[[Any], Struct | None] = _nothing
    order: Callable[[Outlook], Struct | None] = _nothing
    is_asked: bool = False


def _donor_order(outlook: Outlook) -> m.DonorOrder:
    node = outlook.node
    closed_by = 0 if node is None or node.power is None else node.power.drain_number
    return m.DonorOrder(
        closed_by=closed_by,
        deadline_s=outlook.move_s if closed_by else outlook.recall_s or outlook.move_s,
        lend_bytes=None if node is None else node.lend_bound_bytes,
    )


def _swap_order(outlook: Outlook) -> m.SwapOrder:
    return m.SwapOrder(swap_bytes=None if outlook.node is None else outlook.node.swap_ordered_bytes)


def _rest_order(outlook: Outlook) -> m.RestOrder:
    """When the node may rest: while it serves and no job is on it or on its way. A closed node is about to go off."""
    node = outlook.node
    if node is None or not outlook.rest_after_s or outlook.has_jobs or not node.has_power:
        return m.RestOrder()
    return m.RestOrder(after_s=outlook.rest_after_s, is_drained=bool(node.drain_reason))


def _said(facts: m.RestFacts) -> m.RestFacts:
    """All that it says: it changes seldom."""
    return facts


def _offer(facts: m.AggregatorFacts) -> m.AggregatorOffer | None:
    return facts.offer if facts.has_relay else None


def _presence(facts: m.ExecutorFacts) -> m.ExecutorFacts | None:
    """That it is there: its turns change all the time, and what of them is news has entries of its own."""
    return m.ExecutorFacts(is_there=True, listen=facts.listen, spills=facts.spills) if facts.is_there else None


DONOR, BORROWER = "donor", "borrower"
KNOWN: Mapping[str, KnownService] = {
    # Both have fields of their own in HELLO, REPORT and the log, for agents and managers of the version before. Its
    # list of donors is the borrower's order; that follows from a ring of all nodes, so `AgentLine.donors` makes it.
    DONOR: KnownService(facts=m.DonorFacts, order=_donor_order, is_asked=True),
    BORROWER: KnownService(facts=m.BorrowerFacts),
    m.SWAP: KnownService(facts=m.SwapFacts, order=_swap_order),
    m.REST: KnownService(facts=m.RestFacts, keep=_said, order=_rest_order),
    # Its plans follow from all jobs, so `AgentLine.plans` makes its order.
    m.AGGREGATOR: KnownService(facts=m.AggregatorFacts, keep=_offer),
    m.EXECUTOR: KnownService(facts=m.ExecutorFacts, keep=_presence),
}
_DECODERS = {name: msgspec.json.Decoder(service.facts) for name, service in KNOWN.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Generic[SaidT]):
    """A frame whose services were read.

    Attributes:
        said: The frame, with what known services say in its own fields.
        kept: By service, what the log is to have as JSON; those that the manager does not know are in ``unknown``.
        problems: By service, why it could not be read.
        facts: By known service, what it says.
    """

    said: SaidT
    kept: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def read(said: SaidT) -> Read[SaidT]:
    """Takes in what the services of a HELLO or a REPORT say."""
    found: dict[str, Any] = {}
    kept: dict[str, str] = {}
    problems: dict[str, str] = {}
    told: dict[str, Any] = {}
    for name, raw in said.services.items():
        if not m.is_carried(raw):
            problems[name] = f"more than {m.SERVICE_BYTES_MAX} bytes"
        elif name not in KNOWN:
            kept[name] = text_of(raw)
        else:
            try:
                facts = told[name] = _DECODERS[name].decode(raw)
            except (msgspec.MsgspecError, RecursionError) as error:
                problems[name] = " ".join(str(error).split())[:200]
                continue
            found |= {one: getattr(facts, one) for one in facts.__struct_fields__ if one in said.__struct_fields__}
            lasting = KNOWN[name].keep(facts)
            if lasting is not None:
                kept[name] = msgspec.json.encode(lasting).decode()
    unknown = frozenset(kept) - frozenset(KNOWN)
    return Read(said=structs.replace(said, **found), kept=kept, unknown=unknown, problems=problems, facts=told)


def text_of(raw: Raw) -> str:
    """JSON without spaces and line ends, as the log keeps it."""
    return msgspec.json.format(bytes(raw), indent=-1).decode()


def holding(names: tuple[str, ...]) -> tuple[str, ...]:
    """Services that hold something, without those that the drain of a node asks by itself."""
    return tuple(name for name in names if name not in KNOWN or not KNOWN[name].is_asked)
