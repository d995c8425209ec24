"""Waiting for a condition without an event loop; `files.until` does it with one."""

import time
from collections.abc import Callable

from farside.errors import PeerError

LOOK_EVERY_S = 0.1


def wait_until(look: Callable[[], bool], what: str, *, limit_s: float, every_s: float = LOOK_EVERY_S) -> None:
    """Returns when ``look`` says yes, which it is asked at least once.

    Raises:
        PeerError: It did not within ``limit_s``.
    """
    end_s = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > end_s:
            raise PeerError(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(every_s)
