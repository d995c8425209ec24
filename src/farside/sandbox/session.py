"""A sandbox as a context manager, for the demo, tests and benchmarks."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farside.ending import die_with
from farside.errors import PeerError
from farside.log import last_line
from farside.sandbox import process
from farside.sandbox.process import command

# A sandbox ends its agents, what is left of their tasks, the manager, the borrower and the donors, one after the other,
# and kills what hangs: whoever kills it before it is done leaves its processes to nobody, and hides what hung.
STAGES = 5


def end_limit_s() -> float:
    """How long the end of a sandbox may take, seconds, when all its processes hang."""
    return STAGES * (process.PATIENCE_S + process.END_LIMIT_S) + process.END_LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A sandbox that is ready: where its clients connect, its folder, its process id."""

    uris: tuple[str, ...]
    state: Path
    pid: int

    @property
    def uri(self) -> str:
        """URI of the first listener."""
        return self.uris[0]


@contextmanager
def open_sandbox(arguments: Sequence[str] = (), *, state: Path | None = None) -> Iterator[Session]:
    """Runs `farside sandbox ARGUMENTS` for the body of the `with`, in `state` or a temporary folder.

    It ends as well where this process is killed.

    Raises:
        PeerError: it did not get ready, or did not end well; its own last words are in the message.
    """
    with tempfile.TemporaryDirectory(prefix="farside-") as spare, (Path(spare) / "stderr").open("w") as errors:
        folder = state or Path(spare) / "state"
        argv, parent = command("sandbox", "--state", os.fspath(folder), *arguments), os.getpid()
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            preexec_fn=lambda: die_with(parent, signal.SIGTERM),
        ) as child:  # fmt: skip
            try:
                count = max(1, sum(word == "--listen" for word in arguments))
                uris = tuple(_ready_uri(child) for _ in range(count))
                if not all(uris):
                    raise PeerError(f"the sandbox did not start: {_last_words(child, Path(errors.name))}")
                yield Session(uris=uris, state=folder, pid=child.pid)
            finally:
                status = _end(child)
        if status != 0:
            raise PeerError(f"the sandbox ended with status {status}: {_last_words(child, Path(errors.name))}")


def _ready_uri(child: subprocess.Popen[str]) -> str:
    # A sandbox that cannot start ends by itself, so that this always returns.
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    return line.removeprefix("ready ") if line.startswith("ready ") else ""


def _last_words(child: subprocess.Popen[str], errors: Path) -> str:
    child.wait(end_limit_s())
    return last_line(errors) or "it said nothing"


def _end(child: subprocess.Popen[str]) -> int:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        return child.wait(timeout=end_limit_s())
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return child.wait()
