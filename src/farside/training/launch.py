"""Workers of one job as processes of this machine, and the Aggregator that they need where none is named.

All workers end together: they agree to stop, or, where one was killed, the others are killed too, since they wait for
what it would have pushed. Then all begin again from the last checkpoint, under another name.
"""

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from farside.agent.messages import LIBRARY_THREADS
from farside.ending import end_process
from farside.errors import ConfigError, PeerError
from farside.log import get_log
from farside.training.loop.ended import Paused
from farside.training.loop.turns import EXECUTOR
from farside.training.static_plan import JOB, KEY, KEY_FILE, SERVICE, START

_log = get_log("training")

SAID = "FARSIDE_TRAIN_SAID"
"""By this variable workers of one start know the file in which they note lines: what all have to say is said once."""
AGREE_LIMIT_S = 20.0
"""For the others to end by themselves, once one has said that it fails."""
_AGGREGATOR = """\
node = "train"
listen = ["unix:{folder}/members.sock"]
key_file = "{folder}/key"
admin_socket = "{folder}/admin.sock"
log_level = "warning"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started.

    Attributes:
        argv: Of each worker.
        workers: How many; 0: this process is told by its environment which worker of which job it is, if any.
        threads: Of NumPy's libraries, in each worker.
        retries: How often all are started again where one was killed.
        service: Aggregators; empty, with two workers or more: one is started for them.
        key_file: The Aggregators' key.
        executor: Socket of the executor that gives turns on this node; empty: one worker takes that of the environment,
            if there is one, and several have the node for themselves.
        environment: More variables of the workers.
    """

    argv: Sequence[str]
    workers: int
    threads: int = 1
    retries: int = 0
    service: Sequence[str] = ()
    key_file: str = ""
    executor: str = ""
    environment: Mapping[str, str]


