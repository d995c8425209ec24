"""A member of a job with shared aggregation, with arrays instead of a model: `... aggregated_member FOLDER PACE_S`.

It trains until the file FOLDER/end names an iteration, all members to the same one, and leaves the hash of the results
in FOLDER/done.RANK. FOLDER/at.RANK has its iteration. Where FOLDER/die.RANK is, it takes that away and kills itself.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from farside.agent.aggregator.layout import Tensor
from farside.kmod_shim.engine.aggregation import Hyper, Job, Rule, reduce
from farside.training.member import MemberSession, source_from_environment
from farside.whole_file import write_whole

TENSORS = (Tensor("embedding.weight", 200_000, "f32"), Tensor("norm.weight", 300, "f32"))
HYPER = Hyper(lr=0.01, momentum=0.9)


def gradient(rank: int, chunk: int, iteration: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """What a member has computed: cheap, and another one for each of these."""
    return _base(chunk, count) * np.float32(0.001 * (1 + rank)) + np.float32(
        (iteration * (7 + 3 * rank)) % 101
    ) * np.float32(0.01)


@lru_cache
def _base(chunk: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.arange(count, dtype=np.float32) % np.float32(97 + chunk)


def start(chunk: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Parameters at the start."""
    return np.full(count, np.float32(chunk + 1))


def expected(job: Job, iterations: int) -> str:
    """The hash of the results of one process that sums the same gradients in rank order."""
    masters = [[start(at, one.count), np.zeros(one.count, np.float32)] for at, one in enumerate(job.chunks)]
    outputs = [np.zeros(one.count, np.float32) for one in job.chunks]
    for iteration in range(1, iterations + 1):
        for at, one in enumerate(job.chunks):
            gradients = [gradient(rank, at, iteration, one.count) for rank in range(job.members)]
            reduce(
                Rule.SGD, one.dtype, gradients, [outputs[at]], step=iteration, hyper=HYPER, masters=masters[at]
            )  # fmt: skip
    return digest(outputs)


def digest(results: Sequence[Any]) -> str:
    """Of all chunks."""
    return hashlib.sha256(b"".join(bytes(one) for one in results)).hexdigest()


def main(folder: Path, pace_s: float) -> None:
    """Trains."""
    source = source_from_environment()
    rank = source.rank
    session = MemberSession(source, rule="sgd", tensors=TENSORS)
    chunks = session.job.chunks

    def put_start() -> None:
        for at, one in enumerate(chunks):
            session.member.result(at)[:] = start(at, one.count).tobytes()

    session.connect(put_start)
    iteration = session.iteration
    session.member.hyper(0, iteration + 1, HYPER)
    print("begins after", iteration, flush=True)
    while True:
        end = folder / "end"
        if end.exists() and iteration >= int(end.read_text()):
            break
        iteration += 1
        for at, one in enumerate(chunks):
            session.member.gradient(at, iteration)[:] = gradient(rank, at, iteration, one.count).tobytes()
        session.push(0, len(chunks), iteration)
        session.wait(0, len(chunks), iteration)
        time.sleep(pace_s)
        # Not what it took: on a busy machine that may be any time, and the job would be placed anew for it.
        source.measured(iteration, pace_s)
        write_whole(folder / f"at.{rank}", str(iteration).encode())
        if (folder / f"die.{rank}").exists():
            (folder / f"die.{rank}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    results = [session.member.result(at) for at in range(len(chunks))]
    write_whole(folder / f"done.{rank}", f"{iteration} {digest(results)}".encode())
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
