"""The kernel's id of the present boot."""

from pathlib import Path

UNKNOWN = "unknown"


def boot_id(proc_root: Path = Path("/proc")) -> str:
    """The kernel's id of this boot; `UNKNOWN` if the kernel has none."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN
