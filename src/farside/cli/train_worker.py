"""One worker of `farside train`, in a process of its own: `python -m farside.cli.train_worker WHAT [ARGUMENT...]`.

WHAT is a program's options as JSON, or a user's Python file, which gets the arguments.
"""

import fcntl
import io
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType

import msgspec

from farside.cli.terminal import note
from farside.ending import die_with
from farside.errors import ConfigError, FarsideError
from farside.log import start_logging
from farside.training.app.program import Options, Outcome
from farside.training.launch import SAID
from farside.training.static_plan import LaunchedAs, launched_as

PARENT = "FARSIDE_TRAIN_PARENT"
MEMORY_HINT = "choose fewer rows, columns or components"


def main(argv: list[str]) -> int:
    """Runs the worker to its end; its exit code."""
    die_with_parent(signal.SIGKILL)
    start_logging("warning")
    told = os.environ.pop(SAID, "")
    said = int(told) if told else None
    try:
        if argv[0].startswith("{"):
            _run_program(msgspec.json.decode(argv[0], type=Options))
        else:
            _run_file(argv)
    except FarsideError as error:
        _note_once(str(error), said)
        return error.exit_code
    return 0


def _note_once(line: str, said: int | None) -> None:
    """Prints a line on standard error, unless another worker has printed it.

    ``said``: a file that all workers of a start have open, with the lines that they have printed; None: this is the
    only worker.
    """
    if said is not None:
        fcntl.lockf(said, fcntl.LOCK_EX)
        try:
            lines = os.pread(said, os.fstat(said).st_size, 0).decode().split("\n")
            if line in lines:
                return
            os.pwrite(said, f"{line}\n".encode(), os.fstat(said).st_size)
        finally:
            fcntl.lockf(said, fcntl.LOCK_UN)
    note(line)


def _run_program(options: Options) -> None:
    import numpy as np

    from farside.training.app.catalog import PROGRAMS
    from farside.training.app.dataset import can_leave_memory, load
    from farside.training.loop.spilling import spill_place

    own = launched_as() or LaunchedAs(rank=0, members=1, here=1)
    is_first = own.rank == 0
    every = max(1, options.iterations // 10)

    def watch(iteration: int, objective: float) -> None:
        if is_first and iteration % every == 0:
            print(f"iteration {iteration} of {options.iterations}: objective {objective:.9g}", flush=True)

    place = spill_place()
    lets_go = place is not None and (not place.is_offered or can_leave_memory(options))
    try:
        # A number that is none shows in the objective, at all workers alike.
        with np.errstate(all="ignore"):
            data = load(options, lets_go=lets_go, workers=max(own.members, 1), here=own.here)
            outcome = PROGRAMS[options.app](data, options, watch)
    except MemoryError as error:
        raise ConfigError(f"there is not enough memory: {error}", hint=MEMORY_HINT) from error
    if is_first:
        _show(options, outcome)


def _show(options: Options, outcome: Outcome) -> None:
    more = "".join(f", {name} {value:.6g}" for name, value in outcome.figures.items())
    after = f"after {outcome.iterations} iterations"
    print(f"{options.app} on {options.data}: objective {outcome.objective:.12g} {after}{more}")
    if options.out:
        import numpy as np

        from farside.whole_file import write_whole

        buffer = io.BytesIO()
        np.savez(buffer, objective=np.array(outcome.objective), **outcome.model)
        write_whole(Path(options.out), buffer.getvalue(), mode=0o644)


def _run_file(argv: list[str]) -> None:
    sys.excepthook = _tell
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    runpy.run_path(argv[0], run_name="__main__")


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # In one write: other workers have the same standard error.
    sys.stderr.write("".join(traceback.format_exception(kind, error, trace)))


def die_with_parent(number: signal.Signals) -> None:
    """This signal comes when our parent ends: a worker without it would wait for the others for ever."""
    parent = os.environ.pop(PARENT, "")
    if parent:
        die_with(int(parent), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
