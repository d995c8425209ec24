"""Input larger than a job's memory, where the kernel limits memory: it ends spilled, and is killed otherwise.

By cgroup v2, or by v1 where the memory controller is still there; as root. The guests of tests/vm run it too.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from farside.errors import Unavailable
from tests.support.kernel_limit import MemoryLimit
from tests.train.executors import executor, overlapping
from tests.train.programs import model_of

LIMIT_S = 900.0
ROWS, COLUMNS, BLOCKS, ITERATIONS = 6_000, 2_000, 64, 8
INPUT_BYTES = 8 * ROWS * COLUMNS
PROGRAM_BYTES = 80 << 20
"""Enough for `farside train`, its worker, and the buffers of blocks that come back."""
WORDS = ("--data", "synthetic", "--rows", ROWS, "--columns", COLUMNS, "--blocks", BLOCKS, "--iterations", ITERATIONS)
JOBS = ("nmf", "mlr")


@pytest.fixture
def limits() -> Iterator[dict[str, MemoryLimit]]:
    """For each job memory for half of its input, and for what it needs besides."""
    with ExitStack() as stack:
        made = {}
        for job in JOBS:
            try:
                made[job] = MemoryLimit(INPUT_BYTES // 2 + PROGRAM_BYTES, job)
            except Unavailable as error:
                pytest.skip(str(error))
            stack.callback(made[job].close)
        yield made


def trained(job: str, out: Path, *more: object, enter: str = "") -> tuple[int, str]:
    """Exit code and errors of a job."""
    words = [sys.executable, "-m", "farside", "train", job, *map(str, (*WORDS, *more)), "--out", str(out)]
    done = subprocess.run(
        ["sh", "-c", f'{enter}exec "$@"', "sh", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stderr


def check_that_two_jobs_end_spilled_and_are_killed_otherwise(tmp_path: Path, limits: dict[str, MemoryLimit]) -> None:
    """Two jobs that take turns: alone without a limit, together with limits and spilled, and each without spilling."""
    for job in JOBS:
        code, errors = trained(job, tmp_path / f"{job}-free.npz")
        assert code == 0, errors

    began_s = time.monotonic()
    with executor(tmp_path) as shared, ThreadPoolExecutor() as pool:
        told = ("--spill-dir", tmp_path, "--executor", shared.socket)
        ends = {
            job: pool.submit(trained, job, tmp_path / f"{job}.npz", *told, enter=limits[job].enter) for job in JOBS
        }  # fmt: skip
        for end in ends.values():
            code, errors = end.result()
            assert code == 0, errors
        rows = shared.trace()
    assert overlapping(rows, ("COMP",)) == []
    for job in JOBS:
        assert limits[job].kills == 0
        assert model_of(tmp_path / f"{job}.npz") == model_of(tmp_path / f"{job}-free.npz")
    print(f"two jobs with memory for half of their input each ended after {time.monotonic() - began_s:.0f} s")

    for job in JOBS:
        code, errors = trained(job, tmp_path / "killed.npz", enter=limits[job].enter)
        assert code == 128 + 9, errors
        assert limits[job].kills > 0


@pytest.mark.long
def test_jobs_with_memory_for_half_of_their_input_end_with_the_same_bits_and_are_killed_without_spilling(
    tmp_path: Path, limits: dict[str, MemoryLimit]
) -> None:
    check_that_two_jobs_end_spilled_and_are_killed_otherwise(tmp_path, limits)
