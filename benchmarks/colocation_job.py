"""One job of `benchmarks.colocation`: draws its input, says "ready", waits for a line, trains, and says when it did.

``python -m benchmarks.colocation_job OPTIONS``, with a program's options as JSON. It is a worker as `farside train`
starts one, but that it waits, so that the time to start and to draw is not measured.
"""

import json
import sys
import time
from dataclasses import replace

import msgspec

from farside.log import start_logging
from farside.training.app.catalog import PROGRAMS
from farside.training.app.dataset import load
from farside.training.app.program import Options, nobody_watches


def main(argument: str) -> None:
    """Trains once; the last line of the output is JSON with times of CLOCK_MONOTONIC."""
    start_logging("warning")
    options = msgspec.json.decode(argument, type=Options)
    data = load(options)
    data = replace(data, blocks=list(data.blocks))
    print("ready", flush=True)
    sys.stdin.readline()
    begun_ns = time.monotonic_ns()
    outcome = PROGRAMS[options.app](data, options, nobody_watches)
    ended_ns = time.monotonic_ns()
    print(json.dumps({"begun_ns": begun_ns, "ended_ns": ended_ns, "objective": outcome.objective.hex()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
