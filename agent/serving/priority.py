"""Lets the front go first where several want a core: its work is short, and requests wait for it alone.

Executors are to fall behind where too much is asked. A front that does finds requests that came long ago, and sends
answers late that were made in time.
"""

import os
from contextlib import suppress

from farside.kmod_shim.time_slice import SHORT_NS, set_time_slice

FRONT_NICE = -10


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
    set_time_slice(SHORT_NS, is_inherited=False)


def go_with_others() -> None:
    """For an executor whose front could not see to that: where the kernel took none of its calls but the niceness."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
