"""The clock: a small protocol, and the real clock.

A component that waits takes a `Clock`. Core modules take no clock at all: time reaches them as ``now_s``.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, from an arbitrary start, and a way to wait for them."""

    def now_s(self) -> float:
        """The time now, in seconds."""
        ...

    async def sleep_until_s(self, when_s: float) -> None:
        """Returns at ``when_s`` or, when that is past, after one turn of the event loop."""
        ...


class RealClock:
    """CLOCK_MONOTONIC."""

    def now_s(self) -> float:
        """The time now, in seconds since some point in the past."""
        return time.monotonic()

    async def sleep_until_s(self, when_s: float) -> None:
        """Returns at ``when_s`` or, when that is past, after one turn of the event loop."""
        await asyncio.sleep(max(0.0, when_s - self.now_s()))
