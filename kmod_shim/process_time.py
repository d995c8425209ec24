"""Processor time of another process, with all of its threads, by the kernel's clock of that process."""

import os
import time

_SCHEDULED = 2
"""Which of a process's clocks: the time that its threads have had a processor, to the nanosecond."""


def processor_time_ns(pid: int) -> int | None:
    """What a process has had of the processors until now, in nanoseconds; None: it is gone, or can't be seen."""
    if pid <= 0:
        return None
    try:
        # The number of the clock as linux/posix-timers.h makes it of the process's.
        return time.clock_gettime_ns((~pid << 3) | _SCHEDULED)
    except OSError:
        return None


def processors_of(pid: int) -> int | None:
    """How many processors a process may run on; None: it is gone, or can't be seen."""
    if pid <= 0:
        return None
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return None
