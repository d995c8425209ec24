"""Tells of a donor's memory when asked; run inside its guest.

    python3 -m benchmarks.apps.memory_watch [ADMIN_SOCKET]     # of the donor, where there is one

Says ``ready``, then answers each line with one of JSON, a ``Moment`` of result.py.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.apps.size import RETREAT_MIB
from farside import admin

CACHE_PID = Path("/run/cache.pid")
GROUP = Path("/sys/fs/cgroup/donors/d1")


def moment(socket: Path | None, began_s: float) -> dict[str, float]:
    """The donor's memory now: the cache, what is lent, and what nobody uses."""
    status = Path("/proc", CACHE_PID.read_text().strip(), "status").read_text()
    cache_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    lent_bytes = 0
    if socket is not None:
        told = admin.call(socket, "status", timeout_s=30)
        assert isinstance(told, dict)
        lent_bytes = sum(told["slab_counts"].values()) * told["slab_bytes"]
    used_bytes = int((GROUP / "memory.current").read_text())
    return {
        "now_s": round(time.monotonic() - began_s, 2),
        "cache_bytes": cache_kib << 10,
        "lent_bytes": lent_bytes,
        "free_bytes": (RETREAT_MIB << 20) - used_bytes,
    }


def main() -> None:
    """Until the end of standard input."""
    socket = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    began_s = time.monotonic()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(moment(socket, began_s)), flush=True)


if __name__ == "__main__":
    main()
