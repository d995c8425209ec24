"""How processes end: by SIGTERM and SIGINT where they have an event loop, and with the parent that forked them."""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from farside.errors import FarsideError

ENDING = (signal.SIGTERM, signal.SIGINT)

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# Loaded here: between fork and exec nothing may be.
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def on_end_signals(act: Callable[[], None]) -> Iterator[None]:
    """Calls ``act`` in the running loop for each SIGTERM and SIGINT, as long as the body lasts."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        # RuntimeError: not in the main thread, where only a test runs such a process.
        with suppress(RuntimeError):
            loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)


def end_process(process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    """Ends a child by SIGTERM, and by SIGKILL after ``limit_s``; nothing if it has ended."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def leave_no_core_dump() -> None:
    """Has this process, and those that it starts, leave no core dump: it would have keys, and others' memory. [L2]

    1 and not 0: of a dump that goes through a pipe, as systemd-coredump's, Linux takes 1 alone for "none" (core(5)).
    """
    # What cannot be raised again is lowered; who has set less has set 0.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    most = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def die_with(parent: int, number: signal.Signals) -> None:
    """This signal comes when ``parent``, by its process number, has ended; this process ends now if it has already."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_forked(parent: int, work: Callable[[], None], say: Callable[[FarsideError], None]) -> NoReturn:
    """Does the work of a process that ``parent`` has just forked, and ends it: with 0, or with 1 after a fault.

    Args:
        parent: Its end is ours, by SIGKILL.
        work: What to do.
        say: Logs why the work can't go on.
    """
    code = 1
    try:
        die_with(parent, signal.SIGKILL)
        work()
        code = 0
    except FarsideError as error:
        say(error)
    except BaseException as error:  # the log gets it; this process must never return into the parent's loop
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(code)
