"""Check from outside whether a process can serve swap: each rule of guard.py, for every thread.

Asked of /proc below a root folder. A thread that was made before PR_SET_IO_FLUSHER does not have it, and nothing in the
process itself shows that; the flags in /proc/PID/task/*/stat do.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from farside.kmod_shim.guard import CGROUP_TOP, OOM_SCORE_ADJ_MIN, cgroup_of
from farside.kmod_shim.preflight import Check, Outcome, boost_check, min_free_check
from farside.units import KIB, format_bytes

PF_MEMALLOC_NOIO = 0x00080000  # linux/sched.h
PF_LOCAL_THROTTLE = 0x00100000
IO_FLUSHER = PF_MEMALLOC_NOIO | PF_LOCAL_THROTTLE

# The kernel's own pages in this process: never swapped, and left out by mlockall.
KERNEL_PAGES = ("[vdso", "[vvar", "[vsyscall", "anon_inode:[io_uring")

WAY_OUT = '`farside swap attach` asks a blockdev of root\'s for it; or pressure_guard = "start" in blockdev.toml'


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Part of a process's memory that is present now and may be swapped out."""

    name: str
    resident_bytes: int


def guard_checks(root: Path, pids: Sequence[int]) -> tuple[Check, ...]:
    """One check a rule, over all these processes: a device's supervisor and server."""
    # Generators, so that a process that has ended raises inside _over, which makes a failed check of it.
    return (
        _over("io flusher", pids, (_without_flusher(root, pid) for pid in pids), "every thread has PR_SET_IO_FLUSHER"),
        _over("real time", pids, (_not_real_time(root, pid) for pid in pids), "every thread may use the reserve"),
        _over("memory locked", pids, (_unlocked(root, pid) for pid in pids), "no page of it can be swapped out"),
        _over("oom score", pids, (_killable(root, pid) for pid in pids), f"{OOM_SCORE_ADJ_MIN}: never killed for room"),
        _over("cgroup", pids, (_swappable(root, pid) for pid in pids), "memory.swap.max is 0"),
        boost_check(root),
        min_free_check(root),
    )


def io_flags(stat: str) -> int:
    """The kernel's PF_ flags of a task, of its stat file: the ninth field, counted after the name in brackets."""
    # The name in field 2 may hold blanks and brackets, so fields are counted from the last bracket: the first behind it
    # is field 3.
    return int(stat.rpartition(")")[2].split()[6])


def policy(stat: str) -> int:
    """A task's scheduling policy, SCHED_OTHER (0) and so on, of its stat file: the 41st field."""
    return int(stat.rpartition(")")[2].split()[38])


def unlocked(smaps: str) -> tuple[Mapped, ...]:
    """Mappings of /proc/PID/smaps that have pages in memory and are not locked (no `lo` in VmFlags)."""
    found = []
    # A mapping begins with its addresses, at the start of a line; all lines up to the next one describe it.
    for block in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE):
        head, _, rest = block.partition("\n")
        resident = re.search(r"^Rss:\s+(\d+) kB", rest, re.MULTILINE)
        flags = re.search(r"^VmFlags: (.*)$", rest, re.MULTILINE)
        # Nothing of it is in memory now. With MCL_ONFAULT it is locked once it is touched.
        if resident is None or flags is None or resident.group(1) == "0":
            continue
        # Never swapped, locked or not: a device's pages (`pf`, `io`), pages that a driver has put in place one by one
        # (`mm`: soft RDMA's queues), and the kernel's own.
        words, name = set(flags.group(1).split()), "".join(head.split(None, 5)[5:])
        if not words & {"lo", "pf", "io", "mm"} and not name.startswith(KERNEL_PAGES):
            found.append(Mapped(name=name or "(anonymous)", resident_bytes=int(resident.group(1)) * KIB))
    return tuple(found)


def _without_flusher(root: Path, pid: int) -> str:
    return _lacking((io_flags(stat) & IO_FLUSHER == IO_FLUSHER for stat in _tasks(root, pid)), "PR_SET_IO_FLUSHER")


def _not_real_time(root: Path, pid: int) -> str:
    return _lacking((policy(stat) in (os.SCHED_FIFO, os.SCHED_RR) for stat in _tasks(root, pid)), "SCHED_RR")


def _tasks(root: Path, pid: int) -> Iterator[str]:
    for task in sorted((root / f"proc/{pid}/task").iterdir()):
        yield (task / "stat").read_text()


def _lacking(have: Iterator[bool], what: str) -> str:
    count = sum(not one for one in have)
    return f"{count} thread{'' if count == 1 else 's'} without {what}" if count else ""


def _unlocked(root: Path, pid: int) -> str:
    loose = sum(mapped.resident_bytes for mapped in unlocked((root / f"proc/{pid}/smaps").read_text()))
    return f"{format_bytes(loose)} may be swapped out" if loose else ""


def _killable(root: Path, pid: int) -> str:
    score = int((root / f"proc/{pid}/oom_score_adj").read_text())
    return f"oom_score_adj is {score}" if score != OOM_SCORE_ADJ_MIN else ""


def _swappable(root: Path, pid: int) -> str:
    group = cgroup_of((root / f"proc/{pid}/cgroup").read_text())
    if group is None:
        return "in no cgroup v2"
    try:
        most = (root / CGROUP_TOP / group.lstrip("/") / "memory.swap.max").read_text().strip()
    except OSError:
        return f"cgroup {group} has no memory.swap.max"
    return f"cgroup {group} may swap (memory.swap.max is {most})" if most != "0" else ""


def _over(name: str, pids: Sequence[int], faults: Iterator[str], good: str) -> Check:
    told = []
    for pid in pids:
        try:
            fault = next(faults)
        # The process has ended, or is not ours to look at. A generator that has raised yields nothing more, so this
        # check ends here.
        except OSError as error:
            fault = f"can't be looked at: {error.strerror}"
            told.append(f"process {pid}: {fault}")
            break
        if fault:
            told.append(f"process {pid}: {fault}")
    if told:
        return Check(name=name, outcome=Outcome.FAILED, found="; ".join(told), advice=WAY_OUT)
    return Check(name=name, outcome=Outcome.OK, found=good)
