"""One worker of the co-location scene, and of its benchmark: ``python -m farside.cli.demo.colocated_job OPTIONS``.

OPTIONS are a program's, as JSON. It is a worker as `farside train` starts one, but that it draws its input, says
"ready" and waits for a line before it trains: so no time has a start in it that is not meant to. Input that may be
spilled is drawn block by block, as it is asked for. The last line of its output is JSON with times of CLOCK_MONOTONIC.
"""

import hashlib
import io
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from farside.errors import FarsideError
from farside.log import start_logging
from farside.training.app.catalog import PROGRAMS
from farside.training.app.dataset import load
from farside.training.app.program import Options, nobody_watches
from farside.training.loop.block import Arrays
from farside.training.loop.job import CHECKPOINT_DIR
from farside.training.loop.spilling import SPILL_DIR
from farside.training.loop.turns import EXECUTOR
from farside.training.static_plan import SERVICE
from farside.whole_file import write_whole


def main(argument: str) -> int:
    """Trains once; the exit code is 75 after a pause, as of all programs of `farside train`."""
    start_logging("error")
    options = msgspec.json.decode(argument, type=Options)
    if options.app == "lda":
        _compile(options)
    spills = bool(os.environ.get(SPILL_DIR))
    data = load(options, lets_go=spills)
    if not spills:
        data = replace(data, blocks=list(data.blocks))
    print("ready", flush=True)
    sys.stdin.readline()
    begun_ns = time.monotonic_ns()
    try:
        outcome = PROGRAMS[options.app](data, options, nobody_watches)
    except FarsideError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    ended_ns = time.monotonic_ns()
    if options.out:
        buffer = io.BytesIO()
        np.savez(buffer, objective=np.array(outcome.objective), **outcome.model)
        write_whole(Path(options.out), buffer.getvalue(), mode=0o644)
    told = {"objective": outcome.objective.hex(), "model": digest(outcome.model)}
    print(json.dumps({"begun_ns": begun_ns, "ended_ns": ended_ns, **told}), flush=True)
    return 0


def digest(model: Arrays) -> str:
    """A SHA-256 of a model: of the names, types, shapes and bytes of its arrays."""
    found = hashlib.sha256()
    for name, array in sorted(model.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _compile(options: Options) -> None:
    """Uses the sampler once: numba compiles it then, which is part of a start, and of no iteration."""
    variables = {name: os.environ.pop(name) for name in (SERVICE, EXECUTOR, CHECKPOINT_DIR) if name in os.environ}
    few = msgspec.structs.replace(options, rows=options.blocks, iterations=1)
    PROGRAMS["lda"](load(few), few, nobody_watches)
    os.environ.update(variables)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
