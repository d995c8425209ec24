"""Profile of a task, summed up from all its processes. PURE.

A task may have many: eight workers of one launcher, and loaders of data that send nothing. Those that send about as
much as the one that sends most are its workers; each does what the others do, so the middle of them is the task.
"""

from statistics import median

from farside.agent import messages as m
from farside.agent.profile.ring import Recorded
from farside.agent.profile.summarise import summarise

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
    found = [summarise(process.events) for process in workers]
    told = [figures for figures in found if not figures.problem]
    if not told:
        return problem("; ".join((found[0].problem, *recorded.problems)), processes=len(workers))
    return m.TaskProfile(
        processes=len(workers),
        iterations=min(figures.iterations for figures in told),
        iteration_s=median(figures.iteration_s for figures in told),
        sent_bytes=int(median(figures.sent_bytes for figures in told)),
        largest_bytes=int(median(figures.largest_bytes for figures in told)),
        portion_bytes=int(median(figures.portion_bytes for figures in told)),
    )


def problem(text: str, *, processes: int = 0) -> m.TaskProfile:
    """Profile without figures, and the reason."""
    return m.TaskProfile(processes=processes, problem=text[: m.PROFILE_CHARS_MAX])
