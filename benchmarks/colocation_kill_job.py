"""One job of `benchmarks.colocation_kill`, a program of `farside train`: it notes when each iteration begins.

``farside train benchmarks/colocation_kill_job.py FOLDER NAME [ITERATIONS]``; without ITERATIONS it ends when FOLDER has
a file `stop`. The model goes into NAME.model, behind the number of its iterations.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from farside import training
from farside.whole_file import write_whole

BLOCKS, ROWS, COLUMNS = 4, 250, 1000
PUSHED = 20_000
RATE = 1e-6


def main(folder: Path, name: str, iterations: int) -> None:
    """Trains a linear model by gradient steps until it is told to end."""
    draws = np.random.default_rng(len(name))
    rows: Any = draws.standard_normal((BLOCKS, ROWS, COLUMNS))
    targets = draws.standard_normal((BLOCKS, ROWS))
    with (
        (folder / f"{name}.log").open("a", buffering=1) as log,
        training.begin(rows, keys={"sum": (PUSHED,)}, iterations=iterations or 10**7, fingerprint=name) as job,
    ):
        model = job.model.setdefault("weights", np.zeros(COLUMNS))
        while job.goes_on():
            model -= RATE * job.pull()["sum"][:COLUMNS]
            log.write(f"{job.iteration} {time.monotonic_ns()}\n")
            if not iterations and (folder / "stop").exists():
                job.finish()
            part = np.zeros(PUSHED)
            for block in job.blocks():
                part[:COLUMNS] += block.data.T @ (block.data @ model - targets[block.number])
            job.push({"sum": part})
        model -= RATE * job.pull()["sum"][:COLUMNS]
        write_whole(folder / f"{name}.model", f"{job.iteration} ".encode() + model.tobytes(), mode=0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
