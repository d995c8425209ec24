"""Memory that further jobs may get on a node. PURE.

What the memory plane has lent out counts as free: a donor gives it back when its own programs need it, and that is what
jobs are. What running tasks were promised and have not taken yet does not.
"""

from collections.abc import Iterable


def headroom_bytes(
    *, total_bytes: int, available_bytes: int, lent_bytes: int, reserve_bytes: int, promised_bytes: int
) -> int:
    """Memory for further jobs: available and lent, less the operator's reserve and what is promised; never below 0."""
    # The node may be said to have less memory than the machine, as the nodes of a sandbox share one.
    free_bytes = min(total_bytes, available_bytes + lent_bytes)
    return max(0, free_bytes - reserve_bytes - promised_bytes)


def promised_bytes(tasks: Iterable[tuple[int, int]]) -> int:
    """What tasks may still take; each is (limit, in use), and a limit of 0 promises nothing."""
    return sum(max(0, limit - used) for limit, used in tasks)