def launch(wanted: Launch) -> int:
    """Runs the workers to their end; the exit code: 0, 75 after a pause, or the first one's that failed.

    Raises:
        ConfigError: more threads than processors, or Aggregators without their key.
    """
    processors = len(os.sched_getaffinity(0))
    if not 1 <= wanted.threads <= processors:
        raise ConfigError(f"threads: is {wanted.threads}; this machine has {processors} processors for it")
    if wanted.executor and wanted.workers > 1:
        raise ConfigError(
            f"{wanted.workers} workers with an executor; one worker of a job takes turns on each node",
            hint="leave out --executor, or start a worker a node with --workers 0",
        )
    if wanted.workers and os.environ.get(START):
        raise ConfigError(
            f"--workers {wanted.workers} in a job of {os.environ.get('WORLD_SIZE')} workers, one on each of its nodes",
            hint="leave out --workers",
        )
    if wanted.service and not wanted.key_file:
        raise ConfigError("Aggregators are named without their key file", hint="add --key-file")
    with ExitStack() as stack:
        told = _Told()
        stack.enter_context(told.signals())
        aggregator: subprocess.Popen[bytes] | None = None
        variables = {**os.environ, **dict.fromkeys(LIBRARY_THREADS, str(wanted.threads)), **wanted.environment}
        if wanted.executor:
            variables[EXECUTOR] = wanted.executor
        elif wanted.workers > 1:
            variables.pop(EXECUTOR, None)  # a manager's agent sets it for each task, before it is known how many we are
        if wanted.service:
            variables.pop(KEY, None)  # of the Aggregators that the manager has named
            variables |= {SERVICE: ",".join(wanted.service), KEY_FILE: wanted.key_file}
        elif wanted.workers > 1:
            made = tempfile.TemporaryDirectory(prefix="farside-train-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            aggregator = stack.enter_context(_aggregator(folder, variables))
            variables |= {SERVICE: f"unix:{folder}/members.sock", KEY_FILE: f"{folder}/key"}
        code = 0
        for left in reversed(range(wanted.retries + 1)):
            code = _once(wanted, variables, told, aggregator)
            if code >= 0 or not left or told.ends:
                break
            _log.warning("a worker was killed; all start again from the last checkpoint", signal=-code, left=left - 1)
        return code if code >= 0 else 128 - code


class _Told:
    """Signals that ask this process to end: they are handed on to the workers."""

    def __init__(self) -> None:
        self.ends = False
        self._workers: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def watch(self, workers: list["subprocess.Popen[bytes]"]) -> None:
        """These are the workers now."""
        self._workers = workers
        if self.ends:
            self._pass_on(signal.SIGTERM)

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        # Asked twice: whoever asks no longer waits for the workers to agree.
        number, self.ends = (signal.SIGKILL if self.ends else signal.SIGTERM), True
        self._pass_on(number)  # the second signal may come in the middle of this

    def _pass_on(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.send_signal(number)


def _once(
    wanted: Launch, variables: Mapping[str, str], told: _Told, aggregator: "subprocess.Popen[bytes] | None"
) -> int:
    """One start of all workers; negative where one was killed by a signal."""
    ours: dict[str, str] = {}
    if wanted.workers:
        # As torchrun sets them; by the second, workers know how many of them share the machine.
        ours = {"WORLD_SIZE": str(wanted.workers), "LOCAL_WORLD_SIZE": str(wanted.workers)}
    if wanted.workers and variables.get(SERVICE):
        # Another name for each start: Aggregators may still have the last one's sums.
        ours[JOB] = f"{variables.get(JOB) or 'train'}-{secrets.token_hex(6)}"
    # In memory: a machine whose disk is full, or that has no folder for such files, trains all the same.
    with os.fdopen(os.memfd_create("farside-train-said"), "rb") as said:
        ours[SAID] = str(said.fileno())
        workers = [
            subprocess.Popen(
                wanted.argv,
                env={**variables, **ours, **({"RANK": str(rank)} if wanted.workers else {})},
                pass_fds=(said.fileno(),),
                # Ctrl-C reaches us alone: workers agree on where they stop.
                start_new_session=True,
            )
            for rank in range(wanted.workers or 1)
        ]
    told.watch(workers)
    try:
        return _ended(workers, aggregator)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _ended(workers: Sequence["subprocess.Popen[bytes]"], aggregator: "subprocess.Popen[bytes] | None") -> int:
    """Waits for all; the exit code that says most, negative for a signal.

    Raises:
        PeerError: the Aggregator that was started for them has ended, so that they would wait for ever.
    """
    deadline_s: float | None = None
    while True:
        codes = [worker.poll() for worker in workers]
        bad = [code for code in codes if code not in (None, 0, Paused.exit_code)]
        if None not in codes or any(code is not None and code < 0 for code in bad):
            return next((code for code in bad if code is not None), max(code or 0 for code in codes))
        if bad and deadline_s is None:
            deadline_s = time.monotonic() + AGREE_LIMIT_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            return bad[0] or 1
        if aggregator is not None and aggregator.poll() is not None:
            raise PeerError(
                f"this job's own Aggregator has ended with status {aggregator.returncode}",
                hint="start the job again; it goes on from its last checkpoint, if it has one",
            )
        running = [worker.pid for worker, code in zip(workers, codes, strict=True) if code is None]
        _wait([*running, *([aggregator.pid] if aggregator is not None else [])])


def _wait(pids: Sequence[int], limit_s: float = 1.0) -> None:
    """Returns when one of them ends."""
    with ExitStack() as stack:
        waiting = select.poll()
        for pid in pids:
            fd = os.pidfd_open(pid)
            stack.callback(os.close, fd)
            waiting.register(fd, select.POLLIN)
        waiting.poll(limit_s * 1000)


@contextmanager
def _aggregator(folder: Path, variables: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """An Aggregator for these workers alone; it removes the folder where this process is killed."""
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    config = folder / "aggregator.toml"
    config.write_text(_AGGREGATOR.format(folder=folder))
    argv = [sys.executable, "-m", "farside.cli.train_aggregator", str(folder), "aggregator", "--config", str(config)]
    process = subprocess.Popen(argv, env=variables, start_new_session=True)
    try:
        yield process
    finally:
        end_process(process, AGREE_LIMIT_S)
