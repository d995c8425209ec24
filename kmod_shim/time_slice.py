"""How long this thread may compute while others want its processor: one with a shorter slice goes before the others.

From 6.12 on the kernel lets such a thread go first when it wakes, in the middle of another one's slice, and nobody gets
more of the processor by that. Otherwise it may wait for the next tick of the clock, 4 ms with 250 ticks a second.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from typing import Final

SHORT_NS = 100_000
"""The shortest slice that the kernel gives."""
EVERYBODYS_NS = 0
"""The slice of a thread that has asked for none."""
LOWEST_PRIORITY = 19
_FLAG_RESET_ON_FORK = 1
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}


class _Attributes(ctypes.Structure):
    """struct sched_attr of linux/sched/types.h, as of its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def set_time_slice(slice_ns: int, *, is_inherited: bool = True) -> None:
    """Sets this thread's slice, where its policy has one and the kernel takes it; otherwise all stays as it is.

    Args:
        slice_ns: `SHORT_NS`, `EVERYBODYS_NS`, or a time between 0.1 and 100 ms.
        is_inherited: Threads and processes that this thread starts have the same; otherwise they have everybody's.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return
    asked = _Attributes(
        size=ctypes.sizeof(_Attributes), policy=os.SCHED_OTHER, flags=0 if is_inherited else _FLAG_RESET_ON_FORK,
        nice=os.getpriority(os.PRIO_PROCESS, 0), runtime_ns=slice_ns,
    )  # fmt: skip
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(asked), 0)


def take_idle_time() -> None:
    """Has this process compute while nobody else wants its processor, as far as the kernel lets it: SCHED_IDLE.

    A process at the lowest niceness keeps its processor to the end of its slice while another one that has been woken
    waits; one of this class gives it up at once, and the kernel counts its processor as free for whoever wakes.
    """
    # A unit may be kept from either (SystemCallFilter=~@resources): it then computes as everybody does.
    with contextlib.suppress(OSError):
        os.nice(LOWEST_PRIORITY)  # where the kernel refuses the class
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def short_time_slice() -> Iterator[None]:
    """Threads that are started in its body have a short slice; this thread has everybody's after it."""
    set_time_slice(SHORT_NS)
    try:
        yield
    finally:
        set_time_slice(EVERYBODYS_NS)
