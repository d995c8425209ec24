"""Result of a benchmark run: frozen records, to and from the JSON files in ``benchmarks/results/``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec


class Rw(StrEnum):
    """Direction of a load."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Point:
    """One load: random requests of one size, so many in flight on each of so many connections."""

    rw: Rw
    block_bytes: int
    depth: int
    connections: int

    @property
    def name(self) -> str:
        """Short and unique, for tables: ``4k read d32 c1``."""
        return f"{size_name(self.block_bytes)} {self.rw} d{self.depth} c{self.connections}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One server under one load, once."""

    server: str
    point: Point
    repetition: int
    iops: float
    bytes_per_s: float
    mean_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    failed: int  # replies with an error
    misread: int  # read replies whose first page did not carry its page number's stamp
    cpu_us_per_request: Mapping[str, float]  # CPU seconds per million requests: client, server, donor


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """The same load by fio's NBD engine."""

    server: str
    point: Point
    iops: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabTiming:
    """How long a phase of a slab's life takes, with the paper's figure where it has one."""

    phase: str
    median_us: float
    least_us: float
    most_us: float
    repetitions: int
    paper_us: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallShare:
    """How many of a recalled donor's live pages were still remote when the recall was over."""

    deadline_s: float
    live_pages: int
    remote_pages: int
    took_s: float

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.remote_pages / self.live_pages if self.live_pages else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the run was made."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    system: str
    load_before: float  # 1-minute load average when the run began
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one ``python -m benchmarks`` measured."""

    format: int = 1
    date: str
    command: str
    commit: str
    machine: Machine
    seconds: float
    repetitions: int
    device_bytes: int
    samples: tuple[Sample, ...]
    opinions: tuple[SecondOpinion, ...] = ()
    timings: tuple[SlabTiming, ...] = ()
    recall: RecallShare | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)  # what was left out, and why


def size_name(size_bytes: int) -> str:
    """``4k``, ``64k``, ``1m``."""
    return f"{size_bytes >> 20}m" if size_bytes >= 1 << 20 else f"{size_bytes >> 10}k"


def save_run(run: Run, path: Path) -> None:
    """Writes the run as JSON that diffs well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def load_run(path: Path) -> Run:
    """Reads what save_run() wrote; msgspec.ValidationError when it is something else."""
    return msgspec.json.decode(path.read_bytes(), type=Run)
