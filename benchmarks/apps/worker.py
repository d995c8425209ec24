"""A workload that works when told to: ``run MILLISECONDS`` or ``count OPERATIONS`` on standard input, one line of JSON
on standard output.

Runs inside a guest, in the cgroup whose memory is limited, and so imports little: what it imports is part of its
working set.
"""

import json
import math
import sys
import time
from array import array
from collections.abc import Callable


def serve(operate: Callable[[], bool]) -> None:
    """Says ``ready``, then answers each line until its input ends; ``operate`` returns False when it failed."""
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, number = line.partition(" ")
        if word == "run":
            print(json.dumps(run(operate, seconds=int(number) / 1e3)), flush=True)
        elif word == "count":
            print(json.dumps(run(operate, operations=int(number))), flush=True)


def run(operate: Callable[[], bool], *, seconds: float = math.inf, operations: float = math.inf) -> dict[str, float]:
    """Operates until the time is up or so many are done, at least once; how many, how long, how long each took."""
    latencies_us = array("f")
    failed = 0
    began_s = last_s = time.monotonic()
    while not latencies_us or (last_s - began_s < seconds and len(latencies_us) < operations):
        failed += not operate()
        now_s = time.monotonic()
        latencies_us.append((now_s - last_s) * 1e6)
        last_s = now_s
    ordered = sorted(latencies_us)
    return {
        "operations": len(ordered),
        "seconds": round(last_s - began_s, 4),
        "p50_us": round(ordered[len(ordered) // 2], 1),
        "p99_us": round(ordered[len(ordered) * 99 // 100], 1),
        "max_us": round(ordered[-1], 1),
        "failed": failed,
    }
