"""Parallel simulations: one process each, as many as there are cores; a single one runs in this process.

A child is a fork, so that the trace need not be sent to it. It sends its progress and then its outcome through a pipe;
if it fails, its error. Children end with the parent: when it ends in order they are stopped, otherwise their pipes
break.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from farside.errors import FarsideError
from farside.scheduler.sim.experiment import Experiment, Outcome, Scene, run_experiment

# Progress of one experiment: its place, and the share of its jobs that have ended.
Tell = Callable[[int, float], None]
_Message = float | Outcome | FarsideError


def run_all(
    experiments: Sequence[Experiment], scene: Scene, *, is_keeping_segments: bool, tell: Tell
) -> tuple[Outcome, ...]:
    """The outcomes of all experiments, in their order.

    Raises:
        FarsideError: One of them failed; the others are stopped.
    """
    # Those that this process may use, which may be fewer than the machine has.
    cores = len(os.sched_getaffinity(0))
    if len(experiments) == 1 or cores == 1:
        return tuple(
            run_experiment(experiment, scene, is_keeping_segments=is_keeping_segments, tell=partial(tell, at))
            for at, experiment in enumerate(experiments)
        )
    with _interrupts() as interrupted:
        return _Children(experiments, scene, is_keeping_segments, interrupted).run(cores, tell)


@contextmanager
def _interrupts() -> Iterator[Any]:
    """A pipe that is readable once Ctrl-C was pressed, in place of KeyboardInterrupt wherever Python is just then.

    One that is raised in a destructor is ignored, and one between a fork and the note of it leaves an unknown child.
    """
    reading, writing = multiprocessing.Pipe(duplex=False)
    before = signal.getsignal(signal.SIGINT)
    # Ignored, as for a background job of a script, it stays ignored.
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: writing.send_bytes(b"!"))
    with reading, writing:
        try:
            yield reading
        finally:
            signal.signal(signal.SIGINT, before)


class _Children:
    """The processes of one comparison."""

    def __init__(
        self, experiments: Sequence[Experiment], scene: Scene, is_keeping_segments: bool, interrupted: Any
    ) -> None:
        self._experiments = experiments
        self._scene = scene
        self._is_keeping_segments = is_keeping_segments
        self._interrupted = interrupted
        self._context = multiprocessing.get_context("fork")
        self._running: dict[Any, tuple[int, ForkProcess]] = {}

    def run(self, cores: int, tell: Tell) -> tuple[Outcome, ...]:
        done: dict[int, Outcome] = {}
        waiting = list(enumerate(self._experiments))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < cores:
                    self._start(*waiting.pop(0))
                for ready in wait([self._interrupted, *self._running]):
                    if ready is self._interrupted:
                        raise KeyboardInterrupt
                    at, message = self._receive(ready)
                    if isinstance(message, FarsideError):
                        raise message
                    if isinstance(message, Outcome):
                        done[at] = message
                    tell(at, message if isinstance(message, float) else 1.0)
        finally:
            # After an error or Ctrl-C; when all went well none is left.
            for _, process in self._running.values():
                process.terminate()
                process.join()
        return tuple(done[at] for at in range(len(self._experiments)))

    def _start(self, at: int, experiment: Experiment) -> None:
        reading, writing = self._context.Pipe(duplex=False)
        args = (experiment, self._scene, self._is_keeping_segments, reading, writing)
        process = self._context.Process(target=_work, args=args, daemon=True)
        # From the fork to the note of it nothing is raised, as Ctrl-C only writes to a pipe (`_interrupts`).
        process.start()
        self._running[reading] = at, process
        # The child has the only writing end now: when it dies, reading here ends instead of waiting.
        writing.close()

    def _receive(self, ready: Any) -> tuple[int, _Message]:
        at, process = self._running[ready]
        try:
            message: _Message = ready.recv()
        except (EOFError, OSError):  # the pipe ended between two messages, or in the middle of one
            process.join()
            name = self._experiments[at].name
            hint = "the kernel kills what takes too much memory" if process.exitcode == -signal.SIGKILL else ""
            message = FarsideError(f"{name}: its process ended with code {process.exitcode}", hint=hint)
        if not isinstance(message, float):
            del self._running[ready]
            ready.close()
            process.join()
        return at, message


def _work(
    experiment: Experiment, scene: Scene, is_keeping_segments: bool, reading: Connection, writing: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends us
    reading.close()  # the parent's end: were it open here too, we would not notice that the parent is gone
    with suppress(BrokenPipeError):  # it is, and nobody wants to know any more
        try:
            writing.send(run_experiment(experiment, scene, is_keeping_segments=is_keeping_segments, tell=writing.send))
        except FarsideError as error:
            writing.send(error)
