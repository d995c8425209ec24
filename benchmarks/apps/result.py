"""What the applications' benchmark leaves: frozen records, to and from one JSON file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from benchmarks.result import Machine
from farside.errors import ConfigError


class Workload(StrEnum):
    """What pages."""

    ETC = "etc"
    SYS = "sys"
    ORDERS = "orders"
    PAGERANK = "pagerank"


class BackEnd(StrEnum):
    """Where it pages to: (a) to (d)."""

    DISK = "disk"
    NBDKIT = "nbdkit"
    AHEAD = "nbdkit-ahead"  # the same with Farside's readahead
    NVME = "nvme-tcp"
    TCP = "farside-tcp"
    CLEAR = "farside-tcp-clear"  # by TCP, with encrypt_remote = false
    RXE = "farside-rxe"
    SLOW = "farside-tcp-slow"  # by TCP, and second copies on the disk of (a)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One measured stretch of a workload; latencies are those of its operations."""

    operations: int
    seconds: float
    p50_us: float
    p99_us: float
    max_us: float
    failed: int
    page_ins: int = 0  # by the borrower's kernel
    page_outs: int = 0
    donor_busy_s: float = 0.0  # CPU seconds of the donor's whole machine, its kernel's included
    donor_program_s: float | None = None  # of the program that serves; None where that is the kernel

    @property
    def per_s(self) -> float:
        """Throughput."""
        return self.operations / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Windows under one limit; at 100 percent there is none."""

    percent: int
    limit_bytes: int
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload over one back end; ``trouble`` says why levels are missing."""

    workload: Workload
    back_end: BackEnd
    date: str
    working_set_bytes: int = 0
    levels: tuple[Level, ...] = ()
    trouble: str = ""

    @property
    def key(self) -> str:
        """Its name in the file."""
        return cell_key(self.workload, self.back_end)

    def level(self, percent: int) -> Level | None:
        """The level of that name, None where it was not measured."""
        return next((level for level in self.levels if level.percent == percent), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upset:
    """Windows from the moment on that something happened to the donors, and those before. [infiniswap Figure 2.16]"""

    before: tuple[Window, ...]
    after: tuple[Window, ...]
    recalled_slabs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsets:
    """Events by kind: ``evictions``, ``silent`` (a donor by chance), ``busiest``."""

    date: str
    events: Mapping[str, tuple[Upset, ...]] = field(default_factory=dict[str, tuple[Upset, ...]])
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A donor's memory at one time. [infiniswap Figure 2.17]"""

    now_s: float
    cache_bytes: int
    lent_bytes: int
    free_bytes: int  # of what the donor reckons with


@dataclass(frozen=True, slots=True, kw_only=True)
class Retreat:
    """A Memcached that fills up on a machine that lends, or does not. [infiniswap Table 2.1]"""

    workload: Workload
    is_lending: bool
    date: str
    store: Window | None = None  # while it grew
    windows: tuple[Window, ...] = ()  # afterwards
    moments: tuple[Moment, ...] = ()
    recalled_slabs: int = 0
    trouble: str = ""

    @property
    def key(self) -> str:
        """Its name in the file."""
        return retreat_key(self.workload, is_lending=self.is_lending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that was measured so far; what is missing in it has not been."""

    command: str = ""  # of the newest part
    commit: str = ""
    machine: Machine | None = None
    accelerator: str = ""
    cells: Mapping[str, Cell] = field(default_factory=dict[str, Cell])
    upsets: Upsets | None = None
    retreats: Mapping[str, Retreat] = field(default_factory=dict[str, Retreat])


def cell_key(workload: Workload, back_end: BackEnd) -> str:
    """A cell's name in the file."""
    return f"{workload}/{back_end}"


def retreat_key(workload: Workload, *, is_lending: bool) -> str:
    """A retreat's name in the file."""
    return f"{workload}/{'lending' if is_lending else 'alone'}"


def load(path: Path) -> Results:
    """What the file holds; nothing where there is none.

    Raises:
        ConfigError: It holds something else.
    """
    if not path.exists():
        return Results()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a file of results: {error}", hint="remove it, or name another") from error


def save(results: Results, path: Path) -> None:
    """Writes the file whole or not at all, so that a run that is cut short loses one part at most."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".work")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    partial.rename(path)
