"""Guard against deadlock with swap: makes this process one that never waits for memory that waits for it.

How it works. A page fault of any program may wait until the swap server has answered. If the server then waits for
memory that is to be freed by writing to it, nothing moves any more. So, before any thread is made:

    PR_SET_IO_FLUSHER   the kernel allocates for us without starting I/O (PF_MEMALLOC_NOIO) and without throttling us
                        behind our own writes (PF_LOCAL_THROTTLE). Per thread: inherited by threads and processes made
                        later, kept across exec
    SCHED_RR            memory that the kernel needs for our packets and answers it finds in half of its reserve
                        (vm.min_free_kbytes) too, and not only above that: programs that wait for us take all that is
                        above, and an ordinary process then waits for ever (gfp_to_alloc_flags(): ALLOC_MIN_RESERVE,
                        before Linux 6.3 ALLOC_HARDER, for a real-time task). Inherited, and kept across exec
    mlockall            what we have touched stays. Per process: each server locks for itself. MCL_ONFAULT, because the
                        engine's memory files are sparse; what it must have is touched by `ne_device_prefault`
    oom_score_adj       -1000: the OOM killer does not take the one process that makes memory free. Inherited
    cgroup              one of our own with memory.swap.max 0: memory files that nobody has mapped are locked by no
                        mlockall, and would be swapped to the device that they describe. Inherited
    argv[0]             begins with @ where a service manager runs us: systemd's last round of killing, when the machine
                        goes down, spares such a process of root's, because the swap that it serves may still be on
    memfd_secret        one that is held keeps the kernel from hibernating (hibernation_available(), Linux 5.14), which
                        would freeze us and then write to us. Linux below 6.5 has it with secretmem.enable=1 only

That a call succeeded proves little: ublksrv for years gave PR_SET_IO_FLUSHER a 0, which clears it. So guard_check.py
looks at all of this afterwards, from outside and thread by thread.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_IO_FLUSHER = 57  # linux/prctl.h
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4  # linux/mman.h
OOM_SCORE_ADJ_MIN = -1000
REALTIME_PRIORITY = 1  # the lowest: any real-time priority will do, and the kernel's own threads come first
SYS_MEMFD_SECRET = 447  # the same number on every architecture that has it
CGROUP_TOP = Path("sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A guard that could not be set, and why."""

    what: str
    reason: str


def guard_memory() -> tuple[Failure, ...]:
    """Locks this process's memory as it is touched: for every process of a guarded device, at its start."""
    libc = ctypes.CDLL(None, use_errno=True)
    # FUTURE: what is mapped later too. ONFAULT: locked when it is touched, as sparse memory files must not be filled.
    return _tried("mlockall", libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT))


def guard_family(name: str, root: Path = Path("/")) -> tuple[Failure, ...]:
    """Set what children inherit, in the first process of a device, while it has one thread only.

    ``name`` is the device's, for its cgroup.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        *_tried("PR_SET_IO_FLUSHER", libc.prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0)),
        *_real_time(),
        # Below the earlier value only with CAP_SYS_RESOURCE.
        *_written("oom_score_adj", root / "proc/self/oom_score_adj", str(OOM_SCORE_ADJ_MIN)),
        *_own_cgroup(name, root),
    )


def outlive_shutdown() -> None:
    """Marks this process as one that systemd leaves alive until the machine is off (its ROOT_STORAGE_DAEMONS text).

    Only the first byte of the command line is written over: a program that was started with another argv[0] would not
    find its own Python.
    """
    with suppress(OSError, ValueError, IndexError):
        # proc(5), stat: arg_start is field 48; the name in field 2 may hold anything but the last parenthesis.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ctypes.memset(int(fields[45]), ord("@"), 1)


def forbid_hibernation() -> int | None:
    """A descriptor that keeps the machine from hibernating while it is open; None where this is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(SYS_MEMFD_SECRET, os.O_CLOEXEC)
    return None if fd < 0 else int(fd)


def cgroup_of(text: str) -> str | None:
    """The cgroup v2 that /proc/PID/cgroup names, from the hierarchy's top; None where there is no v2."""
    return next((line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::")), None)


def _real_time() -> tuple[Failure, ...]:
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        return ()  # the service manager has said so
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
    except OSError as error:
        return (Failure(what="SCHED_RR", reason=error.strerror or str(error)),)
    return ()


def _own_cgroup(name: str, root: Path) -> tuple[Failure, ...]:
    top = root / CGROUP_TOP
    try:
        mine = cgroup_of((root / "proc/self/cgroup").read_text())
    except OSError as error:
        return (Failure(what="cgroup", reason=f"/proc/self/cgroup: {error.strerror}"),)
    if mine is None or not (top / "cgroup.procs").exists():
        return (Failure(what="cgroup", reason="this machine has no cgroup v2 at /sys/fs/cgroup"),)
    # Three cases: the unit forbids swap; the cgroup is ours alone and may be set so; otherwise a new one is made.
    here = top / mine.lstrip("/")
    with suppress(OSError):
        if (here / "memory.swap.max").read_text().strip() == "0":
            return ()  # the service manager's unit says MemorySwapMax=0
    with suppress(OSError):
        if mine != "/" and set((here / "cgroup.procs").read_text().split()) <= set(_family()):
            (here / "memory.swap.max").write_text("0")  # nobody else is in this cgroup, so it may be changed
            return ()
    try:
        _enter(top, top / f"farside-{name}")
    except OSError as error:
        return (Failure(what="cgroup", reason=f"{error.filename or top}: {error.strerror}"),)
    return ()


def _enter(top: Path, folder: Path) -> None:
    # A cgroup has memory.swap.max only where its parent hands the memory controller down.
    if "memory" not in (top / "cgroup.subtree_control").read_text().split():
        (top / "cgroup.subtree_control").write_text("+memory")
    folder.mkdir(exist_ok=True)
    (folder / "memory.swap.max").write_text("0")
    for pid in _family():
        (folder / "cgroup.procs").write_text(pid)


def _family() -> Iterator[str]:
    """This process and its children: servers that run already."""
    yield str(os.getpid())
    # Children are listed by the thread that made them. Without this list (CONFIG_PROC_CHILDREN) a server that runs
    # already stays where it is; its successor inherits the cgroup.
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            yield from (task / "children").read_text().split()


def _tried(what: str, answer: int) -> tuple[Failure, ...]:
    return () if answer == 0 else (Failure(what=what, reason=os.strerror(ctypes.get_errno())),)


def _written(what: str, path: Path, text: str) -> tuple[Failure, ...]:
    try:
        path.write_text(text)
    except OSError as error:
        return (Failure(what=what, reason=error.strerror or str(error)),)
    return ()
