"""Real programs with the library preloaded."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from farside.agent.profile.ring import Recorded
from farside.agent.profile.ring_file import FILE_VARIABLE, LIBRARY, RingFile, new_path
from farside.errors import Unavailable

# A listener that swallows, and one connection to it.
PAIR = """
import os, signal, socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
def swallow():
    while theirs.recv(1 << 20):
        pass
threading.Thread(target=swallow, daemon=True).start()
"""


@contextmanager
def ring_file() -> Iterator[RingFile]:
    """A file of the test's own; skips where there can be none."""
    try:
        made = RingFile(new_path(), uid=os.geteuid(), gid=os.getegid())
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.close()


def variables(path: Path, library: Path = LIBRARY) -> Mapping[str, str]:
    """The environment of a program that is profiled."""
    return {**os.environ, "LD_PRELOAD": str(library), FILE_VARIABLE: str(path), "PYTHONMALLOC": "malloc"}


def run(program: str, path: Path, *arguments: str, status: int = 0, before: str = PAIR) -> str:
    """Runs a program of Python to its end, which must be well and without a word on stderr; returns what it said."""
    done = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(program), *arguments],
        env=variables(path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (status, "")
    return done.stdout


def sizes(recorded: Recorded) -> list[list[int]]:
    """Of the messages of each process."""
    return [[event.bytes for event in process.events] for process in recorded.processes]
