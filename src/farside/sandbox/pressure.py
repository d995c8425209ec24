"""Simulated /proc of a donor's machine, with the memory use of the donor's own programs.

A donor of a sandbox shares this computer with everything else, so its real /proc/meminfo says nothing about the machine
it is meant to be. Each donor therefore reads a meminfo of its own, DIR/donors/dN/proc/meminfo, that the sandbox keeps
as a kernel would on a machine with `donor_memory` bytes on which only these things run:

    MemAvailable = MemTotal - what the donor's own programs use - what its node's jobs use - what the donor lends

The first of these is simulated: `squeeze` sets it, and nothing really uses that memory. The others are real: the memory
of the processes of jobs on the node beside the donor, where there is a cluster, and what is counted from the donor's
memfds. When both together are more than the machine has, pressure/memory says that programs stall
half of the time, as they would. What the donor does about it (its HeadRoom rule, eviction, migration) is its real code.
"""

import os
from pathlib import Path

from farside.sandbox.layout import write_atomically

USED_NAME = "used_bytes"


def donor_folder(state: Path, name: str) -> Path:
    """Folder of one donor in a sandbox's folder."""
    return state / "donors" / name


def proc_folder(state: Path, name: str) -> Path:
    """The pretended /proc of one donor."""
    return donor_folder(state, name) / "proc"


def squeeze(state: Path, name: str, used_bytes: int) -> None:
    """Makes the donor's own programs use this much memory from now on (0: all of it is idle again)."""
    write_atomically(donor_folder(state, name) / USED_NAME, str(used_bytes).encode())


def used_bytes(state: Path, name: str) -> int:
    """What the donor's own programs are said to use now."""
    try:
        return int((donor_folder(state, name) / USED_NAME).read_text())
    except FileNotFoundError:
        return 0


def meminfo_text(*, total_bytes: int, used_bytes: int, lent_bytes: int) -> str:
    """Text of meminfo as in proc(5), in kB, with the lines that a donor reads."""
    available_kb = max(0, total_bytes - used_bytes - lent_bytes) // 1024
    lines = {
        "MemTotal": total_bytes // 1024,
        "MemFree": available_kb,
        "MemAvailable": available_kb,
        "Shmem": lent_bytes // 1024,
    }
    return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in lines.items())


def pressure_text(*, is_stalling: bool) -> str:
    """A pressure/memory as the kernel's Documentation/accounting/psi.rst describes it: half of the time, or none."""
    share = "50.00" if is_stalling else "0.00"
    return "".join(f"{kind} avg10={share} avg60={share} avg300={share} total=0\n" for kind in ("some", "full"))


def lent_bytes(pid: int) -> int:
    """Memory behind a process's memfds, whether it has mapped it or not; 0 when the process is gone."""
    total = 0
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        path = f"{folder}/{name}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                total += os.stat(path).st_blocks * 512  # st_blocks is in units of 512 bytes, stat(2)
        except OSError:
            continue  # closed since it was listed
    return total


def refresh(state: Path, name: str, *, total_bytes: int, pid: int, jobs_bytes: int = 0) -> None:
    """Brings the donor's meminfo and pressure up to date; ``jobs_bytes`` are what its node's jobs really use."""
    used, lent = used_bytes(state, name) + jobs_bytes, lent_bytes(pid)
    folder = proc_folder(state, name)
    (folder / "pressure").mkdir(parents=True, exist_ok=True)
    meminfo = meminfo_text(total_bytes=total_bytes, used_bytes=used, lent_bytes=lent)
    write_atomically(folder / "meminfo", meminfo.encode())
    write_atomically(folder / "pressure" / "memory", pressure_text(is_stalling=used + lent > total_bytes).encode())
