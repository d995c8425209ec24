"""Running other people's programs from tests: one door, with a limit on time and the output kept for the failure."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

# Generous: on a busy two core machine the slowest of these (a verifying fio) takes under ten seconds.
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program left behind: its exit status and both its outputs as text."""

    status: int
    stdout: str
    stderr: str


def need(*names: str) -> None:
    """Skips the calling test, with the reason, when a program is not installed."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def outcome(argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: bytes = b"") -> Outcome:
    """Runs a program to its end, whatever its exit status is."""
    done = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=limit_s, check=False)
    return Outcome(
        status=done.returncode,
        stdout=done.stdout.decode(errors="replace"),
        stderr=done.stderr.decode(errors="replace"),
    )


def run(argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: bytes = b"") -> str:
    """Standard output of a program that must succeed; the test fails with both outputs otherwise."""
    done = outcome(argv, limit_s=limit_s, stdin=stdin)
    if done.status != 0:
        said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        pytest.fail(f"{argv[0]} ended with {done.status}\n{' '.join(argv)}\n{said}")
    return done.stdout


def nbdsh(uri: str, script: str, *, limit_s: float = LIMIT_S) -> str:
    """Output of a libnbd Python script with `h` connected to `uri`.

    The interpreter is the system's, by path: libnbd's binding is a package of the distribution.
    """
    need("nbdinfo")
    return run(["/usr/bin/python3", "-m", "nbd", "-u", uri, "-c", script], limit_s=limit_s)


def nbdsh_unconnected(script: str, *, limit_s: float = LIMIT_S) -> str:
    """Output of a libnbd Python script with a fresh, unconnected handle `h`."""
    need("nbdinfo")
    return run(["/usr/bin/python3", "-m", "nbd", "-c", script], limit_s=limit_s)
