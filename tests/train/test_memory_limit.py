"""Input larger than a job's memory, where the kernel limits memory: it ends spilled, and is killed otherwise.

By cgroup v2, or by v1 where the memory controller is still there; as root. The guests of tests/vm run it too.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.train.programs import model_of

ROOT = Path("/sys/fs/cgroup")
LIMIT_S = 900.0
ROWS, COLUMNS = 12_000, 2_000
INPUT_BYTES = 8 * ROWS * COLUMNS
PROGRAM_BYTES = 80 << 20
"""Enough for `farside train`, its worker, and the buffers of blocks that come back."""
WORDS = (
    "nmf", "--data", "synthetic", "--rows", ROWS, "--columns", COLUMNS, "--blocks", 64, "--iterations", 8,
)  # fmt: skip


class Limited:
    """A cgroup with a limit on memory."""

    def __init__(self, limit_bytes: int) -> None:
        """Makes it; the test skips where that can't be."""
        if os.geteuid() != 0:
            pytest.skip("a limit on memory needs root")
        self._is_v1 = (ROOT / "memory/memory.limit_in_bytes").exists()
        self._folder = (ROOT / "memory" if self._is_v1 else ROOT) / f"farside-spill-{os.getpid()}"
        try:
            if not self._is_v1:
                (ROOT / "cgroup.subtree_control").write_text("+memory")
            self._folder.mkdir()
            name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
            (self._folder / name).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"the kernel does not limit memory here: {error}")

    @property
    def kills(self) -> int:
        """How many processes were killed for memory."""
        name = "memory.oom_control" if self._is_v1 else "memory.events"
        rows = dict(line.split() for line in (self._folder / name).read_text().splitlines())
        return int(rows["oom_kill"])

    @property
    def enter(self) -> str:
        """A shell's words that move it there."""
        return f"echo $$ >{self._folder}/cgroup.procs; "

    def close(self) -> None:
        """Removes it, once its processes have ended."""
        until(lambda: not (self._folder / "cgroup.procs").read_text(), what="the end of its processes")
        self._folder.rmdir()


@pytest.fixture
def limited() -> Iterator[Limited]:
    """Memory for half of the input, and for what a job needs besides."""
    made = Limited(INPUT_BYTES // 2 + PROGRAM_BYTES)
    yield made
    made.close()


def trained(out: Path, *more: object, enter: str = "") -> tuple[int, str, float]:
    """Exit code, errors and seconds of a job."""
    words = [sys.executable, "-m", "farside", "train", *map(str, (*WORDS, *more)), "--out", str(out)]
    began_s = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'{enter}exec "$@"', "sh", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stderr, time.monotonic() - began_s


def check_that_it_ends_spilled_and_is_killed_otherwise(tmp_path: Path, limited: Limited) -> None:
    """A job without a limit, with one and spilled, and with one alone."""
    code, errors, free_s = trained(tmp_path / "free.npz")
    assert code == 0, errors

    code, errors, spilled_s = trained(tmp_path / "spilled.npz", "--spill-dir", tmp_path, enter=limited.enter)
    assert code == 0, errors
    assert limited.kills == 0
    assert model_of(tmp_path / "spilled.npz") == model_of(tmp_path / "free.npz")
    print(f"with memory for half of its input a job takes {spilled_s / free_s:.2f} times as long as without a limit")

    code, errors, _ = trained(tmp_path / "killed.npz", enter=limited.enter)
    assert code == 128 + 9, errors
    assert limited.kills > 0


@pytest.mark.long
def test_a_job_with_memory_for_half_of_its_input_ends_with_the_same_bits_and_is_killed_without_spilling(
    tmp_path: Path, limited: Limited
) -> None:
    check_that_it_ends_spilled_and_is_killed_otherwise(tmp_path, limited)
