"""Profile of a task, summed up from all its processes. PURE.

A task may have many: eight workers of one launcher, and loaders of data that send nothing. Those that send about as
much as the one that sends most are its workers; each does what the others do, so the middle of them is the task.
"""

from statistics import median

from farside.agent import messages as m
from farside.agent.profile.ring import Process, Recorded
from farside.agent.profile.summarise import Summary, summarise

WORKER_SHARE = 10
"""A process that sends so many times less than another is no worker beside it."""
UNSEEN = "no process of it loaded the profiler: a static program, another libc, or one that may not open its file"
SILENT = "none of its processes sent a message of 1 KiB over the network"


def task_profile(recorded: Recorded) -> m.TaskProfile:
    """Profile made from what was recorded; it has a problem where that is not enough."""
    if not recorded.attached:
        return problem(UNSEEN)
    if not recorded.processes:
        return problem(SILENT)
    most = recorded.processes[0].sent_bytes
    workers = [process for process in recorded.processes if process.sent_bytes * WORKER_SHARE >= most]
    found = [_summary(process) for process in workers]
    told = [summary for summary in found if isinstance(summary, Summary)]
    if not told:
        why = next(summary for summary in found if isinstance(summary, str))
        return problem("; ".join((why, *recorded.problems)), processes=len(workers))
    return m.TaskProfile(
        processes=len(workers),
        iterations=min(summary.iterations for summary in told),
        iteration_s=median(summary.iteration_s for summary in told),
        sent_bytes=int(median(summary.sent_bytes for summary in told)),
        largest_bytes=int(median(summary.largest_bytes for summary in told)),
        portion_bytes=int(median(summary.portion_bytes for summary in told)),
    )


def _summary(process: Process) -> Summary | str:
    return summarise(process.events)


def problem(text: str, *, processes: int = 0) -> m.TaskProfile:
    """Profile without figures, and the reason."""
    return m.TaskProfile(processes=processes, problem=text[: m.PROFILE_CHARS_MAX])
