"""The process that makes a group or a folder, in its name: the next one finds what one that was killed has left."""

import os
import re
from pathlib import Path

PATTERN = r"(\d+)-(\d+)"


def own_mark() -> str:
    """This process by its number and the time when it started, in ticks since boot: numbers come again."""
    return f"{os.getpid()}-{_started(os.getpid())}"


def has_ended(mark: "re.Match[str]") -> bool:
    """Whether the process that a match of PATTERN names, by its first two groups, is gone."""
    return _started(int(mark[1])) != int(mark[2])


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])  # proc(5): field 22; the name before may hold anything
