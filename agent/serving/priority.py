"""Lets the front go first where several want a core: its work is short, and requests wait for it alone.

Executors are to fall behind where too much is asked. A front that does finds requests that came long ago, and sends
answers late that were made in time.
"""

import ctypes
import os
import platform
from contextlib import suppress
from typing import Final

FRONT_NICE = -10
# A kernel from 6.12 on lets a thread with a shorter slice go before one with a longer, in the middle of that.
_SLICE_NS = 100_000
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


def go_first(nice: int = FRONT_NICE) -> None:
    """Puts this thread before others as far as it may; those that it starts have the place of everybody.

    One whose place was set by hand keeps it: a niceness (`nice`, Nice= of a unit), or another policy (`chrt`).
    """
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    with suppress(PermissionError):  # RestrictRealtime= of a unit refuses the flag here, and takes it below
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        asked = _Attributes(
            size=ctypes.sizeof(_Attributes), policy=os.SCHED_OTHER, flags=_FLAG_RESET_ON_FORK,
            nice=os.getpriority(os.PRIO_PROCESS, 0), runtime_ns=_SLICE_NS,
        )  # fmt: skip
        ctypes.CDLL(None).syscall(number, 0, ctypes.byref(asked), 0)  # an older kernel leaves the slice as it is


def go_with_others() -> None:
    """For an executor whose front could not see to that: where the kernel took none of its calls but the niceness."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
