"""Measure each phase of a slab's life, beside the paper's figures. [infiniswap §2.7.4]"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import recall, slab_engine, slab_lease
from benchmarks.load import build_program
from benchmarks.result import RecallShare, SlabTiming
from benchmarks.sandbox import Layout, sandbox
from benchmarks.summary import middle
from farside.errors import FarsideError

SLAB_BYTES = 64 << 20  # ours by default
PAPER_SLAB_BYTES = 1 << 30
SANDBOX_BYTES = 64 << 20

# [infiniswap §2.7.4.1, §2.7.4.2]; all for slabs of 1 GB and memory registered with an InfiniBand card.
PAPER_MAP_US, PAPER_REGISTER_US, PAPER_PREALLOCATED_US, PAPER_EVICT_US = 54_250, 53_990, 400_000, 363
REGISTER_NOTE = "our mmap, where the paper registers with the card"


def measure(folder: Path, skipped: dict[str, str], *, quick: bool) -> tuple[tuple[SlabTiming, ...], RecallShare | None]:
    """Every phase's time, and what stays remote after a recall; what could not be measured is named in ``skipped``."""
    timings: list[SlabTiming] = []
    share = None
    parts: Mapping[str, Callable[[], tuple[SlabTiming, ...]]] = {
        "slabs of 64 MiB": partial(_engine, folder, SLAB_BYTES, 5 if quick else 9),
        "leases": partial(_leases, folder, 3 if quick else 9),
        "slabs of 1 GiB": partial(_engine, folder, PAPER_SLAB_BYTES, 1 if quick else 5),
    }
    for name, work in parts.items():
        _tell(name)
        try:
            timings += work()
        except FarsideError as error:
            skipped[name] = str(error)
    _tell("recall")
    try:
        share = recall.measure(folder, build_program("nbd_load"))
    except FarsideError as error:
        skipped["recall"] = str(error)
    return tuple(timings), share


def _tell(name: str) -> None:
    print(f"measuring {name}", file=sys.stderr, flush=True)


def _leases(folder: Path, repetitions: int) -> tuple[SlabTiming, ...]:
    layout = Layout(name="leases", transport="shm", disk=False, donors=2, donor_memory_bytes=16 * SANDBOX_BYTES)
    with sandbox(layout, folder / "leases", SANDBOX_BYTES) as box:
        times = slab_lease.measure(box, repetitions=repetitions)
    return (
        timing("map: ask two donors for their memory", times.ask_s),
        timing("map: lease a slab that stands ready", times.ready_s, note="the sandbox's slabs of 16 MiB"),
        timing("map: lease a slab that has to be made", times.made_s, note="the same, without preallocation"),
        timing("release slabs", times.release_s),
    )


def _engine(folder: Path, slab_bytes: int, repetitions: int) -> tuple[SlabTiming, ...]:
    times = slab_engine.measure(folder, slab_bytes=slab_bytes, repetitions=repetitions)
    is_paper = slab_bytes == PAPER_SLAB_BYTES
    size = f"{slab_bytes >> 20} MiB"
    mapped_s = [a + b for a, b in zip(times.attach_s, times.point_s, strict=True)]

    def paper(value_us: float) -> float | None:
        return value_us if is_paper else None

    return (
        timing(
            f"{size}: make a slab: allocate, zero, map",
            times.make_s,
            paper_us=paper(PAPER_PREALLOCATED_US),
            note="what preallocation saves",
        ),
        timing(
            f"{size}: attach it to the borrower", times.attach_s, paper_us=paper(PAPER_REGISTER_US), note=REGISTER_NOTE
        ),
        timing(f"{size}: point clusters at it", times.point_s),
        timing(
            f"{size}: both, as the paper's time to map", mapped_s, paper_us=paper(PAPER_MAP_US), note="without messages"
        ),
        timing(f"{size}: move it, full, to another donor", times.move_s, note="the paper drops to disk instead"),
        timing(f"{size}: evict it, full, pages on disk", times.drop_s, paper_us=paper(PAPER_EVICT_US)),
        timing(f"{size}: donor frees it", times.take_back_s),
    )


def timing(phase: str, times_s: Sequence[float], *, paper_us: float | None = None, note: str = "") -> SlabTiming:
    """A phase's summary in microseconds."""
    found = middle(_microseconds(times_s))
    return SlabTiming(
        phase=phase,
        median_us=found.median,
        least_us=found.least,
        most_us=found.most,
        repetitions=len(times_s),
        paper_us=paper_us,
        note=note,
    )


def _microseconds(times_s: Iterable[float]) -> list[float]:
    return [1e6 * value for value in times_s]
