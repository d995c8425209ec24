"""This boot of the machine."""

from pathlib import Path

UNKNOWN = "unknown"


def boot_id(proc_root: Path = Path("/proc")) -> str:
    """The kernel's id of this boot, another one after each; `UNKNOWN` where it does not tell."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN
