"""The process that makes a group or a folder, in its name: the next one finds what one that was killed has left."""

import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from farside.kernel_file import boot_id

PATTERN = r"(\d+)-(\d+)"


def own_mark() -> str:
    """This process by its number and the time when it started, in ticks since boot: numbers come again."""
    return f"{os.getpid()}-{_started(os.getpid())}"


def has_ended(mark: "re.Match[str]") -> bool:
    """Whether the process that a match of PATTERN names, by its first two groups, is gone."""
    return _started(int(mark[1])) != int(mark[2])


def make_folder(what: str) -> Path:
    """A new folder for temporary files; those that a process of this user has left as it was killed are removed.

    Args:
        what: What it is for, a word of its name. Only folders of the same word are removed.

    Raises:
        OSError: There is no room for it, or nowhere to make it.
    """
    prefix = f"farside-{what}-{_where()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        mark = re.fullmatch(rf"{prefix}{PATTERN}-\w+", folder.name)
        with suppress(FileNotFoundError):  # another one that starts removes it
            if mark is not None and has_ended(mark) and folder.lstat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{own_mark()}-"))


def _where() -> str:
    """This host since its boot, and this PID namespace: makers elsewhere are not in sight. Short, since a socket's path
    has little room.
    """
    return hashlib.sha256(f"{boot_id()} {os.stat('/proc/self/ns/pid').st_ino}".encode()).hexdigest()[:8]


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])  # proc(5): field 22; the name before may hold anything
