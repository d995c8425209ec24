"""What a deployment says of itself on its admin socket."""

import msgspec

from farside.scheduler.sharing.glet.plan import Glet


class GletStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A glet: its part of the plan, its process (0: it comes again), and real by planned seconds of its last batches.

    ``ratio``: the median; 0 where fewer than ten batches ran.
    """

    glet: Glet
    pid: int
    ratio: float


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
    """An epoch: when (Unix time), why, what it led to, and the seconds of its phases. ``problem``: why it did not."""

    at_s: float
    cause: str
    gpus: int
    part_pct: int
    prepared: int = 0
    resized: int = 0
    closed: int = 0
    plan_s: float = 0.0
    prepare_s: float = 0.0
    drain_s: float = 0.0
    problem: str = ""


class ServeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of a deployment. ``problem``: why the rates have no plan, empty where they have."""

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
    problem: str = ""
