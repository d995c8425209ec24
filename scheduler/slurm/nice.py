"""An order of jobs as nice values, for users that may lower priorities but not raise them. PURE.

A job whose priority is not below that of the one before it in the order is lowered until it is. Nothing is ever raised
again: Slurm lets only operators do that. What comes from Slurm's own factors, such as age and fair share, stays in the
priorities, so the job that stands first keeps its place among everybody else's.
"""

import math
from collections.abc import Sequence

# Between two neighbours where there is room: Slurm rounds, and reckons jobs' ages anew at different moments.
WIDEST_GAP = 100
LEAST = 1  # priority; 0 would be a hold


def lowered(current: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(place in the order, its new nice value) for each that has to change, the first of the order first.

    ``current``: priority and nice value now, by order. Where there is no room left below, the rest stays as it is:
    jobs of the same priority start in the order of their numbers.
    """
    if not current:
        return ()
    lowest = min(priority for priority, _ in current)
    gap = max(1, min(WIDEST_GAP, (lowest - LEAST) // len(current)))
    found: list[tuple[int, int]] = []
    above = math.inf
    for at, (priority, nice) in enumerate(current):
        if priority < above:
            above = priority
            continue
        if above - 1 < LEAST:
            break
        above = max(LEAST, int(above) - gap)
        found.append((at, nice + priority - above))
    return tuple(found)
