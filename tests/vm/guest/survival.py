"""One row of the table of survival: a fault under load, and what the pages, the kernel and the programs made of it."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.vm.guest.load import Testimony
from tests.vm.guest.swap_plane import Plane, kernel_errors, vmstat

# Fetched by the host when the guest's tests have ended (tests/vm/inside.py).
ROWS = Path("/run/farside-survival.jsonl")
ROOT = Path("/")
# Of the kernel's lines about the device those that no page is lost by: other sockets take their place.
_ABOUT_SOCKETS = ("Connection timed out", "Dead connection", "Receive control failed")


class Witness(Protocol):
    """Who knows what each page must hold: a `Load`, or several."""

    def so_far(self) -> Testimony:
        """What it saw since it was last asked."""
        ...

    def tell(self) -> Testimony:
        """The same, after it has read every page once more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one fault. Stalls are what a program waits for one page, on emulated processors."""

    fault: str
    second_copy: str
    transport: str
    accesses: int
    page_ins: int
    wrong_pages: int
    failed_reads: int
    lost_pages: int
    lost_processes: int
    stall_s: float
    refused_writes: int = 0  # of a disk that refuses them: the kernel keeps the page, and nothing is lost


@contextmanager
def survived(
    fault: str,
    plane: Plane,
    witness: Witness,
    *,
    processes: Collection[str],
    may_refuse_writes: bool = False,
    may_lose_sockets: bool = False,
) -> Iterator[None]:
    """The body makes the fault, while the witness swaps; after it every page is read, and the row written and judged.

    ``processes`` are those of the plane that must be alive at the end, beside the witness and the borrower's; what the
    kernel has killed for memory, whatever it was, counts as lost too. With ``may_refuse_writes`` the kernel may be told
    that a page can't be written now: counted, and no fault. With ``may_lose_sockets`` it may give sockets up.
    """
    before, old, page_ins, killed = plane.told(), len(swap_errors()), vmstat("pswpin"), vmstat("oom_kill")
    witness.so_far()  # what comes now counts
    yield
    seen = witness.tell()
    told, complaints, refused = plane.told(), swap_errors()[old:], 0
    if may_refuse_writes:
        refused, complaints = _without_writes(complaints)
    if may_lose_sockets:
        complaints = [line for line in complaints if not any(word in line for word in _ABOUT_SOCKETS)]
    lost = [name for name in (*processes, "blockdev") if not plane.is_alive(name)]
    row = Row(
        fault=fault,
        second_copy=second_copy(told),
        transport=transport(told) or transport(before),
        accesses=seen.accesses,
        page_ins=vmstat("pswpin") - page_ins,
        wrong_pages=seen.wrong,
        failed_reads=len(complaints),
        lost_pages=grown(before, told, "pages_lost"),
        lost_processes=len(lost) + vmstat("oom_kill") - killed,
        stall_s=seen.stall_s,
        refused_writes=refused,
    )
    write(row)
    assert (row.wrong_pages, row.failed_reads, row.lost_pages, row.lost_processes) == (0, 0, 0, 0), complaints or lost
    assert row.page_ins > 500


def second_copy(told: Any) -> str:
    """What has a page besides its first donor, as the table says it."""
    return "replica and disk" if told["donors_hold"] == "twice" else str(told["protection"])


def write(row: Row) -> None:
    """Adds a row to the table."""
    with ROWS.open("a") as file:
        file.write(f"{json.dumps(asdict(row))}\n")
        file.flush()
        os.fsync(file.fileno())


def transport(told: Any) -> str:
    """How pages travel to donors that are up: `tcp`, `rdma`; empty when none is."""
    return "+".join(sorted({donor["transport"] for donor in told["donors"] if donor["transport"]}))


def grown(before: Any, after: Any, error: str) -> int:
    """By how much one of the borrower's counts of errors has grown."""
    return int(after["errors"][error] - before["errors"][error])


def _without_writes(complaints: Sequence[str]) -> tuple[int, list[str]]:
    others = [line for line in complaints if "Write-error" not in line and "(WRITE)" not in line]
    return len(complaints) - len(others), others


def swap_errors() -> list[str]:
    """Lines of the kernel's log about pages of the swap device that were not read or written."""
    return [line for line in kernel_errors() if "nbd" in line or "swap" in line]
