"""The time of day for a process that must not be taken in by its jumps."""

import time


class WallClock:
    """Seconds since the epoch as they were when it was made, and from then on by the clock that only grows.

    A step of the machine's clock, by an operator or NTP, changes nothing for a process that runs: no time limit ends
    early, no node is taken for lost.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.monotonic() + self._offset_s
