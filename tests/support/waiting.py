"""Waiting for something to become true, with a deadline; tests never sleep for a fixed time and hope."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# How often a condition is looked at. Short enough not to be felt, long enough to leave the machine alone.
LOOK_EVERY_S = 0.02


def until(look: Callable[[], T], *, what: str, deadline_s: float = 10.0, every_s: float = LOOK_EVERY_S) -> T:
    """The first true value that `look` returns.

    Raises:
        AssertionError: `what` did not come within `deadline_s`.
    """
    pause = threading.Event()
    end_s = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last seen: {found!r})")
        pause.wait(every_s)
