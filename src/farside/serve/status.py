"""What a deployment says of itself on its admin socket."""

import msgspec

from farside.scheduler.sharing.glet.plan import Glet

# The causes of a front's first plan: its own, or that of the front before.
STARTED, TAKEN_OVER = "start", "front"


class GletStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A glet: its part of the plan, its process (0: it comes again), and real by planned seconds of its last batches.

    ``ratio``: the median; 0 where fewer than ten batches ran. ``busy_pct``: of its cycle, what planned batches take.
    ``late_ms``: requests are given up that much sooner than planned latencies want, since its batches end so late.
    ``node``: where it is; empty: on the front's own machine.
    """

    glet: Glet
    pid: int
    ratio: float
    busy_pct: float = 0.0
    late_ms: float = 0.0
    node: str = ""


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a manager's nodes: its number in plans, its job, and why it is left; empty: it stays."""

    gpu: int
    job: str
    node: str
    state: str
    left_s: float
    leaving: str = ""


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its promise, its rates in requests a second, and what became of its requests since the start.

    ``p50_ms`` and ``p99_ms`` are of its last 4,096 answers; 0 where there are none.
    """

    name: str
    slo_ms: float
    rate: float
    planned_rate: float
    waiting: int
    p50_ms: float
    p99_ms: float
    met: int
    late: int
    dropped: int
    rejected: int
    failed: int
    refused: int
    cancelled: int
    again: int


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch: when (Unix time), why, what it led to, and the seconds of its phases. ``problem``: why it did not.

    ``closed_first``: parts of the closed ones that were so before others were prepared, as memory did not hold both.
    """

    at_s: float
    cause: str
    gpus: int
    part_pct: int
    prepared: int = 0
    resized: int = 0
    closed: int = 0
    closed_first: int = 0
    plan_s: float = 0.0
    prepare_s: float = 0.0
    drain_s: float = 0.0
    problem: str = ""

    @property
    def is_reorganised(self) -> bool:
        """Whether another plan took the place of one that ran: it was not the first, and it came to be."""
        return self.cause not in (STARTED, TAKEN_OVER) and not self.problem

    @property
    def closed_words(self) -> str:
        """How many parts were closed, and how many of them first."""
        return f"{self.closed}, {self.closed_first} first" if self.closed_first else f"{self.closed}"


class ServeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of a deployment. ``plan_problem``: why the rates have no plan, or too few devices; empty where they have.

    ``lease_problem``: what has become of a lease that is lacking since, or why there is none; empty where none is.
    ``lag_ms``: so late the front reads requests, at worst as far as is known. ``manager``: whose nodes it is on; empty:
    it is on this machine. ``manager_away``: why that does not answer.
    """

    kind: str = "serving"
    name: str
    http: str
    grpc: str
    driver: str
    devices: int
    ready: bool
    glets: tuple[GletStatus, ...]
    models: tuple[ModelStatus, ...]
    changes: tuple[ChangeRecord, ...]
    deaths: int
    stray: int
    lag_ms: float = 0.0
    plan_problem: str = ""
    lease_problem: str = ""
    leases: tuple[LeaseStatus, ...] = ()
    manager: str = ""
    manager_away: str = ""

    @property
    def problem(self) -> str:
        """Both problems in one line; empty where there is none."""
        return "; ".join(filter(None, (self.plan_problem, self.lease_problem)))
