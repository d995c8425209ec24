"""Small text files of the kernel, in /sys and /proc."""

from pathlib import Path

UNKNOWN = "unknown"


def kernel_text(path: Path) -> str:
    """Text of a file without white space round it; empty where this kernel or container does not have it now."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def chosen(text: str) -> str:
    """The choice that a file marks, as in ``always [madvise] never``; all of the text where none is marked."""
    return text.partition("[")[2].partition("]")[0] if "[" in text else text


def boot_id(proc_root: Path = Path("/proc")) -> str:
    """The kernel's id of this boot; `UNKNOWN` if the kernel has none."""
    return kernel_text(proc_root / "sys/kernel/random/boot_id") or UNKNOWN
