"""What the kernel says of a process's memory."""

from pathlib import Path


def flags_of(pid: int, name: str) -> list[set[str]]:
    """VmFlags (proc(5)) of each mapping whose file's name has ``name`` in it; "dd": it is in no core dump."""
    found: list[set[str]] = []
    is_wanted = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):
            is_wanted = name in rest
        elif word == "VmFlags:" and is_wanted:
            found.append(set(rest.split()))
    return found
