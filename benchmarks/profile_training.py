"""Cost of the profiler in an iteration of examples/train.py: CPU a message, times messages, over its time.

Training with it and without differs by more from one run to the next than the profiler takes, so the difference of two
such runs shows nothing. What one recorded message takes does show: a thread's CPU time over a thousand at a time, with
the library and without in turn. Messages and time of an iteration are what a long training has more than a short one,
of two workers over loopback that do not pause: that is the most messages a second that the example can send.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.process import free_port
from farside.agent.profile.ring import EVENTS
from farside.agent.profile.ring_file import FILE_VARIABLE, LIBRARY, RingFile, new_path
from farside.errors import Unavailable

EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"
SHORT_STEPS, LONG_STEPS = 100, 500
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A median, and between what it lies with at least 95 % certainty."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Of one worker. ``share``: of an iteration's time without the profiler that it takes, of 1."""

    message_ns: Middle
    messages: Middle
    iteration_us: Middle
    share: Middle


def middle(values: Sequence[float]) -> Middle:
    """The median with its interval by order statistics, which asks nothing of how the values are spread.

    Raises:
        ValueError: There are fewer than six values, which can't have one.
    """
    ordered, count = sorted(values), len(values)
    if count < 6:
        raise ValueError("six values at least")
    # So many values lie below the median with less than 2.5 % chance each side.
    chance, cut = 0.0, 0
    while chance + math.comb(count, cut) / 2**count <= 0.025:
        chance += math.comb(count, cut) / 2**count
        cut += 1
    return Middle(value=statistics.median(ordered), low=ordered[cut - 1], high=ordered[count - cut])


def training(message_ns: Sequence[float], iterations: Sequence[tuple[float, float]]) -> Training:
    """From what a message takes, and messages and microseconds of an iteration, each as often as it was measured."""
    cost, messages = middle(message_ns), middle([one for one, _ in iterations])
    time = middle([us for _, us in iterations])

    def share(cost_ns: float, count: float, with_it_us: float) -> float:
        taken_us = cost_ns * count / 1000
        return taken_us / (with_it_us - taken_us)

    return Training(
        message_ns=cost, messages=messages, iteration_us=time,
        # The ends are of the worst that can come together, so the interval is wider than it has to be.
        share=Middle(
            value=share(cost.value, messages.value, time.value), low=share(cost.low, messages.low, time.high),
            high=share(cost.high, messages.high, time.low),
        ),
    )  # fmt: skip


def an_iteration() -> tuple[float, float]:
    """Messages of an iteration, and its microseconds.

    Raises:
        Unavailable: There is no PyTorch, or no library.
    """
    if find_spec("torch") is None:
        raise Unavailable("PyTorch is not installed: pip install --no-deps -r requirements/cluster.txt")
    short, long = _trained(SHORT_STEPS), _trained(LONG_STEPS)
    steps = LONG_STEPS - SHORT_STEPS
    return (long[0] - short[0]) / steps, (long[1] - short[1]) / steps / 1000


def _trained(steps: int) -> tuple[int, int]:
    """The first worker's messages, and nanoseconds from its first to its last."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="farside-profile-"))
        file = RingFile(new_path(), uid=os.geteuid(), gid=os.getegid())
        stack.callback(file.close)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        command = (sys.executable, str(EXAMPLE), "--steps", str(steps), "--save-every", str(steps + 1))
        workers = []
        for rank in range(2):
            environment = {**os.environ, **meeting, "RANK": str(rank), "FARSIDE_CHECKPOINT_DIR": folder}
            if rank == 0:
                environment |= {"LD_PRELOAD": str(LIBRARY), FILE_VARIABLE: str(file.path)}
            worker = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
            stack.callback(worker.kill)  # before its end is waited for, should the other have failed
            workers.append(worker)
        for worker in workers:
            if worker.wait(LIMIT_S):
                raise Unavailable(f"{EXAMPLE.name} ended with {worker.returncode}")
        process = file.read().processes[0]
    assert len(process.events) < EVENTS, "the oldest are lost"
    return len(process.events), process.events[-1].at_ns - process.events[0].at_ns
