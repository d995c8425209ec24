"""Small text files of the kernel, in /sys and /proc."""

import os
import re
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


def unescaped(path: str) -> str:
    """A path as /proc/swaps and mountinfo write it: with blanks, tabs and backslashes as \\040."""
    octal = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), os.fsencode(path))
    return os.fsdecode(octal)


def boot_id(proc_root: Path = Path("/proc")) -> str:
    """The kernel's id of this boot; `UNKNOWN` if the kernel has none."""
    return kernel_text(proc_root / "sys/kernel/random/boot_id") or UNKNOWN
