"""Input twice as large as a job's memory, where the kernel limits memory: it ends spilled, and is killed otherwise."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

CGROUPS = Path("/sys/fs/cgroup")
LIMIT_S = 900.0
ROWS, COLUMNS, BLOCKS = 12_000, 2_000, 64
INPUT_BYTES = 8 * ROWS * COLUMNS
WORDS = (
    "lasso", "--data", "synthetic", "--rows", ROWS, "--columns", COLUMNS, "--blocks", BLOCKS, "--iterations", 6,
)  # fmt: skip


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with memory for half of the input, and for what `farside train` and its worker need besides."""
    (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    folder = CGROUPS / f"farside-spill-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.max").write_text(str(INPUT_BYTES // 2 + (160 << 20)))
    (folder / "memory.swap.max").write_text("0")
    try:
        yield folder
    finally:
        (folder / "cgroup.kill").write_text("1")
        deadline_s = time.monotonic() + 60
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        folder.rmdir()


def trained(out: Path, *more: object, cgroup: Path | None = None) -> tuple[int, str, float]:
    """Exit code, errors and seconds of a job, in a cgroup if one is given."""
    enter = f"echo $$ >{cgroup}/cgroup.procs; " if cgroup is not None else ""
    words = [sys.executable, "-m", "farside", "train", *map(str, (*WORDS, *more)), "--out", str(out)]
    began_s = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'{enter}exec "$@"', "sh", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stderr, time.monotonic() - began_s


def weights(path: Path) -> bytes:
    with np.load(path) as found:
        data: bytes = found["weights"].tobytes()
        return data


def kills(cgroup: Path) -> int:
    rows = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
    return int(rows["oom_kill"])


def test_a_job_with_memory_for_half_of_its_input_ends_with_the_same_bits_and_is_killed_without_spilling(
    tmp_path: Path, limited: Path
) -> None:
    code, errors, free_s = trained(tmp_path / "free.npz")
    assert code == 0, errors

    code, errors, spilled_s = trained(tmp_path / "spilled.npz", "--spill-dir", tmp_path, cgroup=limited)
    assert code == 0, errors
    assert kills(limited) == 0
    assert weights(tmp_path / "spilled.npz") == weights(tmp_path / "free.npz")
    print(f"memory for half of the input: {spilled_s / free_s:.2f} of the time without a limit")

    code, errors, _ = trained(tmp_path / "killed.npz", cgroup=limited)
    assert code == 128 + 9, errors
    assert kills(limited) > 0
