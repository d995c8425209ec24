"""The command `farside logs`: prints a process's output file as it grows."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farside.cli.terminal import note
from farside.errors import FarsideError

# The file is read on this machine; each question about the job is a request to the manager.
LOOK_PERIOD_S = 0.2
ASK_PERIOD_S = 1.0
OVER = ("done", "failed", "cancelled", "timed_out")


def follow_output(show: Callable[[], Mapping[str, Any]], rank: int, *, is_following: bool) -> None:
    """Prints the output of a rank; ``show`` asks the manager about the job.

    Raises:
        FarsideError: The job has not started, has no such rank, or its file can't be read here.
    """
    job = show()
    # With --follow a job may still wait: its tasks come with its start.
    while is_following and not job["tasks"] and job["state"] not in OVER:
        time.sleep(ASK_PERIOD_S)
        job = show()
    if not job["tasks"]:
        raise FarsideError(f"job {job['id']}: has not started, and has no output", hint=job["reason"])
    if rank >= len(job["tasks"]):
        raise FarsideError(f"job {job['id']}: has no rank {rank}", hint=f"its ranks are 0 to {len(job['tasks']) - 1}")
    task = job["tasks"][rank]
    # Without --follow the file is read once: the job counts as over, so that its end is not waited for.
    length = _copy(Path(task["output"]), task["node"], show if is_following else lambda: {"state": OVER[0]})
    causes = [task["cause"] for task in show()["tasks"] if task["rank"] == rank and task["cause"]]
    # A cause and no output: the process could not even be started, and the agent said why.
    if causes and not length:
        note(f"job {job['id']}, rank {rank}: {causes[0]}")


def _copy(path: Path, node: str, show: Callable[[], Mapping[str, Any]]) -> int:
    """How many bytes there were."""
    offset, asked_s, is_over = 0, float("-inf"), False
    while True:
        # The state comes before the file: what the job wrote before its end is then there for the last look.
        if time.monotonic() - asked_s >= ASK_PERIOD_S:
            is_over, asked_s = show()["state"] in OVER, time.monotonic()
        try:
            # Opened at each look, as the file need not exist yet.
            stream = path.open("rb")
        except FileNotFoundError as error:
            # While the job runs the file may still come.
            if is_over:
                hint = f"it was written on node {node}; look there, or keep output on shared storage"
                raise FarsideError(f"{path}: not there", hint=hint) from error
        except OSError as error:
            raise FarsideError(f"{path}: {error.strerror}") from error
        else:
            # Outside the try: a pipe that nobody reads, or a full disk, is not the fault of the job's file.
            with stream:
                stream.seek(offset)
                while data := stream.read(1 << 16):
                    sys.stdout.buffer.write(data)
                    offset += len(data)
            sys.stdout.buffer.flush()
        if is_over:
            return offset
        time.sleep(LOOK_PERIOD_S)
