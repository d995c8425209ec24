"""Training programs for tests: Farside's own as processes, and small ones in this process."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farside.training.loop.block import OwnBlocks, blocks_of
from farside.training.loop.checkpoint import Checkpoints
from farside.training.loop.job import Job
from farside.training.loop.push_pull import keys_of
from farside.training.loop.turns import NoTurns, Turns
from farside.training.member import PlanSource

DEADLINE_S = 120.0
BLOCKS = [np.arange(4.0) + number / 7 for number in range(5)]
"""Input of `walk`: each block a row of four numbers."""


def train(*words: object, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """`farside train` with these words, started."""
    argv = [sys.executable, "-m", "farside", "train", *map(str, words)]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Its exit code, output and errors."""
    out, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, errors


def model_of(path: Path) -> dict[str, bytes]:
    """The bytes of all arrays of a model's file."""
    with np.load(path) as found:
        return {name: found[name].tobytes() for name in found.files}


def job_of(
    *,
    blocks: Sequence[Any] = BLOCKS,
    iterations: int = 6,
    source: PlanSource | None = None,
    folder: Path | None = None,
    fingerprint: str = "walk",
    keys: Mapping[str, Any] | None = None,
    turns: Turns | None = None,
) -> Job[Any]:
    """A job of this process, with a checkpoint in each iteration where there is a folder."""
    rank, workers = (source.rank, source.members) if source is not None else (0, 1)
    kept = None
    if folder is not None:
        kept = Checkpoints(folder, fingerprint=fingerprint, blocks=len(blocks), rank=rank, workers=workers)
    return Job(
        OwnBlocks(blocks, blocks_of(rank, workers, len(blocks))),
        keys_of(keys or {"part": (4,), "count": np.zeros((), np.int64)}),
        source,
        iterations=iterations,
        checkpoints=kept,
        checkpoint_s=0.0,
        turns=turns or NoTurns(),
    )


def walk(
    job: Job[Any],
    *,
    stop_before: int | None = None,
    fail_in: int | None = None,
    term_in: int | None = None,
    finish_in: int | None = None,
) -> bytes:
    """A program whose every number depends on all before it; the bytes that it ends with.

    Args:
        job: Entered here.
        stop_before: It is killed after the pull of this iteration.
        fail_in: It raises an error in this iteration.
        term_in: It is asked to stop in this iteration.
        finish_in: It says in this iteration that it is the last one.
    """
    with job:
        place = job.model.setdefault("place", np.ones(4))
        while job.goes_on():
            total = job.pull()
            if job.iteration == stop_before:
                raise Killed
            place += 0.1 * np.sin(total["part"] + total["count"])
            if job.iteration == fail_in:
                raise ZeroDivisionError
            if job.iteration == term_in:
                os.kill(os.getpid(), signal.SIGTERM)
            if job.iteration == finish_in:
                job.finish()
            part, count = np.zeros(4), 0
            for block in job.blocks():
                memory = block.state.setdefault("memory", np.zeros(4))
                memory += np.cos(block.data * place)
                part += memory / 3
                count += 1
            job.push({"part": part, "count": count})
        total = job.pull()
        if job.iteration == stop_before:
            raise Killed
        assert total["count"] == len(BLOCKS)
        return b"".join([place.tobytes(), total["part"].tobytes()])


class Killed(BaseException):
    """Stands for a death in the middle of a program."""
