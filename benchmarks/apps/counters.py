"""What a kernel counts, told when asked; run inside a guest, and small: it starts while others are measured.

    python3 -IS counters.py [PID]     # of a process whose CPU time is told as well

Answers each line of its input with one of JSON, until that ends.
"""

import json
import sys
from pathlib import Path

TICKS_PER_S = 100
PROC = Path("/proc")


def busy_s(stat: str) -> float:
    """CPU seconds of the whole machine in a /proc/stat: all but idle and waiting for a disk."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in stat.split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def process_s(stat: str) -> float:
    """CPU seconds of a process, from its /proc/PID/stat."""
    # The name in brackets may hold anything; utime and stime are the 12th and 13th word after it.
    words = stat.rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_PER_S


def pages(vmstat: str) -> tuple[int, int]:
    """Pages swapped in and out."""
    counted = dict(line.split() for line in vmstat.splitlines())
    return int(counted["pswpin"]), int(counted["pswpout"])


def reading(pid: str) -> dict[str, float | None]:
    """All of it now; a process that has ended has no time."""
    page_ins, page_outs = pages((PROC / "vmstat").read_text())
    own = PROC / pid / "stat"
    return {
        "busy_s": busy_s((PROC / "stat").read_text()),
        "page_ins": page_ins,
        "page_outs": page_outs,
        "program_s": process_s(own.read_text()) if pid and own.exists() else None,
    }


def main() -> None:
    """Until the end of standard input."""
    pid = sys.argv[1] if len(sys.argv) > 1 else ""
    for _ in sys.stdin:
        print(json.dumps(reading(pid)), flush=True)


if __name__ == "__main__":
    main()
