"""Memory of a running task: all processes below its task supervisor."""

import psutil


def rss_below(supervisor_pid: int) -> int:
    """Resident bytes of the task below this task supervisor; zero where it has ended."""
    try:
        family = psutil.Process(supervisor_pid).children(recursive=True)
    except psutil.Error:
        return 0
    rss_bytes = 0
    for process in family:
        try:
            rss_bytes += process.memory_info().rss
        except psutil.Error:
            pass  # it ended just now
    return rss_bytes
