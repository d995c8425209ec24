"""Results of the simulator's benchmark, as data that goes to JSON and back. Pure but for the two doors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.result import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCase:
    """A whole trace under one policy.

    ``path``: a trace's file, all of its jobs in one pool; empty: so many jobs are generated, of a shape that
    `sim_case.SHAPES` names. Whole seconds are for peers that know no others.
    """

    policy: str
    jobs: int = 0
    shape: str = "philly"
    load: float = 0.8
    gpus: int = 480
    placement: str = "count"
    path: str = ""
    in_whole_seconds: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCase:
    """One scheduling cycle: so many jobs wait, and all GPUs of so many machines are held by others."""

    policy: str
    queue: int
    nodes: int
    gpus_per_node: int = 8
    placement: str = "consolidate"
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures:
    """Seconds are CPU seconds of the one process, of the simulation alone; memory is the process's peak."""

    jobs: int
    cpu_s: float
    wall_s: float
    peak_mib: float
    events: int
    preemptions: int
    mean_queue: float
    max_queue: int
    avg_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleFigures:
    """CPU milliseconds: of the cycle in which the whole queue is new, and of those after one job has ended."""

    running: int
    new_queue_ms: float
    median_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """A case and what it took."""

    case: TraceCase
    figures: TraceFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """A case and what it took."""

    case: CycleCase
    figures: CycleFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResult:
    """A published simulator on the same workload as ours. ``why_not``: why there is none, else empty."""

    peer: str
    dispatcher: str
    jobs: int
    peer_s: float = 0.0
    ours_s: float = 0.0
    peer_avg_wait_s: float = 0.0
    ours_avg_wait_s: float = 0.0
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """When a part was measured last. ``repeats``: so many runs of each case of at most 100,000 jobs, the least kept."""

    date: str
    command: str
    commit: str
    load_before: float
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRun:
    """The benchmark's figures. ``measured``: the runs that they come from, by part."""

    machine: Machine
    measured: Mapping[str, Measured] = field(default_factory=dict)
    traces: tuple[TraceResult, ...] = ()
    growth: tuple[TraceResult, ...] = ()
    shapes: tuple[TraceResult, ...] = ()
    cycles: tuple[CycleResult, ...] = ()
    peers: tuple[PeerResult, ...] = ()


def save(run: SimRun, path: Path) -> None:
    """As JSON, a line a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def load(path: Path) -> SimRun:
    """What `save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=SimRun)
