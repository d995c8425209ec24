"""Runs AccaSim on a workload. A script for the virtual environment of `sim_peer`, where nothing of Farside is.

``python sim_accasim.py WORKLOAD.swf SYSTEM.json RESULTS fifo|sjf`` prints seconds and the average wait as JSON.
"""

import collections
import collections.abc
import importlib
import json
import re
import sys
import time
from pathlib import Path

DISPATCHERS = {"fifo": "FirstInFirstOut", "sjf": "ShortestJobFirst"}


def main(workload: str, system: str, results: str, dispatcher: str) -> None:
    """Times the simulation alone, with all output but its statistics switched off."""
    # Its last release is of 2018 and looks for this where Python had it until 3.9.
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    schedulers = importlib.import_module("accasim.base.scheduler_class")
    allocators = importlib.import_module("accasim.base.allocator_class")
    simulators = importlib.import_module("accasim.base.simulator_class")
    Path(results).mkdir(parents=True, exist_ok=True)
    simulator = simulators.Simulator(
        workload,
        system,
        getattr(schedulers, DISPATCHERS[dispatcher])(allocators.FirstFit()),
        scheduling_output=False,
        show_statistics=False,
        RESULTS_FOLDER_PATH=results,
    )
    started_s = time.process_time()
    simulator.start_simulation()
    seconds = time.process_time() - started_s
    told = "".join(path.read_text() for path in Path(results).glob("stats-*"))
    waits = re.findall(r"Avg. waiting times: ([0-9.]+)", told)
    print(json.dumps({"seconds": seconds, "avg_wait_s": float(waits[-1])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
