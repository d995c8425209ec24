"""Handling of SIGTERM and SIGINT in a process with one event loop."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ENDING = (signal.SIGTERM, signal.SIGINT)


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
