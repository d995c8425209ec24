"""CPU time and memory of a running task: all processes below its task supervisor."""

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage of all running processes; ended ones count with their CPU time if their parent waited for them."""

    cpu_s: float = 0.0
    rss_bytes: int = 0


def usage_below(supervisor_pid: int) -> Usage:
    """Usage of the task below this task supervisor; zero where it has ended."""
    cpu_s, rss_bytes = 0.0, 0
    try:
        family = psutil.Process(supervisor_pid).children(recursive=True)
    except psutil.Error:
        return Usage()
    for process in family:
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            rss_bytes += process.memory_info().rss
        except psutil.Error:
            pass  # it ended just now
    return Usage(cpu_s=cpu_s, rss_bytes=rss_bytes)
