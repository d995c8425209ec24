"""Starts and ends the programs that are measured: this package's only door to long-running processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.load import BenchmarkError

READY_S = 20.0


def python_program(name: str) -> str:
    """A program of the environment that this Python belongs to."""
    return str(Path(sys.executable).parent / name)


@contextmanager
def process(command: list[str], log: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server until the block ends; enters it once ``ready`` says so.

    Raises:
        BenchmarkError: It ended, or was not ready within ``READY_S``; with the last of what it wrote.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline_s = time.monotonic() + READY_S
        while not ready():
            if child.poll() is not None or time.monotonic() > deadline_s:
                tail = log.read_text(errors="replace")[-400:].strip()
                raise BenchmarkError(f"{command[0]} is not ready (exit status {child.poll()}): {tail}")
            time.sleep(0.02)
        yield child
    finally:
        stop(child)


@contextmanager
def background(command: list[str], pid_file: Path, ready: Callable[[], bool]) -> Iterator[int]:
    """Runs a server that goes into the background by itself; its process id, until the block ends.

    Raises:
        BenchmarkError: It could not be started, or was not ready within ``READY_S``.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{command[0]}: {done.stderr.strip()[-400:]}")
    deadline_s = time.monotonic() + READY_S
    while not (pid_file.exists() and pid_file.read_text().strip() and ready()):
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"{command[0]} is not ready")
        time.sleep(0.02)
    pid = int(pid_file.read_text())
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def stop(child: subprocess.Popen[bytes], patience_s: float = 15.0) -> None:
    """Ends a server and what it has started: SIGTERM, and SIGKILL to its session when that does not help."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def listens(path: Path) -> bool:
    """True when somebody accepts connections on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A TCP port of this host that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_listens(port: int) -> bool:
    """True when somebody accepts connections on this TCP port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
