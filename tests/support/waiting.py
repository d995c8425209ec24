"""Waiting for something to become true, with a deadline; tests never sleep for a fixed time and hope."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# How often a condition is looked at. Short enough not to be felt, long enough to leave the machine alone.
LOOK_EVERY_S = 0.02
# Only a test that fails waits so long, and a machine that others use may need it.
DEADLINE_S = 60.0


def text_of(path: Path) -> str:
    """What a file holds; nothing as long as it is not there. For conditions, which may not fail before their time."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second is what /proc says between two looks
        return ""


def until(look: Callable[[], T], *, what: str, deadline_s: float = DEADLINE_S, every_s: float = LOOK_EVERY_S) -> T:
    """The first true value that `look` returns; `deadline_s` counts where it is more than the usual.

    Raises:
        AssertionError: `what` did not come within `deadline_s`.
    """
    deadline_s = max(deadline_s, DEADLINE_S)
    pause = threading.Event()
    end_s = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last seen: {found!r})")
        pause.wait(every_s)
