"""Work on this machine that is not Farside's, as its load average shows it."""

from pathlib import Path

LOAD_MAX = 0.5
"""Load average over a minute of a machine that is idle: one program that computes all the time is above it."""


def is_loaded(proc_root: Path) -> bool:
    """Whether the load average of the last minute is above `LOAD_MAX`; not where the machine does not say any."""
    try:
        return float((proc_root / "loadavg").read_text(encoding="ascii").split()[0]) > LOAD_MAX
    except (OSError, ValueError, IndexError):
        return False
