"""How long a job waits at the most where the longest waiting one has a reservation."""


def start_bound_s(*, reserve_after_s: float, ahead: int, longest_s: float) -> float:
    """The longest that a job waits for its start, from when it began to wait.

    Args:
        reserve_after_s: The setting.
        ahead: Jobs that waited already when it began to.
        longest_s: The longest that a job holds GPUs that can't be taken from it: its run time where nobody is
            preempted, else the greatest of the time it is left alone and the run time of who may not be preempted.
    """
    return reserve_after_s + (ahead + 1) * longest_s
