"""The tasks of a job: runs of equal chunks of a model, which are placed together. PURE."""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

TASKS_MAX = 128
"""Tasks of a job: what a node is told of a job is as long as they are many."""
PARTS = 16
"""A task is at most so large a part of its job, if it can be cut."""


class ChunkRun(Struct, frozen=True, array_like=True):
    """A number of chunks of equal size, one behind the other."""

    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Task:
    """Chunks that are placed together."""

    first: int
    count: int
    size_bytes: int


@lru_cache(maxsize=1024)
def tasks_of(chunks: tuple[ChunkRun, ...]) -> tuple[Task, ...]:
    """The tasks of a model: its runs of equal chunks, at most `TASKS_MAX`, none above a `PARTS`-th if it can be cut."""
    total = sum(run.count * run.size_bytes for run in chunks)
    least, most = total / TASKS_MAX * 2, total / PARTS
    found: list[Task] = []
    first = 0
    for run in chunks:
        parts = min(run.count, max(1, math.ceil(run.count * run.size_bytes / most)))
        cuts = [first + run.count * at // parts for at in range(parts + 1)]
        for begin, end in pairwise(cuts):
            size_bytes = (end - begin) * run.size_bytes
            if found and found[-1].size_bytes + size_bytes <= least:
                found[-1] = Task(found[-1].first, end - found[-1].first, found[-1].size_bytes + size_bytes)
            else:
                found.append(Task(begin, end - begin, size_bytes))
        first += run.count
    return tuple(found)
