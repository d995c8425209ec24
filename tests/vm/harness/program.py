"""The harness's one door to other programs."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from farside.errors import FarsideError, Unavailable


class HarnessError(FarsideError):
    """A virtual machine could not be built, started, or spoken to."""


def need(*names: str) -> None:
    """All of these programs are installed.

    Raises:
        Unavailable: Some are not; says which, and how to get them.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)}", hint="make packages-vm")


def run(argv: Sequence[str | Path], *, limit_s: float, log: Path | None = None, stdin: bytes = b"") -> str:
    """Output of a program that must succeed; both its outputs go to the end of `log` when one is given.

    Raises:
        HarnessError: It failed, or took longer than `limit_s`; with the end of what it said.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{words[0]}: not done within {limit_s:g} s: {' '.join(words)}") from error
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if log is not None:
        with log.open("a") as file:
            file.write(f"$ {' '.join(words)}\n{stdout}{stderr}")
    if done.returncode:
        raise HarnessError(f"{words[0]} ended with {done.returncode}:\n{(stdout + stderr)[-3000:]}")
    return stdout
