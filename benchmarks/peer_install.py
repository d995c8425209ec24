"""Installs the programs that a benchmark measures beside ours."""

import subprocess
from collections.abc import Sequence

from benchmarks.load import BenchmarkError

INSTALL_S = 900.0


def run_install(command: Sequence[str], what: str) -> None:
    """Run one command that installs ``what``.

    Raises:
        BenchmarkError: It failed, with its last line, or took too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{command[0]} took more than {INSTALL_S:.0f} s") from None
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise BenchmarkError(f"{what} can't be installed: {told[-1] if told else 'no word'}")
