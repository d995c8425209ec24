"""State of a node's power, its events and its orders. Frozen, PURE."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Power phase of a node.

    DRAINING lasts from the decision until it is known to be off: while what stands on it leaves, and then, once
    ``NodePower.is_stopping`` is set, while it shuts down. FAILED is a node that did not do what it was told.
    """

    ON = "on"
    DRAINING = "draining"
    OFF = "off"
    BOOTING = "booting"
    FAILED = "failed"


class Power(StrEnum):
    """Power of a node as its BMC reports it."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class Command(StrEnum):
    """Order type: DRAIN and OPEN go to the inventory, the others to the BMC."""

    DRAIN = "drain"
    OPEN = "open"
    SOFT_OFF = "soft-off"
    FORCE_OFF = "force-off"
    POWER_ON = "power-on"
    ASK = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What runs or is stored on a node, as the node's owners report.

    Attributes:
        closed_by: The number of the DRAIN by which the scheduler has closed the node: since then no job and no
            reservation has come. 0: it is open.
        jobs: That run there, or are being started.
        foreign_slabs: Of its memory, mapped by other nodes: their swap.
        reservations: That count on it.
        services: Names of its services that have something of others.
        is_donor_open: Its donor has not said yet that by the same DRAIN it lends no more: slabs may still come.
        is_movable: What it lends finds room at other donors.
    """

    closed_by: int = 0
    jobs: int = 0
    foreign_slabs: int = 0
    reservations: int = 0
    services: tuple[str, ...] = ()
    is_donor_open: bool = False
    is_movable: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether the node is not needed by anything."""
        return not (self.jobs or self.foreign_slabs or self.reservations or self.services)

    def told(self) -> str:
        """Holdings in words: ``1 job, 3 foreign slabs``."""
        parts = ((self.jobs, "job"), (self.foreign_slabs, "foreign slab"), (self.reservations, "reservation"))
        counted = (f"{count} {what}{'s' * (count > 1)}" for count, what in parts if count)
        held = ", ".join((*counted, *(f"something at its service {name}" for name in self.services)))
        return held or ("nothing, but its donor may lend" if self.is_donor_open else "nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order to a node. Numbers grow: an order with a number below the last one is ignored."""

    node: str
    number: int
    command: Command
    reason: str


# ---------------------------------------------------------------- what happens


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfNode:
    node: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(_OfNode):
    """A node is wanted on or off; `fleet.plan` has applied rates and the floor already."""

    is_on: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen(_OfNode):
    """The inventory reports what is on a node."""

    holdings: Holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(_OfNode):
    """Heartbeat of a node. ``boot_id``: the kernel's, new at each boot."""

    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(_OfNode):
    """Result of an order. ``error``: empty if done; ``power``: the answer to ASK."""

    number: int
    error: str = ""
    power: Power = Power.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(_OfNode):
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pardon(_OfNode):
    """An operator has repaired the node."""


Event = Wanted | Seen | Beat | Answer | Tick | Pardon


# ---------------------------------------------------------------- what is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRecord:
    """Part of a node's power state that is kept in the log, from which the next power controller goes on.

    Attributes:
        since_s: When the phase began.
        reason: Why it is in this phase, for an operator.
        past_boots: Boots that were told to end. A beat of one of them is late, or of a node that did not obey.
        drain_number: Of the DRAIN that is in force.
        number: Of the last order.
        is_stopping: DRAINING only: it has been told to shut down, and cannot be called back.
        is_wanted: While it stops: it is to be booted again at once.
        is_refused: Its BMC did not take, or did not answer, the last order to shut down.
        is_pinned: It did not go off as told; it stays on until an operator pardons it.
        stops_s: When it was told to shut down, of late, the newest last.
        tries: Orders of this phase that were given again, to boot or to shut down.
        stop_s: When it was told to shut down; forced_s: when its power was cut. None: not yet.
        stay_until_s: A node that could not be emptied is left alone until then; None: it may be emptied now.
    """

    phase: Phase = Phase.ON
    since_s: float = 0.0
    reason: str = ""
    past_boots: tuple[str, ...] = ()
    drain_number: int = 0
    number: int = 0
    is_stopping: bool = False
    is_wanted: bool = False
    is_refused: bool = False
    is_pinned: bool = False
    stops_s: tuple[float, ...] = ()
    tries: int = 0
    stop_s: float | None = None
    forced_s: float | None = None
    stay_until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePower(PowerRecord):
    """Current power state of one node.

    Attributes:
        boot_id: Of the last beat that counted; empty before the first.
        last_beat_s: When it last beat; the time of adoption before that.
        holdings: As last seen; None: never.
        empty_since_s: Since when nothing stands on it; infinite while something does.
        doubted_s: Since when nobody knows whether its BMC was told to shut it down; infinite: it is known.
        pending: The order whose answer is awaited.
        ordered_s: When the last order was given.
    """

    name: str
    boot_id: str = ""
    last_beat_s: float = 0.0
    holdings: Holdings | None = None
    empty_since_s: float = math.inf
    doubted_s: float = math.inf
    pending: Order | None = None
    ordered_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits for a node, its BMC and its owners, and what follows when they pass.

    Attributes:
        answer_s: For an order's answer.
        poll_s: Between two looks at a BMC, and between two tries.
        drain_s: For jobs and slabs to leave; then the node stays on, and is left alone for ``backoff_s``.
        soft_off_s: For the operating system to shut down; then its power is cut, if ``may_force``.
        force_off_s: For the power to be off after that.
        silent_s: A node that is off has sent no heartbeat for so long, whatever its BMC says.
        lost_s: A node that is on and has sent no heartbeat for so long is looked at.
        boot_s: From the order to the first beat.
        tries: Orders to boot, or to shut down, that a BMC gets.
    """

    answer_s: float = 30.0
    poll_s: float = 10.0
    drain_s: float = 1800.0
    backoff_s: float = 1800.0
    soft_off_s: float = 240.0
    force_off_s: float = 60.0
    silent_s: float = 15.0
    lost_s: float = 120.0
    boot_s: float = 900.0
    tries: int = 3
    may_force: bool = True

    def __post_init__(self) -> None:
        times = (self.answer_s, self.poll_s, self.drain_s, self.soft_off_s, self.force_off_s, self.lost_s, self.boot_s)
        if min(times) <= 0 or min(self.backoff_s, self.silent_s) < 0:
            raise ValueError("times must be above 0, backoff_s and silent_s at least 0")
        if self.silent_s >= self.lost_s:
            raise ValueError("silent_s must be below lost_s: a node that is on beats more often than that")
        if self.tries < 1:
            raise ValueError("tries must be at least 1")
